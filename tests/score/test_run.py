"""`humanline score`: from a file to the same file with rewards, in one go or in several."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from humanline import cli
from humanline.data.schema import load_rows
from humanline.errors import CheckpointError, ConfigError, ScoringError, ServerError
from humanline.flags import parse_score
from humanline.score import GSM8K, Function, Judge, Math, RewardModel
from humanline.score.config import RowsConfig, ScoreConfig
from humanline.score.run import score
from judge_server import Answer, grades, says, serving

REWARDS = """
def length(completion, **columns):
    if completion == "boom":
        raise RuntimeError("no length")
    return None if completion == "none" else len(completion)

def right(completion, answer):
    return completion == answer

def interrupt(completion):
    if completion == "stop":
        raise KeyboardInterrupt
    return 1.0
"""


@pytest.fixture
def functions(tmp_path: Path) -> str:
    """A file of reward functions."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    return str(tmp_path / "rewards.py")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(
        tmp_path / "samples.jsonl",
        {"prompt": "2 + 2?", "completions": ["4", "boom", "none"], "answer": "4", "level": {"name": "é😀"}},
        {
            "prompt": "3 + 4?",
            "completions": ["7", "77"],
            "answer": "7",
            "finish_reason": ["stop", "length"],
            "rewards": [None, None],
        },
    )


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(path: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def run(data: Path, *scorers: Any, **settings: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """What is said, and what is written."""
    said: list[str] = []
    config = ScoreConfig(data=str(data), out=str(data.with_name("scored.jsonl")), scorers=scorers, **settings)
    score(config, said.append)
    return said, read(config.out)


def test_rewards_are_added_and_no_column_is_lost(data: Path, functions: str) -> None:
    said, rows = run(data, Function(path=f"{functions}:length", weight=2.0), Function(path=f"{functions}:right"))
    assert [row["rewards"] for row in rows] == [[3.0, None, None], [3.0, 4.0]]
    assert [row["scores"] for row in rows] == [
        {"length": [1.0, None, None], "right": [1.0, 0.0, 0.0]},
        {"length": [1.0, 2.0], "right": [1.0, 0.0]},
    ]
    assert rows[0]["score_notes"] == {"length": [None, "raised: RuntimeError: no length (rewards.py:4)", "None"]}
    for row, record in zip(rows, read(data), strict=True):
        assert {name: row[name] for name in record if name != "rewards"} == {
            name: record[name] for name in record if name != "rewards"
        }
    assert said[1:] == [
        "length: scored 3 of 5, mean 1.333",
        "  raised: 1 (samples.jsonl:1: RuntimeError: no length (rewards.py:4))",
        "  None: 1 (samples.jsonl:1)",
        "right: scored 5 of 5, mean 0.400",
        "reward: scored 3 of 5, mean 3.333",
        "  unscored by length: 2 (first samples.jsonl:1: raised)",
        "1 of 5 completions (20%) were cut by a length limit",
        f"done: {data.with_name('scored.jsonl')}",
    ]


def test_R26_the_output_loads_as_groups_whose_unscored_completions_stay_so(data: Path, functions: str) -> None:
    run(data, Function(path=f"{functions}:length"))
    rows, _ = load_rows(data.with_name("scored.jsonl"), "group")
    assert [row.feedback for row in rows] == [(1.0, None, None), (1.0, 2.0)]
    assert [completion.finished for completion in rows[1].completions] == [True, False]


def test_R26_on_error_zero_and_raise(data: Path, functions: str) -> None:
    said, rows = run(data, Function(path=f"{functions}:length", on_error="zero"))
    assert rows[0]["rewards"] == [1.0, 0.0, 0.0]
    assert "length: scored 5 of 5, 2 of them as 0 by on_error, mean 0.800" in said
    data.with_name("scored.jsonl").unlink()
    with pytest.raises(
        ScoringError, match=r"samples\.jsonl:1: length cannot score it: raised: .*no length.*\n.*\n  0 of 2 rows are kept"
    ):
        run(data, Function(path=f"{functions}:length", on_error="raise"))


def test_a_single_completion_gets_a_reward(tmp_path: Path, functions: str) -> None:
    data = write(tmp_path / "answers.jsonl", {"prompt": "2 + 2?", "completion": "four"}, {"prompt": "2 + 2?", "completion": "4"})
    _, rows = run(data, Function(path=f"{functions}:length"))
    assert [row["reward"] for row in rows] == [4.0, 1.0]
    groups, _ = load_rows(tmp_path / "scored.jsonl", "group")
    assert [group.feedback for group in groups] == [(4.0, 1.0)]


def test_R45_a_warning_when_most_completions_are_cut(tmp_path: Path, functions: str) -> None:
    data = write(tmp_path / "samples.jsonl", {"prompt": "Q", "completions": ["a", "b", "c"], "finished": [False, True, False]})
    said, _ = run(data, Function(path=f"{functions}:length"))
    assert (
        "warning: 2 of 3 completions (67%) were cut by a length limit before they ended, and were scored without their end. "
        in "".join(said)
    )
    assert "Sample again with a larger --max-new-tokens." in "".join(said)


def test_columns_are_renamed_and_written_under_the_names_that_load(tmp_path: Path, functions: str) -> None:
    data = write(tmp_path / "samples.jsonl", {"question": "2 + 2?", "code": ["4", "four"], "gt": "4"})
    rows = RowsConfig(columns={"prompt": "question", "completions": "code"})
    _, written = run(data, Function(path=f"{functions}:length"), rows=rows)
    assert {"prompt", "completions", "gt", "rewards"} <= set(written[0])
    assert load_rows(tmp_path / "scored.jsonl", "group")[0][0].prompt == "2 + 2?"


def test_parquet_dates_become_text_and_nothing_else_changes(tmp_path: Path, functions: str) -> None:
    import datetime

    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(
        pa.table({"prompt": ["Q"], "completions": [["a", "bb"]], "made": [datetime.date(2025, 1, 2)]}),
        tmp_path / "samples.parquet",
    )
    _, rows = run(tmp_path / "samples.parquet", Function(path=f"{functions}:length"))
    assert (rows[0]["made"], rows[0]["rewards"]) == ("2025-01-02", [1.0, 2.0])


# Several parts of a run


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, functions: str, capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"prompt": f"Q{number}", "completions": ["a", "b"]} for number in range(5)]
    data = write(tmp_path / "samples.jsonl", *records[:3], {**records[3], "completions": ["stop", "b"]}, records[4])
    out = tmp_path / "scored.jsonl"
    words = [
        "score",
        str(data),
        "--out",
        str(out),
        "--scorer.name",
        "function",
        "--scorer.path",
        f"{functions}:interrupt",
        "--chunk",
        "2",
    ]
    assert cli.main(words) == 130
    assert "2 of 5 rows are kept in" in capsys.readouterr().out
    assert not out.exists()
    kept = read(tmp_path / "scored.partial.jsonl")
    # What is there is not scored again: the function would now interrupt at the first row.
    write(data, *records)
    assert cli.main(words) == 1
    assert "Add --resume to score what it lacks" in capsys.readouterr().err
    assert cli.main([*words, "--resume"]) == 0
    assert read(out)[:2] == kept
    assert [row["prompt"] for row in read(out)] == [record["prompt"] for record in records]
    assert not (tmp_path / "scored.partial.jsonl").exists()


