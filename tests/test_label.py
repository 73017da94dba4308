"""`humanline label`: pairs, labels and groups, with a count of everything made and left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from humanline import cli
from humanline.data.rows import Kind, Row
from humanline.data.schema import load_rows
from humanline.errors import CheckpointError, ConfigError, DataError
from humanline.label import LabelConfig, LabelResult, label

USER = {"role": "user", "content": "2 + 2?"}


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def group(*rewards: float | None, **columns: Any) -> dict[str, Any]:
    return {
        "prompt": "2 + 2?",
        "completions": [f"answer {number}" for number in range(len(rewards))],
        "rewards": rewards,
        **columns,
    }


def run(folder: Path, *records: dict[str, Any], **settings: Any) -> tuple[list[dict[str, Any]], LabelResult, list[str]]:
    """What is written, what is counted, and what is said."""
    said: list[str] = []
    data = write(folder / "scored.jsonl", *records)
    config = LabelConfig(data=str(data), out=str(folder / "made.jsonl"), overwrite=True, **settings)
    result = label(config, said.append)
    return [json.loads(line) for line in (folder / "made.jsonl").read_text().splitlines()], result, said


def pairs(folder: Path, *records: dict[str, Any], **settings: Any) -> list[tuple[str, str]]:
    made, _, _ = run(folder, *records, to="pairs", **settings)
    return [(record["chosen"][-1], record["rejected"][-1]) for record in made]


def labels(folder: Path, *records: dict[str, Any], **settings: Any) -> list[int]:
    made, _, _ = run(folder, *records, to="labels", **settings)
    return [int(record["label"]) for record in made]


def loaded(folder: Path, kind: Kind) -> list[Row]:
    return load_rows(folder / "made.jsonl", kind)[0]


# Pairs


def test_best_against_worst_and_of_equals_the_first(tmp_path: Path) -> None:
    assert pairs(tmp_path, group(0.5, 2.0, -1.0, 2.0, -1.0)) == [("1", "2")]


def test_all_pairs_whose_rewards_differ(tmp_path: Path) -> None:
    assert pairs(tmp_path, group(1.0, 0.0, 1.0), pairs="all") == [("0", "1"), ("2", "1")]


@pytest.mark.parametrize(("gap", "made"), [(0.1, 3), (0.2, 1), (0.15, 1), (0.05, 3)])
def test_pairs_are_at_least_the_gap_apart(tmp_path: Path, gap: float, made: int) -> None:
    """0.1, 0.2, 0.3: two pairs 0.1 apart (0.3 − 0.2 is 0.09999… in binary), one 0.2 apart."""
    assert len(pairs(tmp_path, group(0.1, 0.2, 0.3), pairs="all", gap=gap)) == made


def test_a_random_pair_follows_from_the_seed_and_the_row(tmp_path: Path) -> None:
    records = [group(1.0, 2.0, 3.0, 4.0) for _ in range(60)]
    drawn = pairs(tmp_path, *records, pairs="random", seed=1)
    assert drawn == pairs(tmp_path, *records, pairs="random", seed=1)
    assert drawn[:7] == pairs(tmp_path, *records[:7], pairs="random", seed=1)
    assert drawn != pairs(tmp_path, *records, pairs="random", seed=2)
    assert set(drawn) == {("1", "0"), ("2", "0"), ("3", "0"), ("2", "1"), ("3", "1"), ("3", "2")}


def test_what_gives_no_pair_is_counted_by_reason(tmp_path: Path) -> None:
    same = {"prompt": "Q", "completions": ["a", "a"], "rewards": [1.0, 0.0]}
    records = [group(1.0, 0.0, None), group(1.0, 1.0), group(1.0), group(None, None), group(0.05, 0.0), same]
    _, result, said = run(tmp_path, *records, to="pairs", gap=0.1)
    assert result.made == 1
    assert result.left_out == {
        "completions without a score": 3,
        "prompts with equal rewards": 1,
        "prompts with fewer than two usable completions": 2,
        "pairs closer than 0.1": 1,
        "pairs of identical completions": 1,
    }
    assert said[0] == f"{tmp_path / 'made.jsonl'}: 1 pairs from 1 of 6 prompts, rewards 1 to 1 apart (median 1)"
    assert "left out: completions without a score: 3 (first scored.jsonl:1)" in said
    assert "left out: prompts with equal rewards: 1 (scored.jsonl:2)" in said


def test_pairs_load_for_dpo_with_their_rewards_and_other_columns(tmp_path: Path) -> None:
    record = {
        "prompt": [USER],
        "completions": [[{"role": "assistant", "content": "4"}], [{"role": "assistant", "content": "5"}]],
        "rewards": [1.0, 0.0],
        "answer": "4",
        "scores": {"math": [1.0, 0.0]},
        "scorer": {"number": 0},
    }
    (made,), _, _ = run(tmp_path, record, to="pairs")
    assert (made["chosen_reward"], made["rejected_reward"], made["answer"]) == (1.0, 0.0, "4")
    assert not {"scores", "scorer", "completions", "rewards"} & set(made)
    (row,) = loaded(tmp_path, "pair")
    assert row.prompt == (USER,)
    assert [completion.text for completion in row.completions] == [({"role": "assistant", "content": text},) for text in "45"]


# Labels


def test_R30_a_threshold_is_a_number_and_no_row_is_lost(tmp_path: Path) -> None:
    assert labels(tmp_path, *(group(reward) for reward in (0, 1, 0, 1, 1)), threshold=0.5) == [0, 1, 0, 1, 1]
    assert labels(tmp_path, group(0, 1, 0, 1, 1), threshold=0.5) == [0, 1, 0, 1, 1]


@pytest.mark.parametrize(("equal", "expected"), [("desirable", [0, 1, 1]), ("undesirable", [0, 0, 1])])
def test_R30_a_reward_at_the_threshold_is_what_is_said(tmp_path: Path, equal: str, expected: list[int]) -> None:
    assert labels(tmp_path, group(0.0, 0.5, 1.0), threshold=0.5, equal=equal) == expected
    _, _, said = run(tmp_path, group(0.0, 0.5, 1.0), to="labels", threshold=0.5, equal=equal)
    sign = ">=" if equal == "desirable" else ">"
    assert said[0].endswith(
        f"3 labels from 1 of 1 prompts: {sum(expected)} desirable (reward {sign} 0.5), {3 - sum(expected)} undesirable"
    )


def test_without_a_threshold_the_mean_of_each_prompt_divides(tmp_path: Path) -> None:
    """Means 1 and 10 (the unscored one does not count); a prompt of equal rewards says nothing."""
    records = [group(0.0, 1.0, 2.0), group(9.0, 11.0, None), group(3.0, 3.0)]
    made, result, _ = run(tmp_path, *records, to="labels")
    assert [(record["reward"], record["label"]) for record in made] == [(0, False), (1, True), (2, True), (9, False), (11, True)]
    assert result.left_out == {"completions without a score": 1, "prompts whose completions all have the mean reward": 1}


@pytest.mark.parametrize(("threshold", "which"), [(0.0, "3 desirable"), (2.0, "0 desirable")])
def test_R30_labels_of_one_class_are_warned_about(tmp_path: Path, threshold: float, which: str) -> None:
    _, _, said = run(tmp_path, group(0.0, 0.5, 1.0), to="labels", threshold=threshold)
    assert which in said[0]
    assert "warning: all labels are the same, and KTO needs both: choose another --threshold." in said[0]


def test_labels_load_for_kto(tmp_path: Path) -> None:
    run(tmp_path, group(0.0, 1.0, level=3), to="labels")
    assert [(row.completions[0].text, row.feedback) for row in loaded(tmp_path, "label")] == [
        ("answer 0", (0.0,)),
        ("answer 1", (1.0,)),
    ]


# Groups


def test_groups_keep_what_the_sampler_stored_and_lose_the_unscored(tmp_path: Path) -> None:
    record = group(
        1.0,
        None,
        0.5,
        token_ids=[[1], [2], [3]],
        logprobs=[[-0.1], [-0.2], [-0.3]],
        finish_reason=["stop", "stop", "length"],
        level=2,
        prompt_ids=[7],
    )
    made, result, said = run(tmp_path, record, group(None), group(2.0, 2.0), to="groups")
    assert made[0] == {
        "level": 2,
        "prompt": "2 + 2?",
        "completions": ["answer 0", "answer 2"],
        "rewards": [1.0, 0.5],
        "completion_ids": [[1], [3]],
        "logprobs": [[-0.1], [-0.3]],
        "finished": [True, False],
        "prompt_ids": [7],
    }
    assert result.left_out == {"completions without a score": 2, "prompts without a scored completion": 1}
    assert said[0].endswith("2 groups from 2 of 3 prompts, 1 of them with equal rewards (advantage 0)")
    first, _ = loaded(tmp_path, "group")
    assert (first.feedback, first.prompt_ids) == ((1.0, 0.5), (7,))
    assert [(each.token_ids, each.logps, each.finished) for each in first.completions] == [
        ((1,), (-0.1,), True),
        ((3,), (-0.3,), False),
    ]


# All


def test_completions_cut_by_a_length_limit_are_left_out_where_they_would_pass_for_finished(tmp_path: Path) -> None:
    record = group(1.0, 0.0, 0.5, finished=[True, False, True])
    assert pairs(tmp_path, record) == [("0", "2")]
    assert pairs(tmp_path, record, cut="keep") == [("0", "1")]
    assert labels(tmp_path, record, threshold=0.2) == [1, 1]
    _, result, _ = run(tmp_path, record, to="labels", threshold=0.2)
    assert result.left_out == {"completions cut by a length limit": 1}
    made, _, _ = run(tmp_path, record, to="groups")
    assert len(made[0]["completions"]) == 3


def test_rewarded_completions_one_a_row_are_gathered_by_prompt(tmp_path: Path) -> None:
    records = [{"prompt": "Q", "completion": text, "reward": reward} for text, reward in (("a0", 0.0), ("a1", 1.0), ("a2", None))]
    made, result, _ = run(tmp_path, *records, to="pairs")
    assert [(record["chosen"], record["rejected"]) for record in made] == [("a1", "a0")]
    assert result.left_out == {"completions without a score": 1}


@pytest.mark.parametrize(
    ("record", "to", "message"),
    [
        (
            {"prompt": "Q", "chosen": "a", "rejected": "b"},
            "pairs",
            r"scored\.jsonl:1: row is a preference pair: expected a group of rewarded",
        ),
        (
            group(None, None),
            "pairs",
            r"scored\.jsonl:1: none of the 2 completions has a reward\.\n  They get them by `humanline score`",
        ),
        (
            group(1.0, 1.0),
            "pairs",
            r"none of 1 prompts gives pairs, so nothing is written:\n  left out: prompts with equal rewards: 1",
        ),
        (group(1.0, 1.0), "labels", r"none of 1 prompts gives labels, so nothing is written"),
        ({"prompt": "Q", "completions": ["a"]}, "pairs", r"scored\.jsonl:1: group has no 'rewards'"),
    ],
)
def test_data_that_gives_nothing_is_an_error(tmp_path: Path, record: dict[str, Any], to: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        run(tmp_path, record, to=to)
    assert not (tmp_path / "made.jsonl").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gap": -0.1}, r"gap is -0\.1: expected a number from 0 on"),
        ({"threshold": float("nan")}, r"threshold is nan: expected a finite number"),
        ({"seed": -1}, r"seed is -1: expected a whole number"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LabelConfig(**settings)


def test_an_existing_file_is_replaced_only_if_asked_for(tmp_path: Path) -> None:
    data = write(tmp_path / "scored.jsonl", group(1.0, 0.0))
    out = write(tmp_path / "made.jsonl", {"mine": 1})
    with pytest.raises(CheckpointError, match=r"made\.jsonl exists\. Add --overwrite to replace it"):
        label(LabelConfig(data=str(data), out=str(out)))
    with pytest.raises(ConfigError, match="which is the data: expected another file"):
        label(LabelConfig(data=str(data), out=str(data), overwrite=True))
    assert out.read_text() == '{"mine": 1}\n'


def test_the_verb_works_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "scored.jsonl", {"q": "2 + 2?", "completions": ["4", "5"], "rewards": [1, 0]})
    words = ["label", str(data), "--out", str(tmp_path / "made.jsonl"), "--to", "labels", "--threshold", "0.5"]
    assert cli.main([*words, "--rows.columns", "{prompt: q}"]) == 0
    assert "2 labels from 1 of 1 prompts: 1 desirable (reward >= 0.5), 1 undesirable" in capsys.readouterr().out
    assert cli.main([*words, "--rows.columns", "{prompt: q}"]) == 1
    assert cli.main(["label", str(data), "--out", "made.json"]) == 2


def test_real_groups_become_pairs_and_labels(real_data: Path, tmp_path: Path) -> None:
    """588 of the 1319 problems have four equal rewards."""
    data = str(real_data / "gsm8k" / "gsm8k_groups.jsonl")
    made = label(LabelConfig(data=data, out=str(tmp_path / "pairs.jsonl")), print)
    assert (made.made, made.left_out) == (731, {"prompts with equal rewards": 588})
    made = label(LabelConfig(data=data, out=str(tmp_path / "labels.jsonl"), to="labels", threshold=0.5), print)
    assert (made.made, made.left_out) == (4 * 1319, {})
    assert len(load_rows(tmp_path / "pairs.jsonl", "pair")[0]) == 731
    accuracy = sum(row.feedback[0] for row in load_rows(tmp_path / "labels.jsonl", "label")[0]) / (4 * 1319)
    assert accuracy == pytest.approx((0.217 + 0.390 + 0.347 + 0.563) / 4, abs=1e-3)
