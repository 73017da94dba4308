"""An objective of the user's own, named by import path: it gets humanline for free, and every mistake has its own message."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from humanline.errors import ConfigError
from humanline.limit import Clip
from humanline.objectives import CustomObjective, Facts

SOURCE = '''
from dataclasses import dataclass
from typing import ClassVar

import torch

from humanline.objectives import Loss, Objective
from humanline.objectives.base import sequence_sum, total


@dataclass(frozen=True)
class Hinge(Objective):
    """max(0, margin − (R_w − R_l))."""

    margin: float = 1.0
    kind: ClassVar[str] = "pair"

    def loss(self, ratio_BT, facts):
        sum_P2 = sequence_sum(ratio_BT, facts.mask_BT).view(-1, 2)
        loss_P = torch.relu(self.margin - (sum_P2[:, 0] - sum_P2[:, 1]))
        return Loss(loss_P.sum(), {"violated": total(loss_P > 0)})


class NoKind(Objective):
    def loss(self, ratio_BT, facts):
        raise AssertionError


class WrongKind(NoKind):
    kind = "triple"


class NoLoss(Objective):
    kind = "pair"


class Stranger:
    pass


number = 3
'''


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `mine` on the path, and one, `broken`, that fails on import."""
    (tmp_path / "mine.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "broken.py").write_text("import a_package_that_is_not_there\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("mine", "broken"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path / "mine.py"


def test_a_custom_objective_is_clipped_like_any_other() -> None:
    """margin 2, bounds ±1: chosen 0.5, 3 → 0.5 + 1, rejected −4 → −1: 2 − (1.5 + 1) < 0, no loss. Rejected 0.2: 2 − 1.3 = 0.7.

    Gradient −1 on the inner chosen token, +1 on the inner rejected one, 0 on the clipped ones.
    """
    objective = CustomObjective(path="mine:Hinge", settings={"margin": 2.0}).build()
    ratio_BT = torch.tensor([[0.5, 3.0], [-4.0, 0.0], [0.5, 3.0], [0.2, 0.0]], requires_grad=True)
    mask_BT = torch.tensor([[True, True], [True, False], [True, True], [True, False]])
    facts = Facts(mask_BT, torch.tensor([0, 0, 1, 1]), torch.tensor([1.0, 0.0, 1.0, 0.0]), ratio_BT.detach(), torch.zeros(()))
    loss = objective.loss(Clip(-1.0, 1.0)(ratio_BT, mask_BT).ratio_BT, facts)
    loss.total.backward()
    assert loss.total.item() == pytest.approx(0.7, abs=1e-6)
    assert [x.item() for x in loss.metrics["violated"]] == [1.0, 2.0]
    assert objective.weight(mask_BT, facts.group_B, facts.feedback_B).item() == 2
    assert ratio_BT.grad is not None
    assert ratio_BT.grad.tolist() == [[0.0, 0.0], [0.0, 0.0], [-1.0, 0.0], [1.0, 0.0]]


def test_defaults_and_traits_come_from_the_class() -> None:
    objective = CustomObjective(path="mine:Hinge").build()
    assert (type(objective).__name__, objective.margin) == ("Hinge", 1.0)  # type: ignore[attr-defined]
    assert (objective.kind, objective.reference, objective.mismatched) == ("pair", True, False)


@pytest.mark.parametrize(
    "path", ["", "mine", "mine:", ":Hinge", "mine.Hinge", "mine:Hinge:x", ".mine:Hinge", "mine:Hin ge", "a..b:C"]
)
def test_a_malformed_path_is_named(path: str) -> None:
    with pytest.raises(ConfigError) as error:
        CustomObjective(path=path).build()
    assert str(error.value) == f"objective.path is {path!r}: expected 'package.module:ClassName'."


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "not_there:Hinge",
            "objective.path 'not_there:Hinge' cannot be imported: No module named 'not_there'. Is its folder on PYTHONPATH?",
        ),
        (
            "broken:Hinge",
            "objective.path 'broken:Hinge' cannot be imported: No module named 'a_package_that_is_not_there'. "
            "Is its folder on PYTHONPATH?",
        ),
        ("mine:Absent", "objective.path 'mine:Absent': {file} defines no 'Absent'."),
        ("sys:Absent", "objective.path 'sys:Absent': sys defines no 'Absent'."),
        ("mine:Stranger", "objective.path 'mine:Stranger' is not a subclass of humanline.objectives.Objective."),
        ("mine:number", "objective.path 'mine:number' is not a subclass of humanline.objectives.Objective."),
        ("mine:NoKind", "objective 'mine:NoKind' has kind None: expected one of pair, label, group, chat."),
        ("mine:WrongKind", "objective 'mine:WrongKind' has kind 'triple': expected one of pair, label, group, chat."),
        ("mine:NoLoss", "objective 'mine:NoLoss' has no method loss(ratio_BT, facts): expected one that returns a Loss."),
    ],
)
def test_every_other_mistake_has_its_message(path: str, message: str, mine: Path) -> None:
    with pytest.raises(ConfigError) as error:
        CustomObjective(path=path).build()
    assert str(error.value) == message.format(file=mine)


def test_settings_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError) as error:
        CustomObjective(path="mine:Hinge", settings={"margn": 2.0}).build()
    assert str(error.value) == (
        "objective.settings {'margn': 2.0} do not fit mine:Hinge: Hinge.__init__() got an unexpected keyword argument 'margn'."
    )
