"""The training loop: the order of events of an optimizer step, and the only place that calls backward.

    1  the step's batches, and the reference's numbers for them
    2  if t % k == 0: the policy, as it is before this update, scores the batches of steps t+1 … t+k (humanline.reference)
    3  KTO's K over the step's mismatched pairs
    4  per micro-batch: log-probs → log-ratios → limiter → objective → backward of sum / (weight of the whole step)
    5  gradient norm, stop if anything is not finite, then the update

B sequences · T completion tokens.  mask_BT: True = the token counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from humanline import randomness
from humanline.config import OptimizerConfig, TrainConfig
from humanline.data import batch
from humanline.data.batch import MicroBatch, collate
from humanline.data.feed import Feed, Work
from humanline.data.rows import EncodedCompletion, EncodedGroup
from humanline.distributed import Workers
from humanline.errors import TrainingError
from humanline.limit import Limiter, Perceived
from humanline.objectives import Facts, Loss, Objective
from humanline.objectives.base import Metrics, sequence_sum, total
from humanline.reference import Reference


@dataclass
class Clock:
    """Wall-clock seconds of a run by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, what: str, since: float) -> float:
        """Book the time since `since` and return the present."""
        now = time.perf_counter()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - since
        return now


def learning_rate(config: OptimizerConfig, t: int, last: int) -> float:
    """Learning rate of step t (from 1) of `last`: a linear warm-up to the peak, then the schedule."""
    warmup = round(config.warmup * last) if config.warmup < 1 else int(config.warmup)
    if t <= warmup:
        return config.lr * t / warmup
    progress = (t - 1 - warmup) / max(last - warmup, 1)
    decay = {"constant": 1.0, "linear": 1 - progress, "cosine": 0.5 * (1 + math.cos(math.pi * progress))}[config.schedule]
    return config.lr * decay


