"""`humanline sample` from end to end on a tiny model: what it writes, what loads back, and how it goes on after an interruption."""

from __future__ import annotations

import fcntl
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import save_model, tiny_llama
from humanline import cli, models
from humanline.config import DataConfig
from humanline.data.encode import encode_rows
from humanline.data.schema import load_rows
from humanline.errors import CheckpointError, ConfigError, DataError
from humanline.sample.config import PromptConfig, SampleConfig, SampleRunConfig
from humanline.sample.local import TransformersSampler
from humanline.sample.mismatch import logp_mismatch
from humanline.sample.run import sample
from humanline.sample.sampler import Sampled
from humanline.token_logps import TokenLogps
from small_tokenizers import CHATML

QUESTIONS = [
    {"question": "what is 2 + 2", "answer": "4", "level": 1},
    {"question": "3 * 3 = ", "answer": "9", "level": 2},
    {"question": "a much longer question, with more words than the others have", "answer": "none", "level": None},
    {"question": "5 - 1, 4", "answer": "4", "level": 1},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(
        tmp_path_factory.mktemp("model"), tiny_llama(vocab_size=49, eos_token_id=[2, 9], bos_token_id=1, pad_token_id=0)
    )


def write(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def configure(model: str, folder: Path, records: list[dict[str, Any]] | None = None, **changes: Any) -> SampleRunConfig:
    data = write(folder / "questions.jsonl", QUESTIONS if records is None else records)
    settings = dict(
        data=data,
        model=model,
        out=str(folder / "samples.jsonl"),
        device="cpu",
        sample=SampleConfig(n=3, max_new_tokens=12),
        rows=PromptConfig(columns={"prompt": "question"}),
    )
    return SampleRunConfig(**(settings | changes))


def run(config: SampleRunConfig) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows written, and what was said."""
    said: list[str] = []
    sample(config, said.append)
    return read(config.out), said


def read(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


# What is written


def test_a_row_holds_prompt_completions_and_provenance(model: str, tmp_path: Path) -> None:
    rows, said = run(configure(model, tmp_path))
    assert [row["sampler"]["number"] for row in rows] == [0, 1, 2, 3]
    tokenizer = models.load_tokenizer(model)
    for row, question in zip(rows, QUESTIONS, strict=True):
        assert (row["prompt"], row["answer"], row["level"]) == (question["question"], question["answer"], question["level"])
        assert "question" not in row
        assert row["prompt_ids"] == tokenizer(row["prompt"])["input_ids"]
        assert row["rewards"] == [None, None, None]
        for text, token_ids, logprobs, reason in zip(
            row["completions"], row["completion_ids"], row["logprobs"], row["finish_reason"], strict=True
        ):
            ended = token_ids[-1] in (2, 9)
            assert text == tokenizer.decode(token_ids[:-1] if ended else token_ids)
            assert reason == ("stop" if ended else "length") and len(logprobs) == len(token_ids)
    provenance = rows[0]["sampler"]
    assert {name: provenance[name] for name in provenance if name not in ("fingerprint", "versions")} == {
        "number": 0,
        "backend": "transformers",
        "model": model,
        "logprobs": {"temperature": 1.0, "top_p": 1.0},
        "n": 3,
        "temperature": 1.0,
        "top_p": 1.0,
        "max_new_tokens": 12,
        "seed": 0,
        "template": "none",
    }
    assert provenance["fingerprint"] == models.fingerprint(models.load_policy(model), "off")
    assert set(provenance["versions"]) == {"humanline", "torch", "transformers"}
    assert said[0] == f"{tmp_path}/questions.jsonl: 4 prompts; the first:\nwhat is 2 + 2"
    assert said[-1] == f"done: {tmp_path}/samples.jsonl"


def test_it_loads_back_with_the_samplers_tokens_and_log_probs_exactly(model: str, tmp_path: Path) -> None:
    """File → rows → groups: the ids, log-probs to the last bit, prompts and ends that the sampler gave."""
    config = configure(model, tmp_path)
    rows, _ = run(config)
    policy, tokenizer = models.load_policy(model), models.load_tokenizer(model)
    loaded, _ = load_rows(config.out, "group")
    groups, report = encode_rows(loaded, tokenizer, DataConfig(), eos_ids=(2, 9))
    direct = dict(
        TransformersSampler(policy, (2, 9)).sample(
            [group.prompt_ids for group in groups], numbers=range(4), settings=config.sample
        )
    )
    for index, group in enumerate(groups):
        assert group.prompt_ids.tolist() == rows[index]["prompt_ids"]
        for encoded, sampled in zip(group.completions, direct[index], strict=True):
            np.testing.assert_array_equal(encoded.ids, sampled.token_ids)
            assert encoded.logps.tobytes() == sampled.logps.tobytes()
            assert encoded.finished == sampled.finished and encoded.mask.all() and np.isnan(encoded.feedback)
    assert (report.stored_prompts.number, report.transformed_logps.number, report.cut_after_end.number) == (0, 0, 0)
    stored = [[Sampled(each.ids, each.logps, each.finished) for each in group.completions] for group in groups]
    assert logp_mismatch(TokenLogps(policy), [group.prompt_ids for group in groups], stored).max < 1e-5


def test_R10_log_probs_under_a_temperature_are_not_taken_for_the_policys(model: str, tmp_path: Path) -> None:
    """The row says what they are, loading keeps them, encoding leaves them out and counts them."""
    config = configure(model, tmp_path, sample=SampleConfig(n=2, max_new_tokens=6, temperature=0.7, top_p=0.9))
    rows, _ = run(config)
    assert rows[0]["sampler"]["logprobs"] == {"temperature": 0.7, "top_p": 0.9}
    loaded, _ = load_rows(config.out, "group")
    assert loaded[0].completions[0].transform == (0.7, 0.9)
    assert loaded[0].completions[0].logps == tuple(rows[0]["logprobs"][0])
    tokenizer = models.load_tokenizer(model)
    groups, report = encode_rows(loaded, tokenizer, DataConfig(), eos_ids=(2, 9))
    assert all(completion.logps is None for group in groups for completion in group.completions)
    assert (
        "8 log-probs left out (first samples.jsonl:1): taken under a temperature or top_p; a scoring pass replaces them"
        in report.lines()
    )
    own = replace(config, out=str(tmp_path / "own.jsonl"), sample=replace(config.sample, logprobs="policy"))
    run(own)
    groups, report = encode_rows(load_rows(own.out, "group")[0], tokenizer, DataConfig(), eos_ids=(2, 9))
    assert all(completion.logps is not None for group in groups for completion in group.completions)
    assert report.transformed_logps.number == 0


def test_R15_a_truncated_prompt_is_the_one_sent_and_the_one_trained_on(model: str, tmp_path: Path) -> None:
    config = configure(model, tmp_path, rows=PromptConfig({"prompt": "question"}, max_prompt_tokens=10, too_long="truncate"))
    rows, said = run(config)
    assert f"{config.data}: truncated 2 of 4 prompts: 13 > 10 tokens (first questions.jsonl:1)" in said
    whole = models.load_tokenizer(model)(QUESTIONS[2]["question"])["input_ids"]
    assert rows[2]["prompt"] == QUESTIONS[2]["question"] and rows[2]["prompt_ids"] == whole[-10:]
    groups, report = encode_rows(load_rows(config.out, "group")[0], models.load_tokenizer(model), DataConfig(), eos_ids=(2, 9))
    assert groups[2].prompt_ids.tolist() == whole[-10:]
    stored = [[Sampled(each.ids, each.logps, each.finished) for each in group.completions] for group in groups]
    assert logp_mismatch(TokenLogps(models.load_policy(model)), [group.prompt_ids for group in groups], stored).max < 1e-5
    assert report.stored_prompts.number == 2
    assert any(line.startswith("2 prompts as sampled (first samples.jsonl:1): ") for line in report.lines())


def test_R15_dropped_prompts_leave_the_others_as_they_were(model: str, tmp_path: Path) -> None:
    """Prompt 3 keeps its number, and with it its draws, when longer ones go."""
    whole, _ = run(configure(model, tmp_path))
    rows, said = run(
        configure(
            model, tmp_path, out=str(tmp_path / "short.jsonl"), rows=PromptConfig({"prompt": "question"}, max_prompt_tokens=10)
        )
    )
    assert [row["sampler"]["number"] for row in rows] == [1, 3]
    assert [row["completion_ids"] for row in rows] == [whole[1]["completion_ids"], whole[3]["completion_ids"]]
    assert any("dropped 2 of 4 prompts: 13 > 10 tokens" in line for line in said)


def test_a_templated_prompt_is_written_as_messages(model: str, tmp_path: Path) -> None:
    """So that training renders it alike by default; the template is recorded by its content."""
    tokenizer = models.load_tokenizer(model)
    tokenizer.chat_template = CHATML.replace("<|im_start|>", "* ").replace("<|im_end|>", " /")
    folder = tmp_path / "chat"
    models.load_policy(model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = configure(str(folder), tmp_path, rows=PromptConfig({"prompt": "question"}, template="chat"))
    rows, _ = run(config)
    assert rows[0]["prompt"] == [{"role": "user", "content": "what is 2 + 2"}]
    assert rows[0]["sampler"]["template"].startswith("sha256:")
    groups, report = encode_rows(load_rows(config.out, "group")[0], tokenizer, DataConfig(), eos_ids=(2, 9))
    assert [group.prompt_ids.tolist() for group in groups] == [row["prompt_ids"] for row in rows]
    assert report.stored_prompts.number == 0


def test_columns_that_would_change_the_row_are_left_out_and_named(model: str, tmp_path: Path) -> None:
    records = [{"prompt": "2 + 2", "system": "be brief.", "chosen": "4", "rejected": "5", "gold": "4", "reward": 1}]
    tokenizer = models.load_tokenizer(model)
    tokenizer.chat_template = CHATML
    folder = tmp_path / "chat"
    models.load_policy(model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = configure(str(folder), tmp_path, records, rows=PromptConfig())
    rows, said = run(config)
    assert {"system", "chosen", "rejected"} & rows[0].keys() == set() and rows[0]["gold"] == "4"
    assert rows[0]["prompt"] == [{"role": "system", "content": "be brief."}, {"role": "user", "content": "2 + 2"}]
    assert "columns left out of samples.jsonl: chosen, rejected, system (another answer, part of the prompt, or no JSON)" in said
    assert load_rows(config.out, "group")[0][0].kind == "group"


def test_the_set_is_that_of_the_seed(model: str, tmp_path: Path) -> None:
    first, _ = run(configure(model, tmp_path))
    again, _ = run(
        configure(model, tmp_path, out=str(tmp_path / "b.jsonl"), sample=SampleConfig(n=3, max_new_tokens=12, batch_tokens=1))
    )
    other, _ = run(configure(model, tmp_path, out=str(tmp_path / "c.jsonl"), sample=SampleConfig(n=3, max_new_tokens=12, seed=1)))
    assert [row["completion_ids"] for row in first] == [row["completion_ids"] for row in again]
    assert [row["completion_ids"] for row in first] != [row["completion_ids"] for row in other]


def test_R10_how_far_log_probs_lie_from_the_trainers_is_said(model: str, tmp_path: Path) -> None:
    _, said = run(configure(model, tmp_path))
    (line,) = [line for line in said if line.startswith("log-probs differ")]
    assert float(line.split("average, ")[1].split()[0]) < 1e-5


# Going on


def test_resuming_gives_the_file_that_one_run_gives(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped by Ctrl-C after two prompts, with half a line on disk from the third, and again after one more: byte for byte the same."""
    whole = configure(model, tmp_path, sample=SampleConfig(n=3, max_new_tokens=12, batch_tokens=1))
    run(whole)
    config = replace(whole, out=str(tmp_path / "parts.jsonl"))
    partial = tmp_path / "parts.partial.jsonl"
    sampling = TransformersSampler.sample
    asked: list[int] = []

    def until(most: int) -> Any:
        def interrupted(self: TransformersSampler, *given: Any, **settings: Any) -> Any:
            asked.append(len(settings["numbers"]))
            for count, found in enumerate(sampling(self, *given, **settings)):
                if count == most:
                    raise KeyboardInterrupt
                yield found

        return interrupted

    for most, kept in ((2, 2), (1, 3)):
        monkeypatch.setattr(TransformersSampler, "sample", until(most))
        said: list[str] = []
        with pytest.raises(KeyboardInterrupt):
            sample(replace(config, resume=most == 1), said.append)
        assert said[-1] == f"{kept} of 4 prompts are done and kept in {partial}. Go on with --resume."
        assert not Path(config.out).exists() and len(read(partial)) == kept
        with partial.open("a", encoding="utf-8") as file:
            file.write('{"prompt": "é')
    monkeypatch.setattr(TransformersSampler, "sample", until(4))
    sample(replace(config, resume=True), said.append)
    assert asked == [4, 2, 1]
    assert Path(config.out).read_bytes() == Path(whole.out).read_bytes()
    assert not partial.exists()


def test_resuming_a_finished_file_samples_nothing(model: str, tmp_path: Path) -> None:
    config = configure(model, tmp_path)
    run(config)
    before = Path(config.out).read_bytes()
    result = sample(replace(config, resume=True), lambda _: None)
    assert (result.prompts, result.completions, result.tokens) == (4, 0, 0)
    assert Path(config.out).read_bytes() == before


def test_more_prompts_extend_a_finished_file(model: str, tmp_path: Path) -> None:
    columns = {"prompt": "question"}
    config = configure(model, tmp_path, rows=PromptConfig(columns, limit_rows=2))
    first, _ = run(config)
    both, _ = run(replace(config, resume=True, rows=PromptConfig(columns)))
    assert len(both) == 4 and both[:2] == first


def test_an_existing_file_is_not_touched_without_resume(model: str, tmp_path: Path) -> None:
    config = configure(model, tmp_path)
    run(config)
    with pytest.raises(CheckpointError) as raised:
        run(config)
    assert str(raised.value) == f"{config.out} exists. Add --resume to go on with it, or choose another --out."


def test_other_settings_are_not_mixed(model: str, tmp_path: Path) -> None:
    config = configure(model, tmp_path)
    run(config)
    with pytest.raises(CheckpointError) as raised:
        run(replace(config, resume=True, sample=replace(config.sample, seed=4, top_p=0.5)))
    assert str(raised.value) == (
        f"{config.out}:1: sampled with other settings, so going on would mix two sets:\n"
        "  logprobs: {'temperature': 1.0, 'top_p': 1.0} then, {'temperature': 1.0, 'top_p': 0.5} now\n"
        "  top_p: 1.0 then, 0.5 now\n"
        "  seed: 0 then, 4 now\n"
        "  Leave these as they were, or choose another --out."
    )


def test_other_weights_are_not_mixed(model: str, tmp_path: Path) -> None:
    config = configure(model, tmp_path)
    run(config)
    other = save_model(tmp_path / "model", tiny_llama(seed=1))
    with pytest.raises(CheckpointError, match="fingerprint: "):
        run(replace(config, resume=True, model=other))


def test_other_prompts_are_not_mixed(model: str, tmp_path: Path) -> None:
    config = configure(model, tmp_path)
    run(config)
    write(Path(config.data), [QUESTIONS[1], QUESTIONS[0], *QUESTIONS[2:]])
    with pytest.raises(CheckpointError) as raised:
        run(replace(config, resume=True))
    assert str(raised.value) == (
        f"{config.out}:1: is of prompt 1, which the data no longer holds as it was sampled.\n"
        "  Restore the data, or choose another --out."
    )


def test_a_file_of_something_else_is_not_taken_over(model: str, tmp_path: Path) -> None:
    config = configure(model, tmp_path, resume=True)
    write(Path(config.out), [{"prompt": "2 + 2?"}])
    with pytest.raises(CheckpointError) as raised:
        run(config)
    assert (
        str(raised.value)
        == f"{config.out}:1: not a row that `humanline sample` wrote (KeyError('sampler')). Choose another --out."
    )


def test_a_file_in_use_is_left_alone(model: str, tmp_path: Path) -> None:
    config = configure(model, tmp_path)
    partial = tmp_path / "samples.partial.jsonl"
    with partial.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError) as raised:
            run(config)
    assert str(raised.value) == f"{partial} is in use by another process. Wait for it, or choose another --out."


# The command line


def test_the_verb_samples_by_flags(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "questions.jsonl", QUESTIONS)
    out = tmp_path / "samples.jsonl"
    line = (
        f"sample {data} --model {model} --out {out} --n 2 --temperature 0.8 --top-p 0.9 --max-new-tokens 5 --seed 3 --device cpu"
    )
    assert cli.main([*line.split(), "--rows.columns", "{prompt: question}"]) == 0
    rows = read(out)
    assert [len(row["completions"]) for row in rows] == [2, 2, 2, 2]
    assert {name: rows[0]["sampler"][name] for name in ("n", "temperature", "top_p", "max_new_tokens", "seed")} == {
        "n": 2, "temperature": 0.8, "top_p": 0.9, "max_new_tokens": 5, "seed": 3,
    }  # fmt: skip
    assert "tokens/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("", 2, "ConfigError: data is empty: expected it, e.g. `humanline sample prompts.jsonl`."),
        ("p.jsonl", 2, "ConfigError: model is empty: expected it, e.g. `humanline sample prompts.jsonl --model smollm2`."),
        (
            "p.jsonl --model m",
            2,
            "ConfigError: out is empty: expected it, e.g. `humanline sample prompts.jsonl --out samples.jsonl`.",
        ),
        ("p.jsonl --model m --out a.json", 2, "ConfigError: out is a.json: expected a name that ends in .jsonl."),
        ("p.jsonl --n 0", 2, "ConfigError: sample.n is 0: expected a whole number from 1 on."),
    ],
)
def test_wrong_use(line: str, status: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sample", *line.split()]) == status
    assert capsys.readouterr().err.strip() == message


def test_a_missing_file_is_named(model: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.jsonl: no such file"):
        run(replace(configure(model, tmp_path), data=str(tmp_path / "nowhere.jsonl")))


def test_more_new_tokens_than_positions_is_an_error(model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sample.max_new_tokens is 128: expected less than the model's 128 positions"):
        run(configure(model, tmp_path, sample=SampleConfig(max_new_tokens=128)))
