"""The micro-batches of each optimizer step on this process."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol

from humanline.data import batch
from humanline.data.batch import Bundle, MicroBatch
from humanline.data.plan import Plan, mismatch, share
from humanline.data.rows import EncodedGroup


class Source(Protocol):
    """Where the groups of a step come from: a file, or fresh samples."""

    def groups(self, t: int) -> list[tuple[int, EncodedGroup]]:
        """The groups of step t (from 1) over all processes, each with a number that is its own within the step."""
        ...

    @property
    def horizon(self) -> int:
        """The last step whose groups are known by now."""
        ...


class Rows:
    """Offline data: all groups are there, and `plan` says which make a step."""

    def __init__(self, groups: Seq[EncodedGroup], plan: Plan, last: int) -> None:
        self._groups, self._plan, self.horizon = groups, plan, last

    def groups(self, t: int) -> list[tuple[int, EncodedGroup]]:
        """See `Source`; the number is the row's place in the data."""
        return [(int(row), self._groups[row]) for row in self._plan.step(t)]


class Work(NamedTuple):
    """One process's part of an optimizer step."""

    train: list[MicroBatch]
    mismatched: list[MicroBatch]
    """KTO's (x_i, y_j≠i), every row of the step that has one; empty for other objectives"""


class Feed:
    """Steps → work. Nothing here has a state: the same source and step give the same work."""

    def __init__(self, source: Source, token_budget: int, mismatched: bool, rank: int = 0, world: int = 1) -> None:
        self.source, self.token_budget, self.mismatched = source, token_budget, mismatched
        self.rank, self.world = rank, world

    @property
    def horizon(self) -> int:
        """The last step that there is work for by now."""
        return self.source.horizon

    def work(self, t: int) -> Work:
        """What this process does at step t (from 1)."""
        groups = self.source.groups(t)
        crossed = _mismatched(groups) if self.mismatched else []
        return Work(self._micro_batches([batch.bundle(group, row) for row, group in groups]), self._micro_batches(crossed))

    def _micro_batches(self, bundles: list[Bundle]) -> list[MicroBatch]:
        if self.world > 1:
            parts = share([sum(sequence.length for sequence in group) for group in bundles], self.world)
            bundles = [bundles[i] for i in parts[self.rank]]
        return [batch.collate(packed) for packed in batch.pack(bundles, self.token_budget)]


def _mismatched(groups: list[tuple[int, EncodedGroup]]) -> list[Bundle]:
    partners = mismatch([group.prompt_key for _, group in groups])
    return [
        (batch.Sequence(group.prompt_ids, groups[j][1].completions[0], row, groups[j][0]),)
        for (row, group), j in zip(groups, partners, strict=False)
        if j >= 0
    ]
