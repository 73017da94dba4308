"""Settings of the scorers, told apart by `name`. Each builds its scorer, whose libraries are imported only then."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from humanline.errors import ConfigError

if TYPE_CHECKING:
    from humanline.score.item import Scorer

OnError = Literal["skip", "zero", "raise"]


def require(condition: bool, name: str, value: object, expected: str) -> None:
    """Raise `ConfigError` naming the setting, its value and what was expected."""
    if not condition:
        raise ConfigError(f"scorer.{name} is {'null' if value is None else repr(value)}: expected {expected}.")


@dataclass(frozen=True, kw_only=True)
class ScorerSettings:
    """What every scorer has."""

    name: str = ""
    """which scorer it is"""
    weight: float = 1.0
    """what its scores are multiplied with in the reward; 0 = shown, not part of the reward"""
    on_error: OnError = "skip"
    """a completion that it cannot score: skip = it stays unscored, zero = counts as 0, raise = stop"""
    label: str | None = None
    """its name in the output; null = the function's or scorer's own. Needed to tell two of one kind apart"""
    free: ClassVar[tuple[str, ...]] = ()
    """settings that change no score, only how it is come by"""

    def __post_init__(self) -> None:
        require(math.isfinite(self.weight), "weight", self.weight, "a finite number")
        require(self.label != "", "label", self.label, "a name, or null")

    def build(self) -> Scorer:
        """The scorer itself. Raises `ConfigError` or `ModelError` for what can be told without data."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Function(ScorerSettings):
    """A Python function of your own, per completion, per prompt, or in the form of TRL's reward functions."""

    name: Literal["function"] = "function"
    path: str = ""
    """`package.module:function` or `file.py:function`; how it is called follows from its parameters (docs/scoring.md)"""

    def build(self) -> Scorer:
        from humanline.score.function import FunctionScorer

        return FunctionScorer(self)


@dataclass(frozen=True, kw_only=True)
class Math(ScorerSettings):
    """1 if the answer equals the row's gold answer as mathematics (math-verify), else 0."""

    name: Literal["math"] = "math"
    gold: str = "answer"
    """column of the gold answer, LaTeX or plain; a list holds several, any of which is right"""
    precision: int = 6
    """decimals that numbers are compared to, ≥ 1"""
    set_relations: bool = False
    """take an inequality and the set that solves it as equal (1 < x < 2 and (1, 2)) also where the gold answer is the set"""
    limit: float = 5.0
    """seconds of wall-clock for one completion, > 0; then the work is killed and the completion is unscored"""
    processes: int = 1
    """worker processes, ≥ 1"""
    free: ClassVar[tuple[str, ...]] = ("processes",)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.gold != "", "gold", self.gold, "the name of a column")
        require(self.precision >= 1, "precision", self.precision, "a whole number from 1 on")
        require(0 < self.limit < math.inf, "limit", self.limit, "seconds above 0, e.g. 5.0")
        require(self.processes >= 1, "processes", self.processes, "a whole number from 1 on")

    def build(self) -> Scorer:
        from humanline.score.verifier import MathScorer

        return MathScorer(self)


@dataclass(frozen=True, kw_only=True)
class GSM8K(ScorerSettings):
    """1 if the final number equals the row's gold number, else 0; numbers as grade-school answers write them."""

    name: Literal["gsm8k"] = "gsm8k"
    gold: str = "answer"
    """column of the gold answer: a number, or a solution that ends in one"""
    style: Literal["strict", "flexible"] = "strict"
    """strict: the number after the first `####`; flexible: the last number of the answer"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.gold != "", "gold", self.gold, "the name of a column")

    def build(self) -> Scorer:
        from humanline.score.gsm8k import GSM8KScorer

        return GSM8KScorer(self)


@dataclass(frozen=True, kw_only=True)
class RewardModel(ScorerSettings):
    """A sequence classification model that reads the whole conversation."""

    name: Literal["reward_model"] = "reward_model"
    model: str = ""
    """directory or hub name, in Hugging Face format"""
    head: int | None = None
    """which output is the score, counted from 0; null = the only one, or the model's own `score` (ArmoRM)"""
    template: Literal["auto", "chat", "none"] = "auto"
    """auto: message lists get the chat template, plain strings do not; chat: strings become turns; none: never"""
    max_length: int | None = None
    """tokens; a longer conversation is left unscored, never cut. null = what the model has positions for"""
    batch_tokens: int = 16384
    """tokens of a forward pass, padding included, ≥ 1; changes speed and memory only"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """of the weights"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto = the accelerator if there is one"""
    trust_remote_code: bool = False
    """run Python code that ships with the model; only for sources you trust"""
    revision: str | None = None
    """branch, tag or commit on the hub; null = the default branch"""
    free: ClassVar[tuple[str, ...]] = ("batch_tokens", "device")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.head is None or self.head >= 0, "head", self.head, "a whole number from 0 on, or null")
        require(self.max_length is None or self.max_length >= 2, "max_length", self.max_length, "tokens from 2 on, or null")
        require(self.batch_tokens >= 1, "batch_tokens", self.batch_tokens, "a whole number from 1 on")

    def build(self) -> Scorer:
        from humanline.score.reward_model import RewardModelScorer

        return RewardModelScorer(self)


GRADE = (
    "You grade the last answer of an assistant in a conversation. Judge how correct, complete and helpful it is for what the "
    "user asked, and how clearly it says so. Length by itself is no merit. {low} means useless or wrong, {high} that it could "
    "not be better."
)