def adamw(module: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def needs_reference(config: TrainConfig, objective: Objective, groups: Iterable[EncodedGroup] = ()) -> bool:
    """False for objectives without one, and where the sampler's own log-probs and no KL term make a scoring pass pointless."""
    if not objective.reference:
        return False
    if config.sync_every is not None or not objective.sampler_ratio or objective.anchored:
        return True
    return any(completion.logps is None for group in groups for completion in group.completions)


class Loop:
    """One policy being trained. `step(t)` does one optimizer step; `score` is the reference's eye on the policy."""

    def __init__(
        self,
        config: TrainConfig,
        objective: Objective,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        workers: Workers,
        feed: Feed,
        reference: Reference | None,
        last: int,
        starting: nn.Module | None = None,
    ) -> None:
        """starting: the frozen starting policy, needed in memory only for a fixed reference over data that is not known before."""
        self.config, self.objective, self.limiter = config, objective, config.limit
        self.module, self.optimizer, self.workers = module, optimizer, workers
        self.feed, self.reference, self.last, self.starting = feed, reference, last, starting
        self.clock = Clock()
        self._idle = collate([(_IDLE,)]).to(workers.device)

    def step(self, t: int) -> dict[str, Any]:
        """Optimizer step t (from 1). Returns its metrics; raises `TrainingError` before the update if something is not finite."""
        start = now = time.perf_counter()
        torch.manual_seed(randomness.key(self.config.seed, "dropout", t, self.workers.rank) % 2**63)
        work = self.feed.work(t)
        references = [self._reference(micro_batch) for micro_batch in work.train]
        crossed = [self._reference(micro_batch) for micro_batch in work.mismatched]
        now = self.clock.add("data", now)
        age = self.reference.age(t) if self.reference else None
        before = self.reference.state if self.reference else None
        if self.reference and self.reference.due(t) and t < self.feed.horizon:
            self.sync(t + 1, before=t)
            now = self.clock.add("reference", now)
        kl = self._mismatched_kl(work, crossed, t)
        metrics = self._gradients(work, references, kl, t)
        grad_norm = float(self.workers.clip(self.module.parameters(), self.config.optimizer.max_grad_norm))
        totals = self.workers.merge(metrics)
        line = _averages(totals) | {"grad_norm": grad_norm}
        if not (math.isfinite(line["loss"]) and math.isfinite(grad_norm)):
            if self.reference and before:
                self.reference.state = before
            raise TrainingError(_not_finite(t, line["loss"], grad_norm, work, self._by_sampler))
        lr = learning_rate(self.config.optimizer, t, self.last)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.clock.add("train", now)
        seconds = time.perf_counter() - start
        tokens = int(totals["tokens"][0])
        facts = {"lr": lr, "tokens": tokens, "tokens_per_second": tokens / seconds, "seconds": seconds}
        if self.objective.mismatched:
            facts["kl_mismatched"] = float(kl)
        return {"step": t} | line | ({} if age is None else {"reference_age": age}) | facts

    def sync(self, first: int, *, before: int, watch: Callable[[Sequence[int]], Iterable[int]] = iter) -> None:
        """Take the policy as it is now, before the update of step `before`, as the reference of steps `first` to the next sync.

        `watch` may show progress over the steps.
        """
        assert self.reference is not None
        self._score_steps(watch(self.reference.window(first, self.feed.horizon)), before=before, keep=False)

    def extend(self, steps: Sequence[int], watch: Callable[[Sequence[int]], Iterable[int]] = iter) -> None:
        """Score further steps under the starting policy, which is still the current one; what is known already stays as it is."""
        self._score_steps(watch(steps), before=1, keep=True)

    def _score_steps(self, steps: Iterable[int], *, before: int, keep: bool) -> None:
        assert self.reference is not None
        works = (self.feed.work(step) for step in steps)
        score = partial(self.score, module=self.starting)
        self.reference.sync(([*work.train, *work.mismatched] for work in works), score, before=before, keep=keep)

    @torch.no_grad()
    def score(self, micro_batches: list[MicroBatch], module: nn.Module | None = None) -> list[Tensor]:
        """logp_BT of each micro-batch under the current weights, or those of `module`. Every process must call it equally often."""
        module = module or self.module
        module.eval()
        idle = [self._idle] * (self.workers.most(len(micro_batches)) - len(micro_batches))
        scored = [module(**micro_batch.to(self.workers.device).inputs) for micro_batch in [*micro_batches, *idle]]
        return scored[: len(micro_batches)]

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Loss and metrics of the feed's first step, without touching the weights."""
        self.module.eval()
        work = self.feed.work(1)
        kl = self._mismatched_kl(work, [self._reference(micro_batch) for micro_batch in work.mismatched], 0)
        weights = [_weight(self.objective, micro_batch) for micro_batch in work.train]
        metrics: Metrics = {"loss": (torch.zeros(()), torch.stack(weights).double().sum() if weights else torch.zeros(()))}
        for number in range(self.workers.most(len(work.train))):
            if number < len(work.train):
                loss = self._loss(work.train[number], self._reference(work.train[number]), kl, 0)
                _add(metrics, loss.metrics | {"loss": (loss.total, torch.zeros(()))})
            else:
                self._logps(self._idle)
        return _averages(self.workers.merge(metrics))

    def _logps(self, micro_batch: MicroBatch) -> Tensor:
        return self.module(**micro_batch.to(self.workers.device).inputs)

    def _reference(self, micro_batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """(what the ratio is taken against, what the KL is taken against), each [B, T] in nats on the device."""
        sampler_BT = micro_batch.sampler_logp_BT
        if self.reference is not None:
            ref_BT = self.reference.logps(micro_batch)
        else:
            ref_BT = sampler_BT if self.objective.reference else torch.zeros_like(sampler_BT)
        base_BT = torch.where(sampler_BT.isnan(), ref_BT, sampler_BT) if self._by_sampler else ref_BT
        return base_BT.to(self.workers.device), ref_BT.to(self.workers.device)

    @property
    def _by_sampler(self) -> bool:
        """Whether ratios are taken against the sampler's stored log-probs, where there are any."""
        return self.objective.sampler_ratio and self.config.sync_every is None

    def _perceive(self, ratio_BT: Tensor, micro_batch: MicroBatch, purpose: str, t: int) -> Perceived:
        """Through the limiter, with draws that depend on (seed, purpose, step, sequence) only."""
        uniform_2BT = draws(self.limiter, micro_batch, self.config.seed, purpose, t)
        return self.limiter(ratio_BT, micro_batch.mask_BT, None if uniform_2BT is None else uniform_2BT.to(ratio_BT.device))

    def _mismatched_kl(self, work: Work, references: list[tuple[Tensor, Tensor]], t: int) -> Tensor:
        """KTO's K = max(0, mean over the step's mismatched pairs of Σ_t r_t), no gradient."""
        if not self.objective.mismatched:
            return torch.zeros((), device=self.workers.device)
        sums: list[float | Tensor] = [0.0]
        for micro_batch, logp_BT, (base_BT, _) in zip(work.mismatched, self.score(work.mismatched), references, strict=True):
            micro_batch = micro_batch.to(self.workers.device)
            ratio_BT = torch.where(micro_batch.mask_BT, logp_BT - base_BT, 0.0)
            perceived = self._perceive(ratio_BT, micro_batch, "limit mismatched", t)
            sums.append(sequence_sum(perceived.ratio_BT, micro_batch.mask_BT).double().sum())
        count = sum(len(micro_batch.sequences) for micro_batch in work.mismatched)
        total_sum, pairs = self.workers.sum(
            [torch.stack([torch.as_tensor(value).cpu().double() for value in sums]).sum(), float(count)]
        )
        return (total_sum / pairs.clamp(min=1)).clamp(min=0).float().to(self.workers.device)

    def _gradients(self, work: Work, references: list[tuple[Tensor, Tensor]], kl: Tensor, t: int) -> Metrics:
        """Backward of every micro-batch. Processes with fewer of them run empty ones, so that collectives stay matched."""
        self.module.train()
        objective = self.objective
        weights = [_weight(objective, micro_batch) for micro_batch in work.train]
        weight = float(self.workers.sum([torch.stack(weights).double().sum() if weights else 0.0]))
        scale = self.workers.world / weight if weight else 0.0
        count = self.workers.most(len(work.train))
        metrics: Metrics = {"loss": _pair(0.0, weight / self.workers.world), "tokens": _pair(0.0, 0.0)}
        for number in range(count):
            with self.workers.accumulate(self.module, last=number == count - 1):
                if number < len(work.train):
                    loss = self._loss(work.train[number], references[number], kl, t)
                    _add(metrics, loss.metrics | {"loss": (loss.total.detach(), torch.zeros(()))})
                    self.workers.accelerator.backward(loss.total * scale)
                else:
                    self.workers.accelerator.backward(self._logps(self._idle).sum() * 0.0)
        return metrics

    def _loss(self, micro_batch: MicroBatch, reference: tuple[Tensor, Tensor], kl: Tensor, t: int) -> Loss:
        """From tokens to a summed loss: the whole line of the method."""
        micro_batch = micro_batch.to(self.workers.device)
        mask_BT, (base_BT, ref_BT) = micro_batch.mask_BT, reference
        logp_BT = self._logps(micro_batch)
        ratio_BT = torch.where(mask_BT, logp_BT - base_BT, 0.0)
        log_ratio_BT = ratio_BT if base_BT is ref_BT else torch.where(mask_BT, logp_BT - ref_BT, 0.0)
        perceived = self._perceive(ratio_BT, micro_batch, "limit", t)
        facts = Facts(mask_BT, micro_batch.group_B, micro_batch.feedback_B, log_ratio_BT, kl)
        loss = _checked(self.objective.loss(perceived.ratio_BT, facts), self.objective)
        return Loss(loss.total, loss.metrics | _token_metrics(micro_batch, ratio_BT, perceived, self.objective.reference))


def _weight(objective: Objective, micro_batch: MicroBatch) -> Tensor:
    """What the objective divides by, checked like its loss: a vector would be summed, a negative number turn the gradient around."""
    weight: object = objective.weight(micro_batch.mask_BT, micro_batch.group_B, micro_batch.feedback_B)
    if isinstance(weight, Tensor) and weight.ndim == 0:
        if 0 <= float(weight) < math.inf:
            return weight
        found = f"{float(weight):g}"
    else:
        found = f"a tensor of shape {list(weight.shape)}" if isinstance(weight, Tensor) else f"a {type(weight).__name__}"
    raise TrainingError(
        f"objective {type(objective).__name__}: weight() returned {found}. Expected one finite number from 0 on as a tensor, "
        "e.g. `mask_BT.sum()`: what the summed loss is divided by."
    )


def _checked(loss: object, objective: Objective) -> Loss:
    """What an objective returned. One of a user's own may return anything: say what, instead of failing far from it."""

    def scalar(value: object) -> bool:
        return isinstance(value, Tensor) and value.ndim == 0

    name = f"objective {type(objective).__name__}"
    if not isinstance(loss, Loss):
        raise TrainingError(f"{name}: loss() returned a {type(loss).__name__}. Expected Loss(total, metrics).")
    if not scalar(loss.total):
        shape = f"shape {list(loss.total.shape)}" if isinstance(loss.total, Tensor) else f"type {type(loss.total).__name__}"
        raise TrainingError(f"{name}: loss() returned a total of {shape}. Expected one number as a tensor: return the `.sum()`.")
    if torch.is_grad_enabled() and not loss.total.requires_grad:
        raise TrainingError(f"{name}: loss() returned a total without gradient. Expected it to depend on ratio_BT, undetached.")
    for metric, pair in loss.metrics.items():
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(map(scalar, pair))):
            raise TrainingError(
                f"{name}: metric {metric!r} is not a pair of scalar tensors. Expected (sum, weight), as `total` gives."
            )
    return loss


_IDLE = batch.Sequence(
    prompt_ids=np.zeros(1, np.int32),
    completion=EncodedCompletion(np.zeros(1, np.int32), np.ones(1, bool), feedback=0.0, logps=None, finished=True),
    row=-1,
    number=0,
)


def draws(limiter: Limiter, micro_batch: MicroBatch, seed: int, purpose: str, t: int) -> Tensor | None:
    """The limiter's uniform draws in (0, 1], float32 [2, B, T]: a function of (seed, purpose, step, row, completion) alone."""
    if not limiter.draws:
        return None
    uniform_2BT = np.ones((limiter.draws, *micro_batch.mask_BT.shape), np.float32)
    for b, sequence in enumerate(micro_batch.sequences):
        stream = randomness.generator(seed, purpose, t, sequence.row, sequence.number)
        length = len(sequence.completion.ids)
        uniform_2BT[:, b, :length] = 1 - stream.random((length, limiter.draws), np.float32).T
    return torch.from_numpy(uniform_2BT)


def _token_metrics(micro_batch: MicroBatch, ratio_BT: Tensor, perceived: Perceived, reference: bool) -> Metrics:
    """Shares stopped by the limiter, the spread of log-ratios before it, and how much was processed."""
    mask_BT = micro_batch.mask_BT
    count = mask_BT.sum().float()
    metrics: Metrics = {
        "tokens": (torch.tensor(float(sum(sequence.length for sequence in micro_batch.sequences))), torch.ones(())),
        "completion_tokens": (count, torch.ones(())),
    }
    if not reference:
        return metrics
    ratio_BT = ratio_BT.detach()
    return metrics | {
        "clipped_low": (perceived.low_BT.sum().float(), count),
        "clipped_high": (perceived.high_BT.sum().float(), count),
        "log_ratio_mean": total(ratio_BT, mask_BT),
        "log_ratio_square": total(ratio_BT.square(), mask_BT),
    }


def _pair(value: float, weight: float) -> tuple[Tensor, Tensor]:
    return torch.tensor(value, dtype=torch.float64), torch.tensor(weight, dtype=torch.float64)


def _add(metrics: Metrics, more: Metrics) -> None:
    """Add sums and weights, in place, without waiting for the device."""
    for name, (value, weight) in more.items():
        old_value, old_weight = metrics.get(name, (torch.zeros(()), torch.zeros(())))
        metrics[name] = (old_value.to(value.device) + value, old_weight.to(weight.device) + weight)


_SUMS = ("tokens", "completion_tokens")


def _averages(totals: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Sum / weight of every metric; NaN where nothing was counted. The loss of a step that has nothing to train on is 0."""
    line = {name: value if name in _SUMS else value / weight if weight else math.nan for name, (value, weight) in totals.items()}
    if not totals["loss"][1]:
        line["loss"] = 0.0
    if "log_ratio_square" in line:
        line["log_ratio_std"] = math.sqrt(max(line.pop("log_ratio_square") - line["log_ratio_mean"] ** 2, 0.0))
    return line


IMPROBABLE = -40.0
"""nats: a sampler draws such a token once in 10^17, and the squared gradient of its ratio to a likely one exceeds float32"""


def _not_finite(t: int, loss: float, grad_norm: float, work: Work, by_sampler: bool) -> str:
    sequences = [sequence for micro_batch in work.train for sequence in micro_batch.sequences]
    stored = [(float(each.completion.logps.min()), each) for each in sequences if each.completion.logps is not None]
    lowest, where = min(stored, key=lambda pair: pair[0], default=(0.0, None))
    cause = ""
    if by_sampler and where is not None and lowest < IMPROBABLE:
        cause = (
            f"Data row {where.row + 1} stores a log-prob of {lowest:g} for a token of completion {where.number + 1}, and its ratio "
            "may exceed float32: correct the log-probs, or leave them out, so that a scoring pass replaces them. Otherwise: "
        )
    return (
        f"step {t}: loss {loss}, gradient norm {grad_norm}; expected finite numbers. Stopped before the update, so the weights are "
        f"those of step {t - 1}. The step held data rows {sorted({each.row + 1 for each in sequences})[:8]}…. {cause}"
        "Lower --optimizer.lr, or use float32 (--load.dtype float32 --load.autocast off)."
    )
