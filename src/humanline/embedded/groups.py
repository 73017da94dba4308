"""The packaged data set, and what other objectives make of it: pairs, labels and positives, each by one rule.

A group is one prompt with its n completions and their rewards, as one row of `groups.parquet`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humanline.embedded.files import write_text


@dataclass(frozen=True)
class RewardedGroup:
    """One prompt, n completions, n rewards."""

    prompt: str
    completions: tuple[str, ...]
    rewards: tuple[float, ...]


def read_groups(path: Path) -> list[RewardedGroup]:
    """The rows of a Parquet file with the columns prompt, completions and rewards."""
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(path).to_pylist()
    return [RewardedGroup(row["prompt"], tuple(row["completions"]), tuple(row["rewards"])) for row in rows]


def _best(group: RewardedGroup) -> int:
    return max(range(len(group.rewards)), key=group.rewards.__getitem__)


def pairs(groups: Iterable[RewardedGroup]) -> Iterator[dict[str, Any]]:
    """The best against the worst completion of each group; the earlier one among equals. Equal rewards give no pair."""
    for group in groups:
        best = _best(group)
        worst = min(range(len(group.rewards)), key=group.rewards.__getitem__)
        if group.rewards[best] > group.rewards[worst]:
            yield {"prompt": group.prompt, "chosen": group.completions[best], "rejected": group.completions[worst]}


def labels(groups: Iterable[RewardedGroup]) -> Iterator[dict[str, Any]]:
    """Every completion, desirable if its reward is above the mean of its group. Equal rewards say nothing and give no rows."""
    for group in groups:
        mean = sum(group.rewards) / len(group.rewards)
        if max(group.rewards) > min(group.rewards):
            for completion, reward in zip(group.completions, group.rewards, strict=True):
                yield {"prompt": group.prompt, "completion": completion, "label": reward > mean}


def positives(groups: Iterable[RewardedGroup]) -> Iterator[dict[str, Any]]:
    """The best completion of each group alone; the earlier one among equals."""
    for group in groups:
        yield {"prompt": group.prompt, "completion": group.completions[_best(group)]}


DERIVATIONS: dict[str, Callable[[Iterable[RewardedGroup]], Iterator[dict[str, Any]]]] = {
    "pairs": pairs,
    "labels": labels,
    "positives": positives,
}
"""by the name of the file that holds the result"""


def write_derived(groups: Sequence[RewardedGroup], folder: Path, names: Iterable[str]) -> None:
    """Write `folder/NAME.jsonl` for each derivation."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        write_text(folder / f"{name}.jsonl", "".join(json.dumps(row) + "\n" for row in DERIVATIONS[name](groups)))
