"""`train`: from a configuration to a finished run directory."""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import nn

from humanline import models
from humanline.config import TrainConfig, validate_for_training
from humanline.data.describe import content_key
from humanline.data.feed import Feed, Rows, Source
from humanline.data.load import load_data, load_held_out
from humanline.data.plan import Plan
from humanline.data.rows import EncodedGroup
from humanline.distributed import Workers
from humanline.errors import CheckpointError, Interrupted, ModelError, TrainingError
from humanline.keeper import Keeper
from humanline.limit import Off
from humanline.loop import Loop, adamw, needs_reference
from humanline.metrics import MetricsLog, duration, watch
from humanline.objectives import CustomObjective, Objective
from humanline.reference import Reference, load_numbers, save_numbers
from humanline.report import write_report
from humanline.rollout import Rollouts, fresh_source
from humanline.rundir import RunDirectory
from humanline.summary import write_summary
from humanline.token_logps import TokenLogps

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class RunResult:
    """What a finished run left behind."""

    out: Path
    steps: int
    metrics: dict[str, Any]
    """the last step's line of metrics.jsonl, evaluation included"""
    seconds: dict[str, float]
    """wall-clock by what it was spent on, of this process and this part of the run"""


def train(config: TrainConfig) -> RunResult:
    """Train a policy as `config` says and write RUN/final.

    Raises a `HumanlineError` for anything a user can mend. SIGINT and SIGTERM finish the step, save, and raise `Interrupted`.
    """
    validate_for_training(config)
    workers = Workers(config)
    directory = RunDirectory(config, main=workers.main)
    workers.barrier()
    try:
        say: Callable[[str], None] = print if workers.main else (lambda _: None)
        source = str(directory.newest or config.model)
        try:
            tokenizer = models.load_tokenizer(source, config.load)
            model = models.load_policy(source, config.load)
        except ModelError as error:
            if directory.newest is None:
                raise
            raise CheckpointError(f"{source} is damaged: {error}\n  Remove it to resume from an earlier checkpoint.") from error
        objective = build_objective(config)
        supply = _supply(config, objective, model, tokenizer, directory.path, say)
        say(_memory_line(model))
        result = Run(config, directory, workers, objective, model, tokenizer, supply).go(say)
    except BrokenPipeError:
        raise
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"the run in {config.out} stopped, as a file could not be written: {error}. Free space or fix permissions, then start it "
            "again: with --resume if there is a config.yaml in it."
        ) from error
    finally:
        directory.close()
    if config.log.report and workers.main:
        say(f"report: {write_report([result.out])}")
    return result


def build_objective(config: TrainConfig) -> Objective:
    """The objective of a config; a custom one is imported."""
    return config.objective.build() if isinstance(config.objective, CustomObjective) else config.objective


@dataclass(frozen=True)
class Supply:
    """What a run is fed with."""

    source: Source
    plan: Plan
    key: str
    """content of the training data, or of the prompts"""
    groups: list[EncodedGroup]
    """all training groups when they are known before the run, else []"""
    held_out: list[EncodedGroup]


def _supply(
    config: TrainConfig,
    objective: Objective,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    say: Callable[[str], None],
) -> Supply:
    """Offline rows, or rollouts, with the rows held out for evaluation."""
    if config.sample_every is not None:
        rollouts, plan, key = fresh_source(config, objective, model, tokenizer, folder / "rollouts", say)
        return Supply(rollouts, plan, key, [], load_held_out(config, objective, tokenizer, model, say))
    data = load_data(config, objective, tokenizer, model, say)
    plan = Plan(len(data.training), config.batch_size, config.seed, config.rows.shuffle)
    rows = Rows(data.training, plan, plan.total_steps(config.steps, config.epochs))
    return Supply(rows, plan, content_key(data.training), data.training, data.held_out)


