"""samples*.jsonl: which rows are understood, and which prompts stand side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from humanline.errors import DataError
from humanline.report.samples import COMPLETIONS, LENGTH, PROMPTS, Completion, SampleFile, read_samples, side_by_side


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_of_sample_and_single_completions(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    rows = [
        {
            "prompt": "1+1=",
            "completions": ["2", "3"],
            "rewards": [1, None],
            "finish_reason": ["stop", "length"],
            "sampler": {"number": 0},
        },
        {"prompt": chat, "completion": [{"role": "assistant", "content": "Hello"}], "reward": 0.5},
        {"prompt": "1+1=", "completion": "two"},
    ]
    file = read_samples(write(tmp_path / "samples.jsonl", rows), "end")
    assert file.answers == {
        "1+1=": [Completion("2", 1, False), Completion("3", None, True), Completion("two", None, False)],
        "system:\nBe brief.\n\nuser:\nHi": [Completion("assistant:\nHello", 0.5, False)],
    }


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"completion": "x"}, "samples.jsonl:2: not a sample (KeyError: 'prompt')."),
        ({"prompt": "x"}, "samples.jsonl:2: not a sample (KeyError: 'completion')."),
        ({"prompt": "x", "completions": ["y", "z"], "rewards": [1]}, "samples.jsonl:2: not a sample (IndexError"),
        ({"prompt": 3, "completion": "x"}, "samples.jsonl:2: not a sample (TypeError"),
        ({"prompt": "x", "completion": "y", "reward": "good"}, ":2: not a sample (TypeError: reward is 'good', not a number)."),
    ],
)  # fmt: skip
def test_what_is_no_sample_is_named_with_its_line(tmp_path: Path, row: dict, message: str) -> None:
    with pytest.raises(DataError) as error:
        read_samples(write(tmp_path / "samples.jsonl", [{"prompt": "a", "completion": "b"}, row]), "end")
    assert message in str(error.value)


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "samples.jsonl", [{"prompt": "a", "completion": "b"}])
    path.write_text(path.read_text() + '{"prompt": "c", "comp')
    assert list(read_samples(path, "end").answers) == ["a"]


def answers(*prompts: str) -> dict[str, list[Completion]]:
    return {prompt: [Completion(f"of {prompt}", None, False)] for prompt in prompts}


def test_prompts_that_most_files_share_come_first_in_the_order_of_the_files() -> None:
    comparisons, note = side_by_side([SampleFile("start", answers("a", "b", "c")), SampleFile("end", answers("c", "b", "d"))])
    assert [comparison.prompt for comparison in comparisons] == ["b", "c"]
    assert [column.name for column in comparisons[0].columns] == ["start", "end"]
    assert note == "2 of 2 prompts that 2 of 2 files have in their first 500 lines, in file order."


def test_what_is_left_out_is_counted() -> None:
    many = {
        f"prompt {number}": [Completion("x" * (LENGTH + 7), None, False)] * (COMPLETIONS + 3) for number in range(PROMPTS + 5)
    }
    comparisons, note = side_by_side([SampleFile("end", many)])
    assert len(comparisons) == PROMPTS and note.startswith(f"{PROMPTS} of {PROMPTS + 5} prompts")
    (column,) = comparisons[0].columns
    assert len(column.completions) == COMPLETIONS and column.hidden == 3
    assert column.completions[0].text.endswith("x\n… (7 more characters)")


def test_no_files_no_samples() -> None:
    assert side_by_side([]) == ((), "")
