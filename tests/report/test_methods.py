"""Which runs are one method, what it is called, and what it came to."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from humanline.errors import CheckpointError, ConfigError, DataError
from humanline.report import inputs, page, write_report
from humanline.report.methods import differences, group, short_name, unique
from humanline.report.results_file import read_results
from humanline.report.run_folder import Run, read_run
from humanline.report.thin import Series


def changed(run: Run, **settings: object) -> Run:
    return dataclasses.replace(run, settings=run.settings | {key.replace("__", "."): value for key, value in settings.items()})


def without_evaluation(run: Run) -> Run:
    kept = {name: series for name, series in run.metrics.series.items() if not name.startswith("eval_")}
    return dataclasses.replace(run, metrics=dataclasses.replace(run.metrics, series=kept))


def table(paths: list[Path], title: str) -> dict[str, dict[str, str]]:
    """{first column: {column: cell}} of a table on the page."""
    tables = [found for section in page.sections(inputs.read(paths)) for found in section.tables if found.title == title]
    assert len(tables) == 1
    return {row[0]: dict(zip(tables[0].columns, row, strict=True)) for row in tables[0].rows}


def last_lines(runs: tuple[Path, ...]) -> list[dict]:
    return [json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]) for run in runs]


def test_seeds_of_one_config_are_one_method_in_the_order_of_naming(runs) -> None:
    methods = group([read_run(folder) for folder in (runs.humanline[1], runs.plain[0], runs.humanline[0], runs.plain[1])])
    assert [method.title for method in methods] == ["dpo, clip [-0.2, 0.2], k 3, lr 0.01", "dpo, lr 0.01"]
    assert [[entry.seed for entry in method.entries] for method in methods] == [[0, 1], [0, 1]]


def test_any_other_setting_makes_another_method(runs) -> None:
    run = read_run(runs.humanline[0])
    same = [changed(run, seed=5, out="elsewhere", device="cuda", micro_batch_tokens=9, log__every=3, checkpoint__keep=1)]
    assert len(group([run, *same])) == 1
    for other in (
        dict(objective__beta=0.2),
        dict(limit__low=-1.0),
        dict(sync_every=4),
        dict(model="m"),
        dict(data="d"),
        dict(steps=13),
    ):
        assert len(group([run, changed(run, **other)])) == 2, other


def test_a_single_run_is_called_by_its_directory() -> None:
    folders = [Path("/runs/a/dpo"), Path("/runs/b/dpo"), Path("/runs/b/kto")]
    assert [short_name(folder, folders) for folder in folders] == ["a/dpo", "b/dpo", "kto"]
    assert unique(["x", "y", "x"]) == ["x (1)", "y", "x (2)"]


def test_results_are_the_newest_held_out_values_over_seeds(runs) -> None:
    """Mean ± std and Welch's p against the first method, from the last lines of the files themselves."""
    rows = table(runs.all, "Results by method")
    plain, humanline = (
        np.array([line["eval_reward_margin"] for line in last_lines(folders)]) for folders in (runs.plain, runs.humanline)
    )
    for title, values in (("dpo, lr 0.01", plain), ("dpo, clip [-0.2, 0.2], k 3, lr 0.01", humanline)):
        row = rows[title]
        mean, std = (float(part) for part in row["held-out reward margin"].replace("−", "-").split(" ± "))
        assert row["seeds"] == "2"
        assert mean == pytest.approx(values.mean(), abs=0.02) and std == pytest.approx(values.std(ddof=1), rel=0.05)
    from humanline.report.statistics import welch

    columns = list(rows["dpo, lr 0.01"])
    assert columns[:2] == ["method", "seeds"] and "p" in columns and "seconds" in columns
    (contents,) = [section for section in page.sections(inputs.read(runs.all)) if section.title == "Results"]
    header = contents.tables[0].columns
    second = contents.tables[0].rows[1]
    position = header.index("held-out reward margin") + 2
    assert header[position] == "p" and second[position] == f"{welch(list(humanline), list(plain)):.2g}"
    assert "against dpo, lr 0.01, two-sided" in contents.tables[0].note
    assert contents.note.startswith("Newest values. Held-out rows")


