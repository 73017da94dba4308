"""metrics.jsonl and the console table."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from humanline.errors import CheckpointError
from humanline.metrics import MetricsLog, duration, watch


def test_lines_are_json_and_the_table_shows_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """NaN becomes null in the file and a dash in the table; columns without a value are left out."""
    log = MetricsLog(tmp_path / "metrics.jsonl", every=2, total=4)
    for step in range(1, 5):
        log.write({"step": step, "loss": 0.5, "reward_desirable": math.nan, "clipped_low": 0.25, "lr": 1e-6})
    log.close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4] and rows[0]["reward_desirable"] is None
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["step", "loss", "r+", "lr", "low", "%", "ETA"]
    assert [line.split()[:5] for line in table[1:]] == [[f"{n}/4", "0.5000", "–", "1e-06", "25.00%"] for n in (2, 4)]


def test_going_on_drops_lines_of_steps_that_are_done_again(tmp_path: Path):
    """Lines 1 to 3 of 5 stay, and a torn last line goes; a broken line before that is an error that names it."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 6)) + '{"step": 6, "lo')
    MetricsLog(path, every=0, total=9, done=3).close()
    assert path.read_text().splitlines() == ['{"step": 1}', '{"step": 2}', '{"step": 3}']
    path.write_text('{"step": 1}\ngarbage\n{"step": 3}\n')
    with pytest.raises(CheckpointError, match=r"metrics.jsonl:2: not a line of metrics"):
        MetricsLog(path, every=0, total=9, done=3)


def test_sync_puts_every_line_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What fsync is given holds all lines so far."""
    path = tmp_path / "metrics.jsonl"
    seen: list[str] = []
    log = MetricsLog(path, every=0, total=4)
    log.write({"step": 1})
    monkeypatch.setattr("humanline.metrics.os.fsync", lambda number: seen.append(Path(f"/dev/fd/{number}").resolve().read_text()))
    log.sync()
    log.close()
    assert seen == ['{"step": 1}\n']


def test_lines_that_are_missing_are_named_in_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in (2, 3, 5, 9)))
    MetricsLog(path, every=0, total=20, done=9).close()
    assert capsys.readouterr().out == (
        f"warning: {path} lacks the lines of steps 1, 4, 6–8: they were done, but their metrics are lost.\n"
    )


def test_duration():
    assert [duration(seconds) for seconds in (0.4, 42, 725, 12011)] == ["0:00", "0:42", "12:05", "3:20:11"]


def test_watch_yields_every_step_and_tells_how_far_it_is(capsys: pytest.CaptureFixture[str]):
    assert list(watch(range(1, 5), "scoring", seconds=0)) == [1, 2, 3, 4]
    assert "scoring: 1/4 steps" in capsys.readouterr().out
