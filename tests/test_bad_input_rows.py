"""Rows that are wrong, or cannot say what an objective asks of them: named by file and line before anything is trained."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import datasets
import numpy as np
import pytest

from builders import completion, pairs_file, save_model, small_run
from humanline.config import EvalConfig, TrainConfig
from humanline.data.load import hold_out
from humanline.data.rows import EncodedGroup, Place
from humanline.errors import DataError, TrainingError
from humanline.limit import Clip, Off
from humanline.objectives import GRPO, KTO
from humanline.run import train


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def config(model: str, tmp_path: Path) -> TrainConfig:
    """See `small_run`."""
    return small_run(model, tmp_path)


def lines(path: Path, *records: dict) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def groups(path: Path, extra: str) -> str:
    path.write_text('{"prompt": "a", "completions": ["b", "c"], ' + extra + "}\n")
    return str(path)


# numbers


@pytest.mark.parametrize("reward", ["1e300", "-1e39"])
def test_R31_a_reward_beyond_float32_is_an_error_of_the_row(config: TrainConfig, tmp_path: Path, reward: str):
    """In float32 it would be infinite, its group's advantages NaN, and the first step would blame the learning rate."""
    data = groups(tmp_path / "groups.jsonl", f'"rewards": [{reward}, 0]')
    with pytest.raises(DataError, match=r"groups.jsonl:1: 'rewards\[0\]' is -?1e\+\d+: expected a number that float32 can hold"):
        train(config.replace(objective=GRPO(), data=data))


@pytest.mark.parametrize(
    ("value", "message"), [("0.7", r"log-prob 0.69\d+ at token 2. Expected one of at most 0"), ("-9999", "of at least -1000")]
)
def test_R31_log_probs_that_no_sampler_gives_are_refused(config: TrainConfig, tmp_path: Path, value: str, message: str):
    """Probabilities, negative log-likelihoods or a stand-in for "unknown" would train on wrong ratios; rounding passes."""
    data = groups(tmp_path / "groups.jsonl", f'"rewards": [1, 0], "logprobs": [[-1, 0.00001], [-1, {value}]]')
    with pytest.raises(DataError, match=rf"groups.jsonl:1: completion 2 has .*{message}"):
        train(config.replace(objective=GRPO(), data=data, limit=Clip(), sync_every=None))


def test_R31_a_log_prob_whose_ratio_is_infinite_is_named_before_the_learning_rate(config: TrainConfig, tmp_path: Path):
    """exp(r) with r near 497 nats overflows, whatever the learning rate."""
    data = groups(tmp_path / "groups.jsonl", '"rewards": [1, 0], "logprobs": [[-1, -1], [-1, -500]]')
    with pytest.raises(
        TrainingError, match=r"step 1: loss inf.*Data row 1 stores a log-prob of -500 for a token of completion 2"
    ):
        train(config.replace(objective=GRPO(), data=data, limit=Off(), sync_every=None))


# files


def test_R31_broken_json_names_its_own_line(config: TrainConfig, tmp_path: Path):
    """An object left open at the end of a line is an error of that line, not of the next."""
    data = tmp_path / "torn.jsonl"
    data.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n{"prompt": "a",\n{"prompt": "b"}\n')
    with pytest.raises(DataError, match=r"torn.jsonl:2: not valid JSON"):
        train(config.replace(data=str(data)))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("c,d", "the row has 2 cells, the header 3"),
        ('c,d,"e', "not valid CSV"),
        ('"[{""role"": x}]",d,e', "which is not valid JSON"),
    ],
)
def test_a_csv_row_is_named_by_the_line_where_it_starts(config: TrainConfig, tmp_path: Path, row: str, problem: str):
    """Behind a header, a blank line and a row of two lines, whatever is wrong with it: line 5."""
    (tmp_path / "rows.csv").write_text(f'prompt,chosen,rejected\n\n"a\nb",c,d\n{row}\n')
    with pytest.raises(DataError, match=rf"^rows.csv:5: .*{problem}"):
        train(config.replace(data=str(tmp_path / "rows.csv")))


def test_a_gzip_file_without_its_suffix_is_told_its_name(config: TrainConfig, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(gzip.compress(Path(config.data).read_bytes()))
    with pytest.raises(DataError, match=r"^rows.jsonl:1: is compressed with gzip.\n  Name it rows.jsonl.gz.$"):
        train(config.replace(data=str(path)))


@pytest.mark.parametrize("name", ["a\0b.jsonl", "a\ud800.jsonl", "x" * 300 + ".jsonl"], ids=["nul", "surrogate", "long"])
def test_a_path_that_no_file_can_have_is_an_error_of_the_data(config: TrainConfig, tmp_path: Path, name: str):
    with pytest.raises(DataError, match=r"cannot be opened: .*(?s:.*)Expected the path of a file"):
        train(config.replace(data=str(tmp_path / name)))


@pytest.mark.parametrize("state", ["{", "[]", "null", '{"_data_files": [1]}'])
def test_a_saved_data_set_with_a_strange_state_is_an_error_of_the_data(config: TrainConfig, tmp_path: Path, state: str):
    datasets.Dataset.from_list([{"prompt": "a"}]).save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "saved" / "state.json").write_text(state)
    with pytest.raises(DataError, match=r"saved: cannot be loaded by datasets.load_from_disk: \w+Error: "):
        train(config.replace(data=str(tmp_path / "saved")))


