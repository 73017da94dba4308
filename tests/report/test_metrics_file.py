"""metrics.jsonl in every state in which a run can leave it, and files that are not ours."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from humanline.errors import DataError
from humanline.report.metrics_file import read_metrics


@pytest.fixture
def write(tmp_path: Path):
    def make(text: str) -> Path:
        path = tmp_path / "metrics.jsonl"
        path.write_text(text)
        return path

    return make


def test_series_keep_their_steps_and_gaps(write) -> None:
    text = '{"step": 1, "loss": 0.5}\n{"step": 2, "loss": null, "eval_loss": 2}\n{"step": 4, "loss": 1e999}\n'
    metrics = read_metrics(write(text + '{"step": 5, "loss": 1' + 400 * "0" + "}\n"))
    assert (metrics.lines, metrics.last_step, metrics.notes) == (4, 5, ())
    assert metrics.series["loss"].steps.tolist() == [1, 2, 4, 5]
    assert metrics.series["loss"].values[0] == 0.5 and metrics.series["loss"].values[1:].tolist() == pytest.approx(
        [math.nan] * 3, nan_ok=True
    )
    assert metrics.series["eval_loss"].steps.tolist() == [2]
    assert metrics.last("eval_loss") == 2 and metrics.last("loss") is None and metrics.last("absent") is None


@pytest.mark.parametrize("torn", ['{"step": 3, "lo', '{"step": 3, "loss": 0.', "{", '{"step": 3, "loss": "\udcff'])
def test_a_torn_last_line_is_left_out_and_said(write, torn: str, tmp_path: Path) -> None:
    path = write('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.4}\n')
    with open(path, "ab") as file:
        file.write(torn.encode("utf-8", "surrogateescape"))
    metrics = read_metrics(path)
    assert metrics.last_step == 2
    assert metrics.notes == ("the last line of metrics.jsonl, after step 2, is cut off and left out",)


def test_a_whole_last_line_without_a_line_break_counts(write) -> None:
    assert read_metrics(write('{"step": 1, "loss": 0.5}')).last_step == 1


def test_an_empty_file_has_no_step(write) -> None:
    metrics = read_metrics(write(""))
    assert (metrics.lines, metrics.last_step, metrics.series) == (0, 0, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"loss": 1.2, "epoch": 0.1}\n', "metrics.jsonl:1: not a line of metrics as `humanline train` writes them: expected"),
        ('{"step": 1}\n{"step": 1.5}\n', "metrics.jsonl:2: not a line of metrics"),
        ('{"step": true}\n', "metrics.jsonl:1: not a line of metrics"),
        ("[1, 2]\n", "metrics.jsonl:1: not a line of metrics"),
        ('{"step": 1}\nstep 2 loss 0.3\n', "metrics.jsonl:2: not a line of JSON (Expecting value: line 1 column 1 (char 0))"),
        ('{"step": 7}\n{"step": 3}\n', "metrics.jsonl:2: step 3 comes after step 7: expected ascending steps of one run."),
    ],
)  # fmt: skip
def test_what_is_no_line_of_ours_is_an_error_with_its_place(write, text: str, message: str) -> None:
    with pytest.raises(DataError) as error:
        read_metrics(write(text))
    assert message in str(error.value)


def test_what_is_no_number_is_left_out_and_said(write) -> None:
    metrics = read_metrics(write('{"step": 1, "loss": 1, "phase": "warm"}\n{"step": 2, "loss": 1, "phase": "hot", "on": true}\n'))
    assert set(metrics.series) == {"loss"}
    assert metrics.notes == (
        "phase is not a number in 2 lines of metrics.jsonl, which are left out",
        "on is not a number in 1 line of metrics.jsonl, which are left out",
    )


def test_a_long_run_gives_a_page_no_larger_than_a_short_one(runs, tmp_path: Path) -> None:
    """100 × the steps: as many points drawn as fit the figure's budget, the extreme value among them, and what was done is said."""
    from humanline.report import inputs, page

    (tmp_path / "config.yaml").write_text((runs.plain[0] / "config.yaml").read_text())
    spike = 7.5
    with open(tmp_path / "metrics.jsonl", "w") as file:
        for step in range(1, 20_001):
            file.write(json.dumps({"step": step, "loss": spike if step == 777 else math.sin(step)}) + "\n")
    (section,) = [section for section in page.sections(inputs.read([tmp_path])) if section.title == "Training rows"]
    (chart,) = section.charts
    (trace,) = chart.traces
    assert trace["x"]["count"] == len(trace["y"]) == 800
    assert max(trace["high"]) == spike and min(trace["low"]) == pytest.approx(-1, abs=1e-3)
    assert "each point is the mean of up to 25 consecutive values" in chart.note
    assert chart.table.rows[0][1] == "20000" and chart.table.rows[0][5] == "7.500"
