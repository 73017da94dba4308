"""Pairs, labels and positives that are derived from rewarded groups."""

from __future__ import annotations

import json
from pathlib import Path

from humanline.embedded.groups import RewardedGroup, labels, pairs, positives, write_derived

MIXED = RewardedGroup("p", ("a", "b", "c", "d"), (0.5, -1.0, 2.0, 0.1))
TIED = RewardedGroup("q", ("e", "f", "g", "h"), (1.0, 0.0, 1.0, 0.0))
EQUAL = RewardedGroup("r", ("i", "j"), (0.3, 0.3))


def test_pairs_are_best_against_worst_and_the_earlier_of_equals() -> None:
    assert list(pairs([MIXED, TIED])) == [
        {"prompt": "p", "chosen": "c", "rejected": "b"},
        {"prompt": "q", "chosen": "e", "rejected": "f"},
    ]


def test_labels_split_at_the_group_mean() -> None:
    """The mean of MIXED is 0.4: 0.5 and 2.0 are above it, −1.0 and 0.1 are not."""
    assert [(row["completion"], row["label"]) for row in labels([MIXED])] == [
        ("a", True),
        ("b", False),
        ("c", True),
        ("d", False),
    ]
    assert {row["prompt"] for row in labels([MIXED])} == {"p"}


def test_equal_rewards_give_neither_pairs_nor_labels() -> None:
    assert list(pairs([EQUAL])) == [] and list(labels([EQUAL])) == []


def test_positives_are_the_best_of_each_group() -> None:
    assert list(positives([MIXED, TIED])) == [{"prompt": "p", "completion": "c"}, {"prompt": "q", "completion": "e"}]


def test_derived_files_hold_the_rows_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_derived([MIXED, TIED], tmp_path / "data", ["pairs", "labels"])
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["labels.jsonl", "pairs.jsonl"]
    rows = [json.loads(line) for line in (tmp_path / "data" / "pairs.jsonl").read_text().splitlines()]
    assert rows == list(pairs([MIXED, TIED]))