# texts


def test_characters_that_the_tokenizer_has_not_are_counted(
    config: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """É in the prompt counts once, not per answer; a pad token that the text spells out is none; without any, nothing is said."""
    train(config.replace(steps=1))
    assert "unknown" not in capsys.readouterr().out
    known = {"prompt": "why ", "chosen": "a<pad>", "rejected": "b"}
    odd = lines(tmp_path / "odd.jsonl", known, {"prompt": "É ", "chosen": "aßÜ", "rejected": "b"}, known | {"chosen": "Ö"})
    train(config.replace(data=odd, steps=1, out=str(tmp_path / "second")))
    assert "odd.jsonl: warning: 4 unknown tokens (first odd.jsonl:2): the tokenizer does not have" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ 1 // 0 }}", "integer division or modulo by zero"),
        ("{{ raise_exception('Only one turn.') }}", "Only one turn."),
        ("{% if %}", "Expected an expression, got 'end of statement block'"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth exceeded"),
    ],
)
def test_a_chat_template_that_fails_is_an_error_of_the_row(config, model: str, tmp_path: Path, template: str, reason: str):
    folder = shutil.copytree(model, tmp_path / "templated")
    (folder / "chat_template.jinja").write_text(template)
    turns = [{"role": "user", "content": "why"}]
    data = lines(tmp_path / "l.jsonl", {"prompt": turns, "chosen": "a", "rejected": "b"})
    with pytest.raises(DataError, match=rf"^l.jsonl:1: the chat template cannot render the turns user.*: {reason}"):
        train(config.replace(model=str(folder), data=data))


# what an objective needs


@pytest.mark.parametrize(
    ("prompts", "batch_size", "reason"),
    [("aa", 2, "all 2 rows have the same prompt"), ("ab", 1, "batch_size is 1"), ("ab", 2, None)],
)
def test_KTO_says_once_that_K_is_0_throughout(config, tmp_path: Path, capsys, prompts: str, batch_size: int, reason: str | None):
    rows = [{"prompt": prompt, "completion": "b", "label": bool(number)} for number, prompt in enumerate(prompts)]
    train(config.replace(objective=KTO(), data=lines(tmp_path / "l.jsonl", *rows), batch_size=batch_size))
    warning = f"warning: {reason}, so no step has mismatched pairs of prompts and completions: K is 0 throughout."
    said = capsys.readouterr().out
    assert said.count("K is 0 throughout") == (reason is not None) and (reason is None or warning in said)
    if reason is None:
        return
    measured = [json.loads(line)["kl_mismatched"] for line in (Path(config.out) / "metrics.jsonl").read_text().splitlines()]
    assert measured == [0.0] * 6


def test_held_out_rows_are_described_too(config: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Without rewards they are refused like rows to train on; one class of labels is said; advice on weights is left out."""
    training = groups(tmp_path / "groups.jsonl", '"rewards": [1, 0]')
    empty = groups(tmp_path / "empty.jsonl", '"rewards": [null, null]')
    with pytest.raises(DataError, match=r"empty.jsonl:1: none of the 2 completions has a reward"):
        train(config.replace(objective=GRPO(), data=training, eval=EvalConfig(data=empty)))
    rows = [{"prompt": f"{number} ", "completion": "b", "label": True} for number in range(3)]
    one_class = EvalConfig(data=lines(tmp_path / "held.jsonl", *rows))
    train(config.replace(objective=KTO(), eval=one_class, steps=1, out=str(tmp_path / "second")))
    said = capsys.readouterr().out
    assert "held-out rows: labels: 3 desirable, 0 undesirable\nwarning: held-out rows: every label is desirable" in said
    assert "held-out rows: suggested" not in said


def test_held_out_prompts_are_never_trained_on(config: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Repeated prompts, and the halves of a pair, even where one answer merges with the last token of the prompt."""

    def row(prompt: list[int], line: int) -> EncodedGroup:
        return EncodedGroup("label", np.array(prompt, np.int32), (completion([9]),), Place("l.jsonl", line))

    halves = [row([number, 5][: 1 + half], line=number) for number in range(3, 9) for half in (0, 1)]
    repeated = [row([3], line=20), row([4, 5], line=21), row([30], line=22), row([30], line=23)]
    for seed in range(20):
        stays, held = hold_out([*halves, *repeated], 0.3, seed)
        assert len(stays) + len(held) == 16 and len({group.place for group in held}) >= 2
        for meaning in (lambda group: group.place, lambda group: group.prompt_key):
            assert not set(map(meaning, stays)) & set(map(meaning, held))
    pairs_file(tmp_path / "pairs.jsonl", 10)
    train(config.replace(objective=KTO(), eval=EvalConfig(fraction=0.2), steps=1))
    assert "held out 4 rows of 2 prompts for evaluation, 16 rows of 8 prompts left to train on" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"eval.fraction 0.01 of 20 rows of 10 prompts holds out 0 prompts: expected at least 1"):
        train(config.replace(objective=KTO(), eval=EvalConfig(fraction=0.01), out=str(tmp_path / "none")))