def test_R39_resuming_tries_again_what_failed_and_nothing_else(tmp_path: Path) -> None:
    data = write(
        tmp_path / "samples.jsonl", *({"prompt": f"Q{number}?", "completions": [f"Answer {number}."]} for number in range(6))
    )

    def failing(number: int, body: dict[str, Any]) -> Answer:
        return says("?") if "Answer 2." in body["messages"][0]["content"] else grades(5)

    with serving(failing) as server:
        said, rows = run(data, Judge(model="stub", base_url=server.url))
    assert [row["rewards"] for row in rows] == [[5.0], [5.0], [None], [5.0], [5.0], [5.0]]
    assert "judge: scored 5 of 6, mean 5.000" in said
    assert (tmp_path / "scored.judge.jsonl").exists()
    with serving(lambda *_: grades(9)) as server:
        said, rows = run(data, Judge(model="stub", base_url=server.url), resume=True)
        assert len(server.bodies) == 2
    assert [row["rewards"] for row in rows] == [[5.0], [5.0], [9.0], [5.0], [5.0], [5.0]]
    assert "judge: scored 6 of 6, mean 5.667" in said


def test_R42_a_server_that_dies_leaves_rows_to_go_on_from(tmp_path: Path) -> None:
    data = write(
        tmp_path / "samples.jsonl", *({"prompt": f"Q{number}?", "completions": [f"Answer {number}."]} for number in range(30))
    )
    with serving(lambda number, _: grades(5) if number <= 12 else Answer(None)) as server:
        judge = Judge(model="stub", base_url=server.url, concurrency=2, retries=0, backoff=0.0)
        with pytest.raises(
            ServerError,
            match=r"stopped answering.*\n.*\n  15 of 30 rows are kept in .*scored\.partial\.jsonl\. Go on with --resume",
        ):
            run(data, judge, chunk=5)
    with serving(lambda *_: grades(7)) as server:
        _, rows = run(data, Judge(model="stub", base_url=server.url), resume=True)
        assert len(server.bodies) == 1 + 30 - 12
    assert [row["rewards"][0] for row in rows] == [5.0] * 12 + [7.0] * 18


