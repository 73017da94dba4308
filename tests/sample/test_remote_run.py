"""`humanline sample` from a server: what it gave trains, what it does not give is said, and nothing is lost when it dies."""

from __future__ import annotations

import json
import string
import threading
from pathlib import Path
from typing import Any

import pytest

from builders import save_model
from humanline import models, randomness
from humanline.config import DataConfig
from humanline.data.encode import encode_rows
from humanline.data.schema import load_rows
from humanline.errors import ConfigError, ServerError
from humanline.sample.config import PromptConfig, SampleConfig, SampleRunConfig, ServerConfig
from humanline.sample.run import sample
from model_server import Kind, ModelServer, drawn, refuses, serving

LETTERS = string.ascii_lowercase + string.digits + " .,:=+-*/\n"
PROMPTS = ["what is 2 + 2", "3 * 3 =", "a longer question than the others"]
SETTINGS = SampleConfig(n=4, max_new_tokens=5, temperature=0.7, top_p=0.9, seed=11)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))


def expected(number: int, completion: int) -> tuple[list[int], bool]:
    """What the stub draws for the seed that belongs to a completion."""
    return drawn(randomness.key(SETTINGS.seed, "sample", number, completion) % 2**31, 5)


def write(path: Path) -> str:
    path.write_text("".join(json.dumps({"prompt": text, "answer": "4"}) + "\n" for text in PROMPTS))
    return str(path)


def run(model: str, folder: Path, server: ModelServer, *, resume: bool = False, **changes: Any) -> tuple[Path, list[str]]:
    out, said = folder / "samples.jsonl", []
    settings = dict(
        data=write(folder / "prompts.jsonl"),
        model=model,
        out=str(out),
        backend="openai",
        resume=resume,
        sample=SETTINGS,
        server=ServerConfig(url=server.url, concurrency=1, retries=2, backoff=0.0, timeout=20.0),
    )
    sample(SampleRunConfig(**(settings | changes)), said.append)
    return out, said


def groups(model: str, path: Path) -> list[Any]:
    return encode_rows(load_rows(path, "group")[0], models.load_tokenizer(model), DataConfig())[0]


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp", "transformers", "hosted"])
def test_what_a_server_gave_trains(model: str, tmp_path: Path, kind: Kind) -> None:
    """File → groups: the tokens that the server drew, the end included, whether they came as ids or as text."""
    with serving(kind, letters=LETTERS) as server:
        out, said = run(model, tmp_path, server)
    tokenizer = models.load_tokenizer(model)
    for number, group in enumerate(groups(model, out)):
        whole = [*tokenizer(PROMPTS[number])["input_ids"]]
        assert group.prompt_ids.tolist() == whole
        for completion, encoded in enumerate(group.completions):
            ids, finished = expected(number, completion)
            assert encoded.ids.tolist() == ids and encoded.finished == finished
    row = json.loads(out.read_text().splitlines()[0])
    assert row["answer"] == "4" and row["completions"][0] == server.text(expected(0, 0)[0])
    assert said[1].startswith(f"server {server.url}: model stub; prompts are sent as ")


def test_what_a_server_does_not_give_is_said(model: str, tmp_path: Path) -> None:
    with serving("transformers", letters=LETTERS) as server:
        _, said = run(model, tmp_path, server)
    assert said[1:4] == [
        f"server {server.url}: model stub; prompts are sent as text",
        "the server gives no token ids: completions are kept as text, which the trainer tokenizes",
        "no log-probs are kept: where training needs the sampler's, it scores the completions first",
    ]


def test_another_template_at_the_server_is_warned_of(model: str, tmp_path: Path) -> None:
    with serving("hosted", letters=LETTERS) as server:
        server._reply = lambda path, body, reply=server._reply: reply(path, body) | {"usage": {"prompt_tokens": 40}}
        _, said = run(model, tmp_path, server)
    assert (
        "warning: the server reads the first prompt as 40 tokens, the tokenizer of --model as 13: another model or another chat template."
        in said
    )


def test_a_server_that_dies_loses_nothing(model: str, tmp_path: Path) -> None:
    """It fails from the seventh request on; the one finished prompt is kept, and resuming gives the file of an undisturbed run."""
    with serving("vllm", letters=LETTERS) as server:
        whole, _ = run(model, tmp_path, server)
    folder = tmp_path / "parts"
    folder.mkdir()
    dead = threading.Event()
    dead.set()
    with serving(
        "vllm", lambda number, _: refuses(500, "died") if dead.is_set() and number > 6 else None, letters=LETTERS
    ) as second:
        with pytest.raises(ServerError) as raised:
            run(model, folder, second)
        assert str(raised.value).endswith(
            f"\n  1 of 3 prompts are done and kept in {folder / 'samples.partial.jsonl'}. Go on with --resume."
        )
        dead.clear()
        sent = len(second.bodies)
        out, _ = run(model, folder, second, resume=True)
        assert len(second.bodies) - sent == 1 + 8
    assert out.read_text().replace(second.url, server.url) == whole.read_text()


def test_R15_cut_prompts_need_token_ids(model: str, tmp_path: Path) -> None:
    rows = PromptConfig(max_prompt_tokens=10, too_long="truncate")
    with serving("vllm", letters=LETTERS) as server:
        out, _ = run(model, tmp_path, server, rows=rows)
    assert [len(group.prompt_ids) for group in groups(model, out)] == [10, 7, 10]
    out.unlink()
    with serving("transformers", letters=LETTERS) as server, pytest.raises(ConfigError) as raised:
        run(model, tmp_path, server, rows=rows)
    assert str(raised.value) == (
        "rows.too_long is truncate, and 2 prompts were cut (first prompts.jsonl:1), but the server gives no token ids,\n"
        "  so what was sent could not be trained on. Use `--rows.too-long drop`, or a server that gives them, such as vLLM."
    )
