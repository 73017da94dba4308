"""What every objective is: a frozen dataclass with one method, `loss`, that returns a sum.

B sequences · T completion tokens · G groups of the micro-batch.  mask_BT: True = the token counts.
Sequences of a group are consecutive; a pair is (chosen, rejected).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from humanline.data.rows import Kind
from humanline.errors import ConfigError


class Facts(NamedTuple):
    """What an objective may know besides the perceived log-ratios."""

    mask_BT: Bool[Tensor, "B T"]
    """True = the token counts"""
    group_B: Int[Tensor, "B"]
    """index of the sequence's group in this micro-batch: 0 … G−1, ascending"""
    feedback_B: Float[Tensor, "B"]
    """pair: 1 chosen, 0 rejected · label: 1 or 0 · group: the reward, NaN when unscored · chat: 1"""
    log_ratio_BT: Float[Tensor, "B T"]
    """log π_θ − log π_ref before any limiter, float32 nats, 0 outside the mask (without a reference: log π_θ)"""
    kl: Float[Tensor, ""]
    """KTO's K: max(0, mean over the whole step's mismatched pairs of Σ_t r_t), no gradient; 0 for other objectives"""


Metrics = dict[str, tuple[Tensor, Tensor]]
"""name → (sum, weight): the loop adds both over micro-batches and processes and divides once"""


class Loss(NamedTuple):
    """A sum over the micro-batch. The loop divides it by the whole step's weight."""

    total: Float[Tensor, ""]
    metrics: Metrics


class Objective:
    """Base of all objectives. Subclass as a frozen dataclass and implement `loss`; humanline then works with it unchanged.

    A `.mean()` in an objective is a bug: sums make the gradient independent of how a step is split into micro-batches.
    """

    kind: ClassVar[Kind]
    """the kind of row it trains on"""
    reference: ClassVar[bool] = True
    """False: `ratio_BT` is log π_θ itself, and limiters and syncing are refused"""
    mismatched: ClassVar[bool] = False
    """True: the loop measures `Facts.kl` on mismatched pairs of the step"""
    sampler_ratio: ClassVar[bool] = False
    """True: without syncing, stored sampler log-probs take the reference's place in the ratio (PPO's π_old)"""

    @property
    def anchored(self) -> bool:
        """Whether the loss needs the reference itself, and not only a ratio that the sampler's log-probs can give."""
        return True

    def loss(self, ratio_BT: Float[Tensor, "B T"], facts: Facts) -> Loss:
        """The summed loss. ratio_BT: perceived token log-ratios, nats, 0 outside the mask."""
        raise NotImplementedError

    def weight(self, mask_BT: Bool[Tensor, "B T"], group_B: Int[Tensor, "B"], feedback_B: Float[Tensor, "B"]) -> Tensor:
        """What the summed loss is divided by, summed over the whole optimizer step: by default the number of groups."""
        return group_B.new_tensor(int(group_B.max()) + 1 if group_B.numel() else 0, dtype=torch.float32)


def sequence_sum(values_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B"]:
    """Σ_t m_t x_t; whatever stands outside the mask, NaN included, changes neither the sum nor its gradient."""
    return torch.where(mask_BT, values_BT, 0.0).sum(-1)


def sequence_mean(values_BT: Float[Tensor, "B T"], mask_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B"]:
    """Mean over completion length: the count of the mask, never the count of non-zero values."""
    return sequence_sum(values_BT, mask_BT) / mask_BT.sum(-1).clamp(min=1)


def total(values: Tensor, where: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A metric as (sum, weight), over all elements or those where `where` is True."""
    values = values.detach().float()
    if where is None:
        return values.sum(), torch.tensor(float(values.numel()), device=values.device)
    return torch.where(where, values, torch.zeros_like(values)).sum(), where.sum().float()


@dataclass(frozen=True)
class CustomObjective:
    """An objective of your own, named by import path and built from `settings`."""

    name: Literal["custom"] = field(default="custom", kw_only=True)
    path: str = ""
    """`package.module:ClassName`, a frozen dataclass that derives from `humanline.objectives.Objective`"""
    settings: dict[str, Any] = field(default_factory=dict)
    """keyword arguments of the class"""

    def build(self) -> Objective:
        """Import and construct it; `ConfigError` says which part of the path, the class or the settings is wrong."""
        module_name, _, class_name = self.path.partition(":")
        if not all(part.isidentifier() for part in [*module_name.split("."), class_name]):
            raise ConfigError(f"objective.path is {self.path!r}: expected 'package.module:ClassName'.")
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise ConfigError(
                f"objective.path {self.path!r} cannot be imported: {error}. Is its folder on PYTHONPATH?"
            ) from error
        except (Exception, SystemExit) as error:  # the module is a user's program: importing it may raise anything
            raise ConfigError(
                f"objective.path {self.path!r} raises {type(error).__name__} when it is imported: {error}. "
                f"Expected a module that `python -c 'import {module_name}'` accepts."
            ) from error
        cls = getattr(module, class_name, None)
        if cls is None:
            where = getattr(module, "__file__", None) or module_name
            raise ConfigError(f"objective.path {self.path!r}: {where} defines no {class_name!r}.")
        if not (isinstance(cls, type) and issubclass(cls, Objective)):
            raise ConfigError(f"objective.path {self.path!r} is not a subclass of humanline.objectives.Objective.")
        kind = getattr(cls, "kind", None)
        if kind not in get_args(Kind):
            raise ConfigError(f"objective {self.path!r} has kind {kind!r}: expected one of {', '.join(get_args(Kind))}.")
        if cls.loss is Objective.loss:
            raise ConfigError(f"objective {self.path!r} has no method loss(ratio_BT, facts): expected one that returns a Loss.")
        try:
            return cls(**self.settings)
        except ConfigError:
            raise
        except Exception as error:  # so may its class
            raise ConfigError(f"objective.settings {self.settings!r} do not fit {self.path}: {error}.") from error


def require(condition: bool, name: str, value: object, expected: str) -> None:
    """Raise `ConfigError` naming the setting, its value and what was expected."""
    if not condition:
        raise ConfigError(f"objective.{name} is {value}: expected {expected}.")