def test_rows_of_other_settings_data_or_code_are_not_mixed(data: Path, functions: str) -> None:
    run(data, Function(path=f"{functions}:length"))
    with pytest.raises(
        CheckpointError, match=r"scored\.jsonl:1: scored with other settings.*\n  length\.weight: 1\.0 then, 3\.0 now\n"
    ):
        run(data, Function(path=f"{functions}:length", weight=3.0), resume=True)
    Path(functions).write_text(REWARDS + "# edited\n")
    with pytest.raises(CheckpointError, match=r"length\.source: \w+ then, \w+ now"):
        run(data, Function(path=f"{functions}:length"), resume=True)
    Path(functions).write_text(REWARDS)
    records = read(data)
    write(data, {**records[0], "completions": ["5", "6", "7"]}, records[1])
    with pytest.raises(CheckpointError, match=r"scored\.jsonl:1: is of row 1, which the data no longer holds as it was scored"):
        run(data, Function(path=f"{functions}:length"), resume=True)
    write(data.with_name("scored.jsonl"), records[0])
    with pytest.raises(CheckpointError, match=r"scored\.jsonl:1: not a row that `humanline score` wrote"):
        run(data, Function(path=f"{functions}:length"), resume=True)


def test_new_rows_at_the_end_are_scored_and_the_rest_is_kept(tmp_path: Path, functions: str) -> None:
    data = write(tmp_path / "samples.jsonl", {"prompt": "Q", "completions": ["a"]})
    _, first = run(data, Function(path=f"{functions}:length"))
    write(data, {"prompt": "Q", "completions": ["a"]}, {"prompt": "R", "completions": ["bb"]})
    _, rows = run(data, Function(path=f"{functions}:length"), resume=True)
    assert rows[0] == first[0]
    assert [row["rewards"] for row in rows] == [[1.0], [2.0]]


def test_a_torn_last_line_is_scored_again(data: Path, functions: str) -> None:
    _, whole = run(data, Function(path=f"{functions}:right"))
    partial = data.with_name("scored.partial.jsonl")
    data.with_name("scored.jsonl").rename(partial)
    partial.write_text(partial.read_text()[:-20])
    _, rows = run(data, Function(path=f"{functions}:right"), resume=True)
    assert rows == whole


def test_nothing_scored_is_an_error_and_leaves_nothing(data: Path) -> None:
    with pytest.raises(
        ScoringError,
        match=r"none of the completions could be scored, so nothing is written:\n  math: scored 0 of 5\n    no gold answer: 5 ",
    ):
        run(data, Math(gold="target"))
    assert not list(data.parent.glob("scored*"))


# The command line


