"""METHOD §3's scalar example through the real loop: when the reference moves, and to which weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from builders import completion
from humanline.config import OptimizerConfig, TrainConfig
from humanline.data.feed import Feed, Rows
from humanline.data.plan import Plan
from humanline.data.rows import EncodedGroup, Place
from humanline.distributed import Workers
from humanline.loop import Loop
from humanline.objectives import Facts, Loss, Objective
from humanline.reference import Reference


class Weight(nn.Module):
    """A policy of one weight w, the "log-prob" of every token."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(1.0))

    def forward(self, mask_BT: torch.Tensor, **_: object) -> torch.Tensor:
        return self.w * mask_BT


@dataclass(frozen=True)
class Slope(Objective):
    """Loss Σ r, so the gradient of w is 1."""

    name: str = "slope"
    kind: ClassVar[str] = "label"

    def loss(self, ratio_BT: torch.Tensor, facts: Facts) -> Loss:
        return Loss(ratio_BT.sum(), {})


def seen(sync_every: int | None) -> list[tuple[float, float]]:
    """(policy, reference) that the forward pass of steps 1…5 sees, under SGD with lr 0.1."""
    config = TrainConfig(
        out="unused", device="cpu", batch_size=1, sync_every=sync_every, optimizer=OptimizerConfig(lr=0.1, warmup=0)
    )
    workers, weight = Workers(config), Weight()
    module, optimizer = workers.prepare(weight, torch.optim.SGD(weight.parameters(), lr=0.1))
    group = EncodedGroup("label", completion([1]).ids, (completion([2]),), Place("x", 1))
    feed = Feed(Rows([group], Plan(1, 1, 0, True), 5), 100, mismatched=False)
    loop = Loop(config, Slope(), module, optimizer, workers, feed, Reference(sync_every), last=5)
    loop.sync(1, before=1)
    pairs = []
    for t in range(1, 6):
        policy = weight.w.item()
        reference = loop.reference.logps(feed.work(t).train[0]).item()
        line = loop.step(t)
        assert line["loss"] == pytest.approx(policy - reference, abs=1e-6)
        pairs.append((round(policy, 6), round(reference, 6)))
    return pairs


def test_sync_every_step_lags_by_one_update():
    assert seen(1) == [(1.0, 1.0), (0.9, 1.0), (0.8, 0.9), (0.7, 0.8), (0.6, 0.7)]


def test_sync_every_second_step():
    assert seen(2) == [(1.0, 1.0), (0.9, 1.0), (0.8, 0.9), (0.7, 0.9), (0.6, 0.7)]


@pytest.mark.parametrize("sync_every", [6, None])
def test_a_sync_beyond_the_run_is_a_fixed_reference(sync_every: int | None):
    assert [reference for _, reference in seen(sync_every)] == [1.0] * 5