def test_a_held_out_number_that_never_moves_is_of_the_file_and_left_out(runs) -> None:
    run = read_run(runs.plain[0])
    series = run.metrics.series["eval_reward_accuracy"]
    still = series._replace(values=np.full(len(series.values), 0.25))
    fixed = dataclasses.replace(
        run, metrics=dataclasses.replace(run.metrics, series=run.metrics.series | {"eval_reward_accuracy": still})
    )
    assert "eval_reward_accuracy" in group([run])[0].entries[0].values
    assert "eval_reward_accuracy" not in group([fixed])[0].entries[0].values
    assert "eval_reward_accuracy" in group([fixed, changed(run, steps=13)])[0].entries[0].values, "it moves in another run"


def test_scores_of_fresh_samples_come_first(runs) -> None:
    run = read_run(runs.plain[0])
    steps = np.array([1.0, 5.0, 9.0])
    fresh = {"rollout_reward": Series(steps, np.array([0.2, 0.4, 0.6])), "rollout_length": Series(steps, np.full(3, 7.0))}
    sampled = dataclasses.replace(run, metrics=dataclasses.replace(run.metrics, series=run.metrics.series | fresh))
    values = group([sampled])[0].entries[0].values
    assert next(iter(values)) == "rollout_reward" and values["rollout_reward"] == 0.6 and "rollout_length" not in values


def test_without_held_out_rows_the_last_tenth_of_training_stands_in(runs) -> None:
    """12 steps: steps 11 and 12."""
    run = without_evaluation(read_run(runs.plain[0]))
    lines = [json.loads(line) for line in (runs.plain[0] / "metrics.jsonl").read_text().splitlines()]
    expected = np.mean([line["reward_margin"] for line in lines[10:]])
    assert group([run])[0].entries[0].values["reward_margin"] == pytest.approx(expected)


def test_settings_that_differ_stand_side_by_side(runs) -> None:
    found = differences(group([read_run(folder) for folder in runs.all]))
    assert found == {
        "limit.name": ("off", "clip"),
        "limit.low": ("–", "-0.2"),
        "limit.high": ("–", "0.2"),
        "sync_every": ("null", "3"),
    }


# Files of results


COMPARED = {
    "format": "humanline-compare-1",
    "methods": {"offline": {"title": "DPO offline", "settings": {"lr": 0.1}}, "online": {"title": "DPO online", "settings": {"lr": 0.2}}},
    "runs": [
        {
            "method": method, "seed": seed, "steps": 64, "pass@1": 0.5 + shift + seed / 100,
            "seconds": {"train": 3.0 + seed, "sampling": 10 * shift},
        }
        for method, shift in (("offline", 0.0), ("online", 0.3))
        for seed in (0, 1, 2)
    ],
    "start": {"pass@1": 0.42},
    "settings": {"quick": True, "model": "tiny"},
    "versions": {"torch": "2.13"},
    "machine": {"cores": 2},
}  # fmt: skip


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(COMPARED))
    return path


def test_a_comparison_of_methods_and_seeds(compared: Path) -> None:
    """pass@1 0.5, 0.51, 0.52 against 0.8, 0.81, 0.82: 0.510 ± 0.010, half interval 4.302653 · 0.01/√3 = 0.0248."""
    rows = table([compared.parent], "Results by method")
    assert list(rows) == ["start model", "DPO offline", "DPO online"]
    assert rows["start model"]["pass@1"] == "0.4200"
    assert rows["DPO offline"]["pass@1"] == "0.510 ± 0.010" and rows["DPO online"]["pass@1"] == "0.810 ± 0.010"
    results = read_results(compared)
    assert results.methods[1].entries[0].values == {"pass@1": 0.8, "seconds": 6.0}
    sections = {section.title: section for section in page.sections(inputs.read([compared]))}
    assert sections["Results"].tables[0].rows[1][3] == "0.485 … 0.535"
    assert sections["Wall-clock"].charts[0].table.rows == (
        ("DPO offline", "0.000", "4.000", "4.000"),
        ("DPO online", "3.000", "4.000", "7.000"),
    )
    assert sections["Settings"].tables[0].rows == (("lr", "0.1", "0.2"),)
    assert sections["Environment"].tables[0].rows == (("torch", "2.13"), ("cores", "2"))
    assert inputs.read([compared]).notes == (
        (compared.parent.name, "a quick run, which shows that everything works: its numbers mean nothing"),
    )