def test_the_flags_are_those_of_the_chosen_scorer() -> None:
    parsed = parse_score(
        "d.jsonl --out o.jsonl --scorer.name gsm8k --scorer.style flexible --scorer.weight 2 --rows.limit-rows 3".split()
    )
    assert parsed == ScoreConfig(
        "d.jsonl", "o.jsonl", scorers=(GSM8K(style="flexible", weight=2.0),), rows=RowsConfig(limit_rows=3)
    )
    assert parse_score(["d.jsonl", "--out", "o.jsonl"]).scorers == (Math(),)
    parsed = parse_score("d --out o --scorer.name reward_model --scorer.model m --scorer.head 2 --stop <a> <b>".split())
    assert (parsed.scorers, parsed.stop) == ((RewardModel(model="m", head=2),), ("<a>", "<b>"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--scorer.name maths", r"--scorer\.name is 'maths'\. Did you mean 'math'\? Expected one of function, math, gsm8k"),
        ("--scorer.style strict", r"--scorer\.style does not apply to scorer math: it is a setting of gsm8k"),
        ("--scorers f.yaml --scorer.weight 2", r"--scorer\.weight and --scorers are given: expected one of them"),
        ("--chunk 0", r"chunk is 0: expected a whole number from 1 on"),
    ],
)
def test_wrong_flags_are_explained(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_score(["d.jsonl", "--out", "o.jsonl", *words.split()])


def test_a_value_out_of_range_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_score(["d.jsonl", "--out", "o.jsonl", "--scorer.limit", "0"])
    assert end.value.code == 2
    printed = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "scorer.limit is 0.0: expected seconds above 0, e.g. 5.0." in printed


def test_several_scorers_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "scorers.yaml"
    file.write_text("scorers:\n  - name: math\n    weight: 8\n  - {name: function, path: 'f:g', on_error: zero}\n")
    parsed = parse_score(["d.jsonl", "--out", "o.jsonl", "--scorers", str(file)])
    assert parsed.scorers == (Math(weight=8.0), Function(path="f:g", on_error="zero"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "scorers:\n  - name: maths\n",
            r"scorers\.yaml:2: scorers\[0\]\.name is maths: expected one of function, math, .*Did you mean 'math'\?",
        ),
        ("scorers:\n  - weight: 1\n", r"scorers\.yaml:2: scorers\[0\] has no 'name'"),
        ("scorers: math\n", r"scorers\.yaml:1: scorers is math: expected a list, each item with a name"),
        ("scorers:\n  - name: math\n    weight: heavy\n", r"scorers\.yaml:3: scorers\[0\]\.weight is heavy: expected a number"),
        (
            "scorers:\n  - name: math\n    precision: 0\n",
            r"scorers\.yaml:\d: scorer\.precision is 0: expected a whole number from 1 on",
        ),
        (
            "scorers:\n  - name: math\n    golden: x\n",
            r"scorers\.yaml:3: scorers\[0\]\.golden is not a setting\. Did you mean 'gold'\?",
        ),
    ],
)
def test_a_wrong_file_is_explained_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "scorers.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        parse_score(["d.jsonl", "--out", "o.jsonl", "--scorers", str(file)])


@pytest.mark.parametrize(
    ("data", "out", "message"),
    [
        ("", "o.jsonl", "data is empty"),
        ("d.jsonl", "", "out is empty"),
        ("d.jsonl", "o.json", r"out is o\.json: expected a name that ends in \.jsonl"),
    ],
)
def test_data_and_out_are_needed(data: str, out: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        score(ScoreConfig(data=data, out=out))


def test_the_output_is_not_the_data(data: Path) -> None:
    with pytest.raises(ConfigError, match="which is the data: expected another file"):
        score(ScoreConfig(data=str(data), out=str(data)))


def test_the_verb_works_from_the_command_line(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = data.with_name("scored.jsonl")
    assert cli.main(["score", str(data), "--out", str(out), "--scorer.name", "gsm8k", "--scorer.style", "flexible"]) == 0
    assert [row["rewards"] for row in read(out)] == [[1.0, 0.0, 0.0], [1.0, 0.0]]
    assert "gsm8k: scored 5 of 5, mean 0.400" in capsys.readouterr().out


def test_parsing_flags_needs_no_torch() -> None:
    import subprocess

    code = (
        "import sys\nfrom humanline.flags import parse_score\nparse_score(['d', '--out', 'o', '--scorer.name', 'judge'])\n"
        "heavy = {'openai', 'sympy', 'math_verify', 'transformers'} & set(sys.modules)\nassert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
