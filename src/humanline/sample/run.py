"""`sample`: from a file of prompts to a file of groups that wait to be scored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from humanline import models
from humanline.config import ModelConfig
from humanline.data.turns import as_turns
from humanline.data.vocabulary import Vocabulary
from humanline.errors import ConfigError, ServerError
from humanline.sample.config import SampleConfig, SampleRunConfig, validate
from humanline.sample.local import TransformersSampler
from humanline.sample.mismatch import logp_mismatch
from humanline.sample.progress import Progress
from humanline.sample.prompts import Prompt, load_prompts, prompt_room
from humanline.sample.remote import OpenAISampler
from humanline.sample.sampler import Sampled, Sampler
from humanline.sample.samples import SampleFile, group_row
from humanline.sample.vllm_engine import VLLMSampler
from humanline.token_logps import TokenLogps

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class SampleResult:
    """What a finished run left behind."""

    out: Path
    prompts: int
    """rows of `out`, those of an earlier part of the run included"""
    completions: int
    """made in this part of the run, as are `cut` and `tokens`"""
    cut: int
    """completions that reached `max_new_tokens`"""
    tokens: int


def sample(config: SampleRunConfig, say: Callable[[str], None] = print) -> SampleResult:
    """Sample as `config` says; `say` gets every line for a person. Raises a `HumanlineError` for anything a user can mend.

    Rows are kept as soon as they are made. What remains after an interruption is done by the same call with `resume`.
    """
    validate(config)
    settings = config.sample
    tokenizer = models.load_tokenizer(config.model, config.load)
    model = _load(config) if config.backend == "transformers" else None
    outline = model or models.load_outline(config.model, config.load)
    eos_ids = models.end_of_sequence_ids(outline, tokenizer)
    room = prompt_room(models.positions(outline), settings.max_new_tokens)
    prompts, lines = load_prompts(config.data, tokenizer, config.rows, eos_ids=eos_ids, room=room)
    for line in lines:
        say(f"{config.data}: {line}")
    say(f"{config.data}: {len(prompts)} prompts; the first:\n{tokenizer.decode(prompts[0].ids.tolist())}")
    progress = Progress(len(prompts), max_new_tokens=settings.max_new_tokens, say=say)
    with _sampler(config, model, tokenizer, eos_ids, prompts, say, progress.made) as sampler:
        facts = {**sampler.provenance(settings), **_settings(settings), "template": _template(prompts[0], tokenizer)}
        with SampleFile(Path(config.out), resume=config.resume, prompts=prompts, sampler=facts) as file:
            todo = [prompt for prompt in prompts if prompt.number not in file.done]
            progress.start(done=len(prompts) - len(todo))
            check = _Check(model, config.load, settings, say) if model else None
            with _kept(file, len(prompts), say):
                _fill(file, todo, sampler, settings, facts, Vocabulary(tokenizer, eos_ids), progress, check)
            file.finish()
    progress.end()
    say(f"done: {config.out}")
    return SampleResult(Path(config.out), len(prompts), progress.completions, progress.cut, progress.tokens)


def _fill(
    file: SampleFile,
    prompts: Sequence[Prompt],
    sampler: Sampler,
    settings: SampleConfig,
    facts: dict[str, Any],
    vocabulary: Vocabulary,
    progress: Progress,
    check: _Check | None,
) -> None:
    """Sample what is missing, row by row into the file."""
    unwritten: set[str] = set()
    ids, numbers = [prompt.ids for prompt in prompts], [prompt.number for prompt in prompts]
    for index, completions in sampler.sample(ids, numbers=numbers, settings=settings):
        row, left_out = group_row(prompts[index], completions, vocabulary, facts)
        file.append(row)
        progress.finished(completions)
        if check:
            check(ids[index], completions)
            check = None
        if fresh := set(left_out) - unwritten:
            progress.say(
                f"columns left out of {file.path.name}: {', '.join(sorted(fresh))} (another answer, part of the prompt, or no JSON)"
            )
            unwritten |= fresh


def _load(config: SampleRunConfig) -> PreTrainedModel:
    """The model on its device."""
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    model = models.load_policy(config.model, config.load)
    try:
        return model.to(device)  # type: ignore[arg-type]
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device is {config.device}: {str(error).splitlines()[0]} Use --device auto or one that is there."
        ) from error


@contextmanager
def _sampler(
    config: SampleRunConfig,
    model: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: tuple[int, ...],
    prompts: Sequence[Prompt],
    say: Callable[[str], None],
    watch: Callable[[int], None],
) -> Iterator[Sampler]:
    """The sampler of the backend, ready."""
    if model is not None:
        yield TransformersSampler(
            model, eos_ids, vocabulary=len(tokenizer), name=config.model, autocast=config.load.autocast, watch=watch
        )
    elif config.backend == "vllm":
        yield VLLMSampler(config.model, eos_ids, config.load, config.engine, config.sample, watch=watch)
    else:
        turns = {prompt.number: as_turns(prompt.text, "user") for prompt in prompts if not prompt.truncated}
        remote = OpenAISampler(config.server, tokenizer, eos_ids, turns=turns, watch=watch)
        try:
            for line in remote.connect(prompts[0].ids, number=prompts[0].number, settings=config.sample):
                say(line)
            _refuse_cut_prompts(prompts, remote)
            yield remote
        finally:
            remote.close()


def _refuse_cut_prompts(prompts: Sequence[Prompt], remote: OpenAISampler) -> None:
    """Without token ids the trainer tokenizes the whole conversation, and would train on more than was sent (R15)."""
    cut = [prompt for prompt in prompts if prompt.truncated]
    if cut and not remote.gives_ids:
        raise ConfigError(
            f"rows.too_long is truncate, and {len(cut)} prompts were cut (first {cut[0].place}), but the server gives no token ids,\n"
            "  so what was sent could not be trained on. Use `--rows.too-long drop`, or a server that gives them, such as vLLM."
        )


def _settings(settings: SampleConfig) -> dict[str, Any]:
    """What decides the set, for the row's provenance."""
    return {name: getattr(settings, name) for name in ("n", "temperature", "top_p", "max_new_tokens", "seed")}


def _template(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> str:
    """Which chat template was applied: "none", or its content's hash."""
    if isinstance(prompt.text, str):
        return "none"
    return f"sha256:{hashlib.sha256(str(tokenizer.chat_template).encode()).hexdigest()}"


@contextmanager
def _kept(file: SampleFile, total: int, say: Callable[[str], None]) -> Iterator[None]:
    """When sampling stops before its end: say what is kept and how to go on."""
    try:
        yield
    except (ServerError, KeyboardInterrupt) as error:
        kept = f"{len(file.done)} of {total} prompts are done and kept in {file.partial}. Go on with --resume."
        if isinstance(error, ServerError):
            raise ServerError(f"{error}\n  {kept}") from error
        say(kept)
        raise


class _Check:
    """Compares the log-probs of some completions with the trainer's, and says so (R10)."""

    def __init__(self, model: PreTrainedModel, load: ModelConfig, settings: SampleConfig, say: Callable[[str], None]) -> None:
        self.model, self.load, self.settings, self.say = model, load, settings, say

    def __call__(self, prompt: Any, completions: Sequence[Sampled]) -> None:
        device = next(self.model.parameters()).device
        with torch.autocast(device.type, torch.bfloat16, enabled=self.load.autocast == "bfloat16"):
            found = logp_mismatch(TokenLogps(self.model), [prompt], [completions], transform=self.settings.transform)
        self.say(
            f"log-probs differ from the trainer's by {found.mean:.2g} nats on average, {found.max:.2g} at most ({found.tokens} tokens)"
        )
