"""The micro-batches of each optimizer step on this process."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from humanline.data import batch
from humanline.data.batch import Bundle, MicroBatch
from humanline.data.plan import Plan, mismatch, share
from humanline.data.rows import EncodedGroup


class Work(NamedTuple):
    """One process's part of an optimizer step."""

    train: list[MicroBatch]
    mismatched: list[MicroBatch]
    """KTO's (x_i, y_j≠i), every row of the step that has one; empty for other objectives"""


class Feed:
    """Steps → work. A pure function of (groups, plan, rank, world): nothing here has a state."""

    def __init__(
        self, groups: Seq[EncodedGroup], plan: Plan, token_budget: int, mismatched: bool, rank: int = 0, world: int = 1
    ) -> None:
        self.groups, self.plan, self.token_budget = groups, plan, token_budget
        self.mismatched, self.rank, self.world = mismatched, rank, world

    def work(self, t: int) -> Work:
        """What this process does at step t (from 1)."""
        rows = [int(row) for row in self.plan.step(t)]
        train = [batch.bundle(self.groups[row], row) for row in rows]
        crossed = self._mismatched(rows) if self.mismatched else []
        return Work(self._micro_batches(train), self._micro_batches(crossed))

    def _mismatched(self, rows: list[int]) -> list[Bundle]:
        partners = mismatch([self.groups[row].prompt_key for row in rows])
        return [
            (batch.Sequence(self.groups[row].prompt_ids, self.groups[rows[j]].completions[0], row, rows[j]),)
            for row, j in zip(rows, partners, strict=False)
            if j >= 0
        ]

    def _micro_batches(self, bundles: list[Bundle]) -> list[MicroBatch]:
        if self.world > 1:
            parts = share([sum(sequence.length for sequence in group) for group in bundles], self.world)
            bundles = [bundles[i] for i in parts[self.rank]]
        return [batch.collate(packed) for packed in batch.pack(bundles, self.token_budget)]
