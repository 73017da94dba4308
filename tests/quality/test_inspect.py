"""`humanline inspect` from file to report: what it prints and writes, the filter, bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from builders import save_model, tiny_llama
from humanline import cli
from humanline.embedded import assets
from humanline.embedded.score import SYMBOLS
from humanline.errors import CheckpointError, ConfigError, DataError, HumanlineError, ModelError
from humanline.quality.config import InspectConfig, RowsConfig
from humanline.quality.run import Inspection, inspect_data
from humanline.report.perception import read_perception

WORDS = ("abc", "hello", "12+3=15", "a.", "zzzz zzzz", "one two")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))


def write(path: Path, *records: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def rewarded(count: int = 6) -> list[dict[str, Any]]:
    return [
        {
            "prompt": f"say {number}",
            "completions": [WORDS[number % 6], WORDS[(number + 1) % 6]],
            "rewards": [0.5, None],
            "id": number,
        }
        for number in range(count)
    ]


def inspected(said: list[str] | None = None, **settings: Any) -> Inspection:
    defaults = dict(fresh=3, fresh_completions=4, max_new_tokens=6, device="cpu")
    return inspect_data(InspectConfig(**(defaults | settings)), (lambda _: None) if said is None else said.append)


def kept(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "kept.jsonl").read_text().splitlines()]


def test_what_is_printed_is_written_as_strict_json_and_curves_that_the_report_reads(tmp_path: Path, model: str) -> None:
    said: list[str] = []
    found = inspected(said, data=write(tmp_path / "data.jsonl", *rewarded()), model=model, out=str(tmp_path / "out"))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    facts = json.loads((tmp_path / "out" / "inspect.json").read_text(), parse_constant=refuse)
    assert facts["format"] == "humanline-inspect-1" and facts["settings"]["model"] == model
    assert found.gap is not None and facts["gap"]["data"]["kl"] == found.gap.data.kl
    assert facts["feedback"]["unscored"] == 6 and facts["rows"] == facts["usable_rows"] == 6
    assert facts["likelihood"]["quartiles"][0]["logp"] == found.likelihood.quartiles[0].logp
    curves = {curve.name: curve for curve in read_perception(tmp_path / "out" / "perception.json").curves}
    assert list(curves) == ["human", "data", "fresh samples"] and curves["data"].kl == found.gap.data.kl
    text = "\n".join(said)
    for part in ("6 rows of kind group, 6 different prompts, 12 completions", "quartile 1 (lowest)", "6 have fewer than two"):
        assert part in text


def test_a_seed_gives_the_same_numbers_whatever_the_batches(tmp_path: Path, model: str) -> None:
    data = write(tmp_path / "data.jsonl", *rewarded())
    one, other = (inspected(data=data, model=model, batch_tokens=tokens) for tokens in (1, 5000))
    assert one.gap is not None and other.gap is not None
    assert one.gap.data.kl == pytest.approx(other.gap.data.kl) and one.gap.fresh.kl == pytest.approx(other.gap.fresh.kl)
    assert one.likelihood.mean == pytest.approx(other.likelihood.mean, abs=1e-5)


def test_without_fresh_samples_there_is_no_gap_and_an_older_file_of_curves_goes(tmp_path: Path, model: str) -> None:
    data, said = write(tmp_path / "data.jsonl", *rewarded()), list[str]()
    inspected(data=data, model=model, out=str(tmp_path / "out"))
    found = inspected(said, data=data, model=model, out=str(tmp_path / "out"), fresh=0)
    assert found.gap is None and not (tmp_path / "out" / "perception.json").exists()
    assert json.loads((tmp_path / "out" / "inspect.json").read_text())["gap"] is None
    assert any("unknown without fresh samples" in line for line in said)


def test_kept_rows_are_the_likely_ones_as_they_stand_in_the_file(tmp_path: Path, model: str) -> None:
    records = rewarded()
    records[2]["extra"] = {"nested": ["ü", None]}
    data = write(tmp_path / "data.jsonl", *records)
    found = inspected(data=data, model=model, out=str(tmp_path / "out"), keep_above=0.5, fresh=0)
    assert found.kept is not None and (found.kept.rows, found.kept.of) == (3, 6)
    written = kept(tmp_path / "out")
    assert all(record in records for record in written)
    assert [record["id"] for record in written] == sorted(record["id"] for record in written)
    again = inspected(data=str(tmp_path / "out" / "kept.jsonl"), model=model, fresh=0)
    assert again.rows == 3 and again.likelihood.mean > found.likelihood.mean


def test_keep_above_in_nats_keeps_the_rows_of_at_least_that_mean(tmp_path: Path, model: str) -> None:
    labels = [{"prompt": "say", "completion": word, "label": number % 2 == 0} for number, word in enumerate(WORDS)]
    data = write(tmp_path / "data.jsonl", *labels)
    alone = [
        inspected(data=write(tmp_path / f"{number}.jsonl", record), model=model, fresh=0).likelihood.mean
        for number, record in enumerate(labels)
    ]
    threshold = sorted(alone)[2] - 1e-4
    found = inspected(data=data, model=model, out=str(tmp_path / "out"), keep_above=threshold, fresh=0)
    assert kept(tmp_path / "out") == [record for record, value in zip(labels, alone, strict=True) if value >= threshold]
    assert found.kept is not None and found.kept.records == 4
    with pytest.raises(DataError, match=r"^keep_above -1e-06 keeps none of 6 rows: the highest has -\d"):
        inspected(data=data, model=model, out=str(tmp_path / "none"), keep_above=-1e-6, fresh=0)


def test_completions_stored_one_a_record_stay_or_go_with_their_prompt(tmp_path: Path, model: str) -> None:
    texts = enumerate(WORDS[:3])
    records = [{"prompt": p, "completion": word, "reward": float(number)} for number, word in texts for p in "xyz"]
    found = inspected(
        data=write(tmp_path / "data.jsonl", *records), model=model, out=str(tmp_path / "out"), keep_above=0.6, fresh=0
    )
    prompts = {record["prompt"] for record in kept(tmp_path / "out")}
    assert kept(tmp_path / "out") == [record for record in records if record["prompt"] in prompts]
    assert found.kept is not None and (found.kept.rows, found.kept.records) == (len(prompts), 3 * len(prompts)) == (1, 3)


def test_rows_that_cannot_be_trained_on_are_counted_and_not_kept(tmp_path: Path, model: str) -> None:
    pairs = [{"prompt": "ab", "chosen": "c", "rejected": "d"}, {"prompt": "ab" * 20, "chosen": "c", "rejected": "d"}]
    said: list[str] = []
    found = inspected(
        said,
        data=write(tmp_path / "data.jsonl", *pairs),
        model=model,
        rows=RowsConfig(max_length=10),
        out=str(tmp_path / "out"),
        keep_above=-99.0,
        fresh=0,
    )
    assert (found.rows, found.usable_rows) == (2, 1) and kept(tmp_path / "out") == pairs[:1]
    assert found.lengths.total.quantiles[-1] == 42
    expected = "max_length 10: 2 completions are too long; drop leaves out 1 rows and 2 completions, truncate cuts 1 prompts"
    assert [line[: len(expected)] for line in said if line.startswith("max_length")] == [expected]


def test_data_of_a_worse_sampler_is_warned_about_and_leans_up(tmp_path: Path) -> None:
    """The embedded model: its own samples against random symbols."""
    rows = RowsConfig(template="none", eos=False, limit_rows=128)
    symbols = torch.randint(18, (128, 4, 12), generator=torch.Generator().manual_seed(0)).tolist()
    noise = [
        {"prompt": prompt, "completions": ["".join(map(SYMBOLS.__getitem__, text)) for text in texts], "rewards": [0.0, 1.0] * 2}
        for prompt, texts in zip(["elbh", "ahbc", "qrab", "mnop"] * 32, symbols, strict=True)
    ]
    settings = dict(model=str(assets.MODEL), rows=rows, fresh=128, fresh_completions=8, max_new_tokens=None)
    own_lines, worse_lines = list[str](), list[str]()
    own = inspected(own_lines, data=str(assets.GROUPS), **settings)
    worse = inspected(worse_lines, data=write(tmp_path / "noise.jsonl", *noise), **settings)
    assert own.gap is not None and worse.gap is not None
    assert own.likelihood.unusual_share is not None and own.likelihood.unusual_share < 0.10
    assert not any(line.startswith("warning") for line in own_lines)
    assert abs(own.gap.data.lean) < 0.05 < 0.3 < worse.gap.data.lean
    warned = next(number for number, line in enumerate(worse_lines) if line.startswith("warning: "))
    assert "(docs/inspecting.md): `--keep-above -" in worse_lines[warned + 1]


def test_a_reference_gives_log_ratios_and_must_not_be_the_model(tmp_path: Path, model: str) -> None:
    data = write(tmp_path / "data.jsonl", *rewarded())
    other = save_model(tmp_path / "other", tiny_llama(seed=1))
    said: list[str] = []
    assert inspected(said, data=data, model=model, reference=other).gap is not None
    assert any(f"outcomes in nats, log-ratios to {other}" in line for line in said)
    copy = save_model(tmp_path / "copy")
    with pytest.raises(ConfigError, match="whose weights are the model's own: every outcome would be 0"):
        inspected(data=data, model=model, reference=copy)
    larger = save_model(tmp_path / "larger", tiny_llama(vocab_size=60))
    with pytest.raises(ModelError, match="has a vocabulary of 60 tokens, the model 50: expected models of one tokenizer"):
        inspected(data=data, model=model, reference=larger)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], r"^data\.jsonl: holds no rows"),
        (
            [rewarded(1)[0], {"prompt": "a", "chosen": "b", "rejected": "c"}],
            r"^data\.jsonl:2: row is a preference pair .* a group",
        ),
        ([{"prompt": "a", "completions": ["b"]}], r"^data\.jsonl:1: group has no 'rewards'"),
        (
            [{"prompt": "a", "completions": ["b", "c"], "rewards": [None, None]}],
            r"^data\.jsonl:1: none of the 2 completions has a reward",
        ),
    ],
)
def test_bad_data(tmp_path: Path, model: str, records: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        inspected(data=write(tmp_path / "data.jsonl", *records), model=model)


def test_a_tokenizer_of_another_model_is_named(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "small", tiny_llama(vocab_size=20))
    with pytest.raises(ModelError, match=r"token id \d+, but the model's vocabulary ends at 19\. The tokenizer does not belong"):
        inspected(data=write(tmp_path / "data.jsonl", *rewarded()), model=folder)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (dict(), ConfigError, "data is empty: expected it, e.g. `humanline inspect pairs.jsonl`."),
        (dict(data="d.jsonl"), ConfigError, "model is empty: expected it, e.g. `humanline inspect pairs.jsonl --model smollm2`."),
        (
            dict(data="d.jsonl", model="m", keep_above=0.25),
            ConfigError,
            "keep_above is 0.25 without a folder to write kept.jsonl to. Add `--out FOLDER`.",
        ),
        (
            dict(data="d.jsonl", model="m", reference="m"),
            ConfigError,
            "reference is 'm', the model itself: every outcome would be 0. ",
        ),
        (dict(data="d.jsonl", model="m", reference="r", fresh=0), ConfigError, "reference is 'r' while fresh is 0: "),
        (dict(data="nowhere.jsonl", model="m"), DataError, "nowhere.jsonl: no such file."),
    ],
)
def test_wrong_settings_say_what_to_do(settings: dict[str, Any], error: type[HumanlineError], message: str) -> None:
    with pytest.raises(error) as caught:
        inspect_data(InspectConfig(**settings))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(keep_above=1.5), "keep_above is 1.5: expected a log-prob below 0, e.g. -1.03, or a quantile in (0, 1), e.g. 0.25."),
        (dict(fresh_completions=5), "fresh_completions is 5: expected an even number from 4 on."),
        (dict(fresh=-1), "fresh is -1: expected a number of prompts from 0 on."),
    ],
)
def test_values_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        InspectConfig(**settings)
    assert str(caught.value) == message


def test_a_file_of_kept_rows_is_not_overwritten(tmp_path: Path, model: str) -> None:
    (tmp_path / "kept.jsonl").write_text("precious")
    with pytest.raises(CheckpointError, match=r"kept\.jsonl exists\. Remove it"):
        inspected(data=write(tmp_path / "data.jsonl", *rewarded()), model=model, out=str(tmp_path), keep_above=0.5)
    assert (tmp_path / "kept.jsonl").read_text() == "precious"


def test_the_command_line(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "data.jsonl", *rewarded())
    words = (
        f"inspect {data} --model {model} --out {tmp_path / 'out'} --fresh 2 --fresh-completions 4 --max-new-tokens 4 --device cpu"
    )
    assert cli.main([*words.split(), "--rows.limit-rows", "4", "--keep-above", "0.5"]) == 0
    printed = capsys.readouterr().out
    assert "4 rows of kind group" in printed and "perception gap over 2 prompts" in printed and "kept 2 of 4 rows" in printed
    assert cli.main(["inspect", data]) == 2
    assert capsys.readouterr().err.startswith("ConfigError: model is empty")
