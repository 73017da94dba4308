"""Which rows make optimizer step t: a pure function of (seed, t), and of the rank for its share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from humanline import randomness
from humanline.errors import ConfigError


@dataclass(frozen=True)
class Plan:
    """Rows are visited epoch by epoch, `batch_size` a step; the last step of an epoch may be short."""

    rows: int
    """rows in the data, ≥ 1"""
    batch_size: int
    """groups per optimizer step over all processes"""
    seed: int
    shuffle: bool

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.rows / self.batch_size)

    def total_steps(self, steps: int | None, epochs: float) -> int:
        """`steps` if given, else what `epochs` passes take, rounded up, at least one."""
        if steps is not None:
            return steps
        if math.isinf(epochs * self.steps_per_epoch):
            raise ConfigError(f"epochs is {epochs}: expected a number of passes whose steps can be counted, e.g. 1.0.")
        return max(1, math.ceil(epochs * self.steps_per_epoch - 1e-9))

    def step(self, t: int) -> np.ndarray:
        """Row numbers (from 0) of step t (from 1), int64 [≤ batch_size]."""
        epoch, place = divmod(t - 1, self.steps_per_epoch)
        order = _epoch_order(self.rows, self.seed, epoch) if self.shuffle else np.arange(self.rows)
        return order[place * self.batch_size : (place + 1) * self.batch_size]


@lru_cache(maxsize=2)
def _epoch_order(rows: int, seed: int, epoch: int) -> np.ndarray:
    return randomness.generator(seed, "order", epoch).permutation(rows)


def mismatch(prompt_keys: Sequence[str]) -> list[int]:
    """KTO's pairing: for each row of a step, the row whose completion its prompt is paired with; [] if there is no such pairing.

    Rows sorted by prompt are shifted by the size of the largest block of equal prompts, so no row meets a completion of its own
    prompt whenever that is possible for all. Where one prompt has more than half of the rows, its surplus rows are left out (−1).
    """
    n = len(prompt_keys)
    order = sorted(range(n), key=lambda i: (prompt_keys[i], i))
    largest = max(Counter(prompt_keys).values(), default=0)
    if largest == n:
        return []
    partner = [-1] * n
    for place, i in enumerate(order):
        j = order[(place + largest) % n]
        if prompt_keys[i] != prompt_keys[j]:
            partner[i] = j
    return partner


def share(costs: Sequence[int], world: int) -> list[list[int]]:
    """Split the groups of a step over processes: longest first, each to the process with the least work so far."""
    loads = [0] * world
    parts: list[list[int]] = [[] for _ in range(world)]
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        lightest = loads.index(min(loads))
        parts[lightest].append(i)
        loads[lightest] += costs[i]
    return [sorted(part) for part in parts]