def test_training_curves_come_from_the_folders_that_results_name(runs, compared: Path) -> None:
    (compared.parent / "runs").mkdir()
    (compared.parent / "runs" / "a").symlink_to(runs.plain[0])
    (compared.parent / "runs" / "b").mkdir()
    (compared.parent / "runs" / "b" / "run").symlink_to(runs.plain[1])
    content = COMPARED | {
        "runs": [{"method": "offline", "seed": seed, "pass@1": 1, "folder": f"runs/{name}"} for seed, name in enumerate("abc")]
    }
    compared.write_text(json.dumps(content))
    contents = inputs.read([compared])
    assert [entry.run is not None for entry in contents.methods[0].entries] == [True, True, False]
    assert [note for _, note in contents.notes][
        1
    ] == f"without the training curves of 1 runs: {compared.parent}/runs/c … holds no run directory"
    titles = [section.title for section in page.sections(contents)]
    assert titles[:3] == ["Results", "Held-out rows", "Training rows"]


def test_what_the_demo_writes_can_be_shown(tmp_path: Path) -> None:
    from humanline.embedded.methods import METHODS
    from humanline.embedded.results import as_json, summarise

    chosen = [METHODS["grpo"], METHODS["grpo-humanline"]]
    made = [
        {
            "method": method.name, "seed": seed, "utility": 0.5 + number + seed / 10, "win_rate": 0.6,
            "steps": 6, "seconds": 2.5, "cpu_seconds": 2.0,
        }
        for number, method in enumerate(chosen)
        for seed in (0, 1, 2)
    ]  # fmt: skip
    settings = {"quick": False, "seeds": 3, "steps": 6}
    (tmp_path / "results.json").write_text(as_json(summarise(chosen, made, 0.15, settings)))
    rows = table([tmp_path], "Results by method")
    assert rows["GRPO offline"]["utility"] == "0.60 ± 0.10" and rows["GRPO offline + humanline"]["utility"] == "1.60 ± 0.10"
    assert rows["start model"]["utility"] == "0.1500"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "results.json: the document: Invalid JSON"),
        ("[]", "results.json: the document: Input should be an object. Expected results of `humanline demo` or `humanline compare`;"),
        ('{"format": "lm-eval"}', "results.json: format: String should match pattern '^humanline-'"),
        ('{"format": "humanline-compare-1", "methods": {}}', "results.json: runs: Field required"),
        ('{"format": "humanline-compare-1", "methods": {"a": {}}, "runs": []}', "results.json: runs: List should have at least 1 item"),
        (
            '{"format": "humanline-compare-1", "methods": {"a": {}}, "runs": [{"method": "b"}]}',
            "results.json: runs.0 is of method 'b': expected one of a.",
        ),
        (
            '{"format": "humanline-compare-1", "methods": {"a": {}}, "runs": [{"method": "a", "seed": "first"}]}',
            "results.json: runs.0.seed: Input should be a valid integer",
        ),
        ('{"format": "humanline-compare-1", "methods": {"a": {"settings": null}}, "runs": []}', "methods.a.settings: Input should be"),
    ],
)  # fmt: skip
def test_other_files_are_an_error_that_says_what_was_expected(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(DataError) as error:
        read_results(tmp_path / "results.json")
    assert message in str(error.value)


# Paths


def test_paths_that_do_not_fit(runs, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run was named"):
        write_report([])
    with pytest.raises(
        ConfigError, match=r"2 runs were named: expected a file for their common report\. Add `--out report\.html`\."
    ):
        write_report(runs.plain)
    with pytest.raises(
        CheckpointError, match=r"plainn-0 does not exist\. Did you mean 'plain-0'\? Expected a run directory or a results\.json\."
    ):
        write_report([runs.plain[0].with_name("plainn-0")])
    with pytest.raises(
        CheckpointError, match=r"metrics\.jsonl is a file: expected a run directory or a results\.json\. Name the directory"
    ):
        write_report([runs.plain[0] / "metrics.jsonl"])
    assert not list(tmp_path.iterdir())


def test_a_folder_of_inspect_shows_its_curves(runs, tmp_path: Path) -> None:
    (tmp_path / "perception.json").write_text((runs.plain[0] / "perception.json").read_text())
    sections = page.sections(inputs.read([tmp_path]))
    assert [(section.title, [chart.title for chart in section.charts]) for section in sections] == [
        ("Capacity", [f"Capacity curves: {tmp_path.name}"])
    ]


def test_a_file_that_may_not_be_read_is_named(runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied", str(tmp_path / "results.json"))

    (tmp_path / "results.json").touch()
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(CheckpointError, match=r"results\.json cannot be read: Permission denied\."):
        inputs.read([tmp_path])


def test_a_run_named_twice_counts_once(runs) -> None:
    again = runs.plain[0] / ".." / "plain-0"
    assert len(inputs.read([runs.plain[0], again]).methods[0].entries) == 1
