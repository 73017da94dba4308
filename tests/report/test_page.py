"""The written page: complete, escaped, self-contained; and the command that writes it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from humanline import cli
from humanline.errors import CheckpointError
from humanline.report import inputs, page, write_report
from humanline.report.quantities import FIXED_WHEN_HELD_OUT, panels, title

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Outline(HTMLParser):
    """Checks the nesting and keeps what a test asks about."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, list[dict[str, str | None]]] = {}
        self.text: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.setdefault(tag, []).append(dict(attrs))
        if tag not in VOID:
            self.open.append(tag)
            self.text.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text[self.open[-1]][-1] += data


def outline(path: Path) -> Outline:
    parser = Outline()
    parser.feed(path.read_text(encoding="utf-8"))
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def written(runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(runs.all, tmp_path_factory.mktemp("page") / "report.html")


def test_every_metric_of_the_runs_is_in_a_figure(runs, written: Path) -> None:
    metrics = {name for run in runs.all for line in (run / "metrics.jsonl").read_text().splitlines() for name in json.loads(line)}
    metrics.remove("step")
    expected = [panel for found in panels(sorted(metrics)).values() for panel in found]
    assert metrics - {metric for panel in expected for metric, _ in panel.metrics} == FIXED_WHEN_HELD_OUT
    drawings = json.loads(next(text for text in outline(written).text["script"] if text.startswith("[")))
    curves = [drawing for drawing in drawings if drawing["kind"] == "lines"]
    assert [drawing["title"] for drawing in curves] == [panel.title for panel in expected]
    assert {
        "Reference age",
        "Share stopped by the limiter",
        "Loss (not progress)",
        "Spread of log-ratios",
        "Learning rate",
        "Gradient norm",
    } < {drawing["title"] for drawing in drawings}
    assert all(drawing["x"]["title"] and drawing["y"]["title"] for drawing in drawings)


def test_an_unknown_metric_gets_a_figure_of_its_own() -> None:
    assert [(section, panel.title, panel.unit) for section, found in panels(["hinge_gap"]).items() for panel in found] == [
        ("Other metrics", "Hinge gap", "hinge_gap")
    ]
    assert [title(name) for name in ("eval_reward_accuracy", "kl", "eval_loss", "pass@1")] == [
        "held-out reward accuracy", "KL to the reference", "held-out loss", "pass@1",
    ]  # fmt: skip


def test_figures_have_names_words_tables_and_buttons(written: Path) -> None:
    found = outline(written)
    figures, tables = len(found.seen["figure"]), len(found.seen["table"])
    assert figures >= 20 and tables > figures
    assert [entry["aria-labelledby"] for entry in found.seen["figure"]] == [
        entry["id"] for entry in found.seen["h3"] if entry.get("id")
    ]
    spoken = [entry["aria-label"] for entry in found.seen["div"] if entry.get("role") == "img"]
    assert len(spoken) == figures and all("The numbers are in the table below." in words for words in spoken)
    saves = [entry["data-save"] for entry in found.seen["button"] if "data-save" in entry]
    assert (saves.count("picture"), saves.count("figure"), saves.count("table")) == (figures, figures, tables)
    ids = [entry["id"] for entries in found.seen.values() for entry in entries if entry.get("id")]
    assert len(ids) == len(set(ids))
    assert {entry["href"] for entry in found.seen["a"]} == {f"#{entry['id']}" for entry in found.seen["section"] if "id" in entry}


def test_the_page_is_one_file_with_plotly_in_it_once(written: Path) -> None:
    found = outline(written)
    text = written.read_text(encoding="utf-8")
    assert not any(
        name in entry
        for tag in ("script", "link", "img", "iframe")
        for entry in found.seen.get(tag, [])
        for name in ("src", "href")
    )
    assert len(re.findall(r"plotly\.js v\d", text)) == 1
    policy = next(entry["content"] for entry in found.seen["meta"] if entry.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';") and "connect-src" not in policy and "unsafe-eval" not in policy
    assert written.stat().st_size < 7_000_000


def test_samples_and_settings_are_escaped(written: Path) -> None:
    found = outline(written)
    assert len(found.seen["script"]) == 3 and "img" not in found.seen
    prompts = [text for text in found.text["pre"] if "Question 0" in text]
    assert prompts == [
        "\nuser:\nQuestion 0 <script>document.title = 'taken over'</script><img src=x onerror=alert(1)> & \"quoted\""
    ]


def test_half_of_a_surrogate_pair_does_not_stop_the_page(runs, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs.plain[1], tmp_path / "run"))
    (run / "samples.jsonl").write_text('{"prompt": "\\ud83d", "completion": "\\u0000 ok"}\n')
    assert "Prompt 1" in outline(write_report([run])).text["h3"]


def test_a_run_that_was_stopped_is_said_at_the_top(runs, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs.plain[1], tmp_path / "run"))
    (run / "summary.json").write_text(json.dumps(json.loads((run / "summary.json").read_text()) | {"finished": False}))
    found = outline(write_report([run]))
    assert found.text["strong"] == ["run"] and found.text["li"][0].startswith(
        ": ended before it was done, after step 12 of 12; step-000010"
    )


def test_a_run_without_a_step_still_has_a_page(runs, tmp_path: Path) -> None:
    shutil.copy(runs.plain[0] / "config.yaml", tmp_path)
    found = outline(write_report([tmp_path]))
    assert "figure" not in found.seen and any("objective:" in text for text in found.text["pre"])
    assert ": ended before it was done, after step 0 of 12; it left no checkpoint" in found.text["li"]
    assert len(found.seen["script"]) == 2, "no figure, no Plotly"


# Writing


def test_the_page_of_a_run_lies_in_the_run_and_is_replaced(runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(shutil.copytree(runs.plain[1], tmp_path / "run"))
    assert cli.main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"report  {run / 'report.html'}\n"
    first = (run / "report.html").stat().st_ino
    assert cli.main(["report", str(run)]) == 0
    assert (run / "report.html").stat().st_ino != first and not list(run.glob(".report*"))
    assert cli.main(["report", str(run), str(runs.plain[0]), "--out", str(tmp_path / "deep" / "page.html")]) == 0
    assert (tmp_path / "deep" / "page.html").is_file()


def test_errors_are_one_line_and_leave_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report"]) == 2
    assert cli.main(["report", str(tmp_path)]) == 1
    assert cli.main(["report", str(tmp_path / "missing")]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in errors] == ["ConfigError", "CheckpointError", "CheckpointError"]
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_named(runs, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        CheckpointError, match=r"report .*file/page\.html cannot be written: .*\. Choose another file with --out\."
    ):
        write_report([runs.plain[0]], tmp_path / "file" / "page.html")


def test_a_page_that_could_not_be_finished_leaves_the_old_one(runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "page.html"
    out.write_text("the old page")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        write_report([runs.plain[0]], out)
    assert out.read_text() == "the old page"


def test_plotly_is_imported_only_when_a_page_is_written() -> None:
    code = (
        "import sys, humanline.report\nheavy = {'plotly', 'torch', 'jinja2', 'numpy'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_order_of_sections(runs) -> None:
    assert [section.title for section in page.sections(inputs.read(runs.all))] == [
        "Results", "Held-out rows", "Training rows", "Perception", "Optimizer", "Pace", "Wall-clock", "Capacity", "Samples", "Settings",
        "Environment",
    ]  # fmt: skip