@dataclass(frozen=True, kw_only=True)
class Judge(ScorerSettings):
    """A language model behind an OpenAI-compatible API that grades the answer on a scale."""

    name: Literal["judge"] = "judge"
    model: str = ""
    """name of the model at the server"""
    base_url: str | None = None
    """e.g. http://localhost:8000/v1; null = the OPENAI_BASE_URL variable, else OpenAI"""
    key_variable: str = "OPENAI_API_KEY"
    """environment variable that holds the key; a server at `base_url` may need none"""
    instructions: str = GRADE
    """what to grade by; {low} and {high} stand for the ends of the scale"""
    show: tuple[str, ...] = ()
    """columns that the judge sees besides the conversation, e.g. a reference answer"""
    low: float = 1.0
    """lowest score; a reply outside the scale is no score"""
    high: float = 10.0
    """highest score"""
    mode: Literal["number", "weighted"] = "number"
    """number: the score as written, with a reason; weighted: the mean of a one-digit scale under the token probabilities"""
    fallback: bool = False
    """weighted: where a reply has no log-probs take the number as written, and say so; false = such a row is unscored"""
    temperature: float | None = 0.0
    """of the judge; null = the server's default, as reasoning models ask for"""
    max_tokens: int = 1024
    """of a reply, thoughts included; a reply cut there is no score"""
    concurrency: int = 8
    """requests at a time, ≥ 1"""
    timeout: float = 120.0
    """seconds for one request, > 0"""
    retries: int = 5
    """further attempts after 429, 5xx, a timeout or a lost connection, ≥ 0"""
    backoff: float = 1.0
    """seconds before the first retry where the server names none, doubled each time, ≥ 0"""
    jobs: str | None = None
    """file of finished judgements, reused by every run that names it; null = beside the output"""
    free: ClassVar[tuple[str, ...]] = ("base_url", "key_variable", "concurrency", "timeout", "retries", "backoff", "jobs")

    def __post_init__(self) -> None:
        super().__post_init__()
        finite = math.isfinite(self.low) and math.isfinite(self.high)
        require(finite and self.low < self.high, "high", self.high, f"a finite number above scorer.low, which is {self.low}")
        digits = self.low in range(10) and self.high in range(10)
        scale = f"number, or a scale within the whole numbers 0 to 9 (scorer.low is {self.low:g}, scorer.high {self.high:g})"
        require(self.mode == "number" or digits, "mode", self.mode, scale)
        require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "a whole number from 1 on")
        require(self.concurrency >= 1, "concurrency", self.concurrency, "a whole number from 1 on")
        require(0 < self.timeout < math.inf, "timeout", self.timeout, "seconds above 0, e.g. 120.0")
        require(self.retries >= 0, "retries", self.retries, "a whole number from 0 on")
        require(0 <= self.backoff < math.inf, "backoff", self.backoff, "seconds from 0 on, e.g. 1.0")

    def build(self) -> Scorer:
        from humanline.score.judge import JudgeScorer

        return JudgeScorer(self)


ScorerConfig = Function | Math | GSM8K | RewardModel | Judge


@dataclass(frozen=True)
class RowsConfig:
    """Which rows are read, as in a training run's `rows`."""

    columns: dict[str, str] = field(default_factory=dict)
    """renames columns on reading, {expected: column in the file}, e.g. {prompt: question}; {} = the expected names"""
    split: str = "train"
    """split of a `datasets` data set; unused for files"""
    limit_rows: int | None = None
    """use only the first n rows, ≥ 1; null = all"""

    def __post_init__(self) -> None:
        if self.limit_rows is not None and self.limit_rows < 1:
            raise ConfigError(f"rows.limit_rows is {self.limit_rows}: expected a whole number from 1 on.")


@dataclass(frozen=True)
class ScoreConfig:
    """One run of `humanline score`."""

    data: str = ""
    """completions: a .jsonl, .json, .parquet or .csv file, or the name of a `datasets` data set"""
    out: str = ""
    """.jsonl file of the same rows with rewards; while it is being written it is called NAME.partial.jsonl"""
    resume: bool = False
    """go on with an unfinished `out`, and try again what could not be scored; its other rows stay"""
    stop: tuple[str, ...] = ()
    """texts that end a completion, e.g. '<|im_end|>'; what follows the first of them is not scored"""
    chunk: int = 16
    """rows scored together and then written, ≥ 1"""
    scorers: tuple[ScorerConfig, ...] = (Math(),)
    """what scores; the reward is the sum of weight · score"""
    rows: RowsConfig = field(default_factory=RowsConfig)

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise ConfigError(f"chunk is {self.chunk}: expected a whole number from 1 on.")


@dataclass(frozen=True)
class ScorersFile:
    """A YAML file of several scorers."""

    scorers: tuple[ScorerConfig, ...] = ()
    """each with its `name`, `weight` and settings"""


def validate(config: ScoreConfig) -> None:
    """Data and an output file are named, and are two; raises `ConfigError`."""
    for key in ("data", "out"):
        if not getattr(config, key):
            raise ConfigError(f"{key} is empty: expected it, e.g. `humanline score samples.jsonl --out scored.jsonl`.")
    if not config.out.endswith(".jsonl"):
        raise ConfigError(f"out is {config.out}: expected a name that ends in .jsonl.")
    if Path(config.out).exists() and Path(config.data).exists() and Path(config.out).samefile(config.data):
        raise ConfigError(f"out is {config.out}, which is the data: expected another file.")