class Run:
    """The parts of one run put together, with their saving and restoring."""

    def __init__(
        self,
        config: TrainConfig,
        directory: RunDirectory,
        workers: Workers,
        objective: Objective,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        supply: Supply,
    ) -> None:
        self.config, self.directory, self.workers, self.tokenizer = config, directory, workers, tokenizer
        self.model = model
        self.last = supply.plan.total_steps(config.steps, config.epochs)
        # Later epochs bring no new rows, only new mismatched pairs.
        self._scored_ahead = self.last if objective.mismatched else min(self.last, supply.plan.steps_per_epoch)
        self.rollouts = supply.source if isinstance(supply.source, Rollouts) else None
        module: nn.Module = TokenLogps(model)
        optimizer: torch.optim.Optimizer = adamw(module, config.optimizer)
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        ordered = [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
        module, optimizer = workers.prepare(module, optimizer)

        def loop(source: Source, groups: list[EncodedGroup], config: TrainConfig, last: int, starting: nn.Module | None) -> Loop:
            feed = Feed(source, config.micro_batch_tokens, objective.mismatched, workers.rank, workers.world)
            reference = Reference(config.sync_every) if needs_reference(config, objective, groups) else None
            return Loop(config, objective, module, optimizer, workers, feed, reference, last, starting)

        starting = None
        if self.rollouts and config.sync_every is None and needs_reference(config, objective):
            starting = workers.frozen(TokenLogps(models.load_policy(config.model, config.load)))
        self.loop = loop(supply.source, supply.groups, config, self.last, starting)
        self.evaluation = None
        if supply.held_out:
            # One "step" of all held-out rows, against the starting policy and without a limiter.
            rows = len(supply.held_out)
            once = Rows(supply.held_out, Plan(rows, rows, config.seed, shuffle=False), 1)
            self.evaluation = loop(once, supply.held_out, config.replace(limit=Off(), sync_every=None), 1, None)
        keys = {"data": supply.key, "held_out": content_key(supply.held_out)}
        self.log: MetricsLog | None = None
        self._warned = False
        self.keeper = Keeper(config, directory, workers, self.loop, self.evaluation, model, tokenizer, ordered, keys)

    def go(self, say: Callable[[str], None]) -> RunResult:
        """Train from step 1 or the newest checkpoint to the end."""
        started = time.perf_counter()
        done = self.keeper.restore(say) if self.directory.newest else 0
        if self.workers.main:
            self.directory.write_config(self.config)
        self._write_summary(done + 1, {}, finished=False)
        if not done:
            before = time.perf_counter()
            self._first_references()
            self.loop.clock.add("reference", before)
        elif self.rollouts and self.rollouts.within(done + 1):
            self.rollouts.restore(done + 1)
        trackers = bool(self.config.log.trackers)
        if trackers:
            self.workers.accelerator.init_trackers(self.config.log.project, config=_flat(self.config))
        every = self.config.log.every if self.workers.main else 0
        if self.workers.main:
            self.log = MetricsLog(self.directory.path / "metrics.jsonl", every=every, total=self.last, done=done)
        line: dict[str, Any] = {}
        try:
            with interruptions() as interrupted:
                for t in range(done + 1, self.last + 1):
                    line = self._step(t)
                    if self.log:
                        self.log.write(line)
                    if trackers:
                        self.workers.accelerator.log({name: value for name, value in line.items() if name != "step"}, step=t)
                    self._checkpoint_if_due(t, interrupted)
        finally:
            if self.log:
                self.log.close()
            if trackers:
                self.workers.accelerator.end_training()
        self.keeper.save_final()
        seconds = {what: round(value, 3) for what, value in self.loop.clock.seconds.items()}
        other = time.perf_counter() - started - sum(seconds.values())
        self._write_summary(done + 1, seconds | {"other": other}, finished=True)
        say(
            f"done: {self.directory.path / 'final'}  ({', '.join(f'{what} {duration(value)}' for what, value in seconds.items())})"
        )
        return RunResult(self.directory.path, self.last, line, seconds)

    def _write_summary(self, first: int, seconds: dict[str, float], *, finished: bool) -> None:
        if self.workers.main:
            device, processes = self.workers.device, self.workers.world
            write_summary(
                self.directory.path,
                finished=finished,
                first=first,
                last=self.last,
                seconds=seconds,
                device=device,
                processes=processes,
            )

    def _open_window(self, t: int) -> dict[str, float]:
        """Fresh data for step t and the ones after it; new data re-syncs the reference, or is scored by the starting policy."""
        assert self.rollouts is not None
        self.rollouts.open(t, self.workers.from_main)
        self.loop.clock.seconds |= self.rollouts.seconds
        if self.loop.reference:
            before = time.perf_counter()
            self.loop.sync(t, before=1 if self.loop.starting else t)
            self.loop.clock.add("reference", before)
        if self.rollouts.metrics["rollout_truncated"] > 0.5 and not self._warned and self.workers.main:
            self._warned = True
            print(
                f"warning: {self.rollouts.metrics['rollout_truncated']:.0%} of the completions of this window were cut at "
                f"{self.config.rollout.sample.max_new_tokens} tokens; raise --rollout.sample.max-new-tokens."
            )
        return self.rollouts.metrics

    def _step(self, t: int) -> dict[str, Any]:
        window = self._open_window(t) if self.rollouts and self.rollouts.due(t) else {}
        try:
            line = self.loop.step(t) | window
        except TrainingError:
            if t > 1:
                self._save(t - 1)
            raise
        if self.evaluation and (t % self.config.eval.every == 0 or t == self.last):
            line |= {f"eval_{name}": value for name, value in self.evaluation.measure().items()}
        return line

    def _checkpoint_if_due(self, t: int, interrupted: list[int]) -> None:
        every = self.config.checkpoint.every
        stop = self.workers.most(max(interrupted, default=0))
        if stop and t < self.last:
            path = self._save(t)
            raise Interrupted(
                f"stopped after step {t} of {self.last}; saved {path}. Go on with --resume --out {self.config.out}", stop
            )
        if every and t % every == 0 and t < self.last:
            self._save(t)

    def _save(self, t: int) -> Path:
        """A checkpoint after step t, with every line up to it safely on disk."""
        if self.log:
            self.log.sync()
        return self.keeper.save(t)

    # references before step 1

    def _first_references(self) -> None:
        """The starting policy scores the steps up to the first sync, or, when the reference never moves, everything it will need."""
        if self.evaluation and self.evaluation.reference:
            self.evaluation.sync(1, before=1)
        reference = self.loop.reference
        if reference is None or self.rollouts:
            return
        if self.config.sync_every is not None:
            self.loop.sync(1, before=1)
            return
        # Step 1 is scored in the very shape it is trained in, whatever a cache holds: its log-ratios are exactly 0.
        self.loop.extend(range(1, 2))
        cache = Path(self.config.reference_cache) / f"{self._start_key()}.safetensors" if self.config.reference_cache else None
        if cache and cache.exists():
            reference.numbers = {**load_numbers(cache), **reference.numbers}
        self.loop.extend(range(1, self._scored_ahead + 1), lambda steps: watch(steps, "scoring under the starting policy"))
        numbers = self.workers.union(reference.numbers)
        if self.workers.main:
            save_numbers(self.directory.path / "reference.safetensors", numbers)
            if cache:
                save_numbers(cache, numbers)
        self.workers.barrier()

    def _start_key(self) -> str:
        return models.fingerprint(self.model, self.config.load.dtype, self.config.load.autocast, self.config.load.attention)


@contextmanager
def interruptions() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of dying from them; a second one acts as usual."""
    seen: list[int] = []

    def note(number: int, _: object) -> None:
        seen.append(number)
        print("\nstopping after this step (once more to stop at once) …", flush=True)
        signal.signal(number, before[number])

    before: dict[int, Any] = {}
    try:
        for caught in (signal.SIGINT, signal.SIGTERM):
            before[caught] = signal.signal(caught, note)
    except ValueError:  # not in the main thread, where signals do not arrive anyway
        yield seen
        return
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _memory_line(model: nn.Module) -> str:
    """What the policy takes before any activation; there is no second model."""
    count = sum(parameter.numel() for parameter in model.parameters())
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return f"policy: {count / 1e6:.4g}M parameters; weights + gradients + AdamW {4 * size / 2**30:.2f} GiB, reference: no second model"


def _flat(config: TrainConfig) -> dict[str, Any]:
    """Settings for trackers, as plain values."""
    return {
        key: value if isinstance(value, int | float | str | bool) else json.dumps(value)
        for key, value in dataclasses.asdict(config).items()
    }
