"""What a comparison is: methods, seeds, what is measured, and what is claimed before any of it has run."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from humanline.config import TrainConfig, validate_for_training
from humanline.errors import ConfigError, nearest

METHOD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
FACTS = ("method", "seed", "steps", "folder", "seconds", "resumed", "measured_at")
"""what results.json says about a run besides its metrics"""


@dataclass(frozen=True)
class Claim:
    """A sentence about two methods, with the test that decides it."""

    a: str
    """method"""
    b: str
    """method"""
    metric: str
    """what is compared: the mean of it over seeds"""
    kind: Literal["better", "different", "equal"] = "different"
    """better: a above b (Welch's t-test, one-sided); different: either way (two-sided); equal: within ± margin (two one-sided tests)"""
    margin: float | None = None
    """the largest difference that counts as equal, > 0, in units of the metric; null = kind is not equal"""
    lower: bool = False
    """better means a below b, as with a loss"""

    def __post_init__(self) -> None:
        if self.a == self.b:
            raise ConfigError(f"b is {self.b}: expected another method than a.")
        if self.kind == "equal" and (self.margin is None or not 0 < self.margin < math.inf):
            raise ConfigError(
                f"margin is {'null' if self.margin is None else self.margin}: expected the largest difference that counts as equal, "
                "above 0 and in units of the metric. Without one no data can show equality."
            )
        if self.kind != "equal" and self.margin is not None:
            raise ConfigError(f"margin is {self.margin} while kind is {self.kind}: expected kind equal. Leave it out.")
        if self.lower and self.kind != "better":
            raise ConfigError(f"lower is true while kind is {self.kind}: expected kind better, the only one with a direction.")


@dataclass(frozen=True)
class Study:
    """Methods × seeds, and what is compared."""

    methods: dict[str, TrainConfig]
    """{name: its settings}; `out` and `seed` of each run are set by the study"""
    out: str
    """folder of the comparison; finished runs in it are kept and not done again"""
    measure: tuple[str, ...]
    """metrics of metrics.jsonl by name (the newest value), and functions `module:function` or `file.py:function` that get the run
    directory and return {metric: value}"""
    seeds: tuple[int, ...] = (1, 2, 3)
    """each method runs once with each"""
    processes: int | None = None
    """runs at the same time, ≥ 1, each with cores // processes threads; null = one per core with one thread each, but one on an
    accelerator"""
    claims: tuple[Claim, ...] = ()
    """tested together: Holm's correction is over all of them"""
    alpha: float = 0.05
    """probability that any claim is shown although none is true, in (0, 0.5)"""
    source: str = ""
    """the file that it was read from; "" = none"""

    def __post_init__(self) -> None:
        for name in self.methods:
            check_name(name)
        for key in ("methods", "out", "measure", "seeds"):
            if not getattr(self, key):
                raise ConfigError(f"{key} is empty: {_NEEDED[key]}")
        for key in ("measure", "seeds"):
            values = getattr(self, key)
            if twice := [value for value in values if values.count(value) > 1]:
                raise ConfigError(f"{key} has {twice[0]} twice: expected each once.")
        if wrong := [seed for seed in self.seeds if not 0 <= seed < 2**63]:
            raise ConfigError(f"seeds has {wrong[0]}: expected whole numbers in [0, 2^63).")
        if self.processes is not None and self.processes < 1:
            raise ConfigError(f"processes is {self.processes}: expected a whole number from 1 on.")
        if not 0 < self.alpha < 0.5:
            raise ConfigError(f"alpha is {self.alpha}: expected a probability in (0, 0.5), e.g. 0.05.")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Of `measure`, those that training writes down."""
        return tuple(entry for entry in self.measure if ":" not in entry)

    @property
    def functions(self) -> tuple[str, ...]:
        """Of `measure`, those that are called after training."""
        return tuple(entry for entry in self.measure if ":" in entry)


_NEEDED = {
    "methods": "expected at least one, e.g. `methods: {plain: {}, humanline: {sync_every: 1, limit: {name: clip}}}`.",
    "out": "expected a folder for runs and results, e.g. `out: comparison`.",
    "measure": "expected what is compared, e.g. `measure: [eval_reward_accuracy]` or `measure: [quality.py:measure]`.",
    "seeds": "expected at least one whole number; two or more are needed for a spread and for tests.",
}


def check_name(name: str) -> None:
    """A method's name becomes a folder. Raises `ConfigError`."""
    if not METHOD_NAME.fullmatch(name):
        raise ConfigError(f"methods has {name!r}: expected a name of letters, digits and . _ + -, as it becomes a folder.")


def check(study: Study) -> None:
    """Check what no part of a study can tell alone, before anything runs. Raises `ConfigError`."""
    for name, config in study.methods.items():
        try:
            validate_for_training(config.replace(out=study.out))
            for metric in study.metrics:
                _check_metric(metric, config)
        except ConfigError as error:
            raise ConfigError(f"methods.{name}: {error}") from error
    for number, claim in enumerate(study.claims):
        check_claim(claim, study.methods, study, key=f"claims[{number}]")


def check_claim(claim: Claim, methods: dict[str, TrainConfig], study: Study | None = None, *, key: str) -> None:
    """A claim is about methods that there are, and, as far as it is known before the runs, about a metric that is measured."""
    for side in ("a", "b"):
        if (name := getattr(claim, side)) not in methods:
            raise ConfigError(f"{key}.{side} is {name}.{nearest(name, methods)} Expected a method: {', '.join(methods)}.")
    if study and not study.functions and claim.metric not in study.metrics:
        close = nearest(claim.metric, study.metrics)
        raise ConfigError(f"{key}.metric is {claim.metric}.{close} Expected one of `measure`: {', '.join(study.metrics)}.")


def _check_metric(metric: str, config: TrainConfig) -> None:
    """Metrics that a run cannot have, as what they are taken from is off."""
    if metric in FACTS:
        raise ConfigError(f"measure has {metric}, which is reported in any case. Leave it out.")
    if metric.startswith("eval_") and config.eval.data is None and not config.eval.fraction:
        raise ConfigError(
            f"measure has {metric}, but nothing is held out. Set eval.data or eval.fraction, for all methods alike."
        )
    if metric.startswith("rollout_") and config.sample_every is None:
        raise ConfigError(
            f"measure has {metric}, but sample_every is null: an offline run draws no samples. "
            "Measure all methods alike, e.g. by a function."
        )
