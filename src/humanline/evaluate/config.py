"""What an evaluation is: answers that can be checked, or outputs that a judge compares. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from humanline.config import ModelConfig
from humanline.errors import ConfigError, nearest
from humanline.sample.settings import Backend, EngineConfig, SampleConfig, ServerConfig, require_count
from humanline.score.comparison import COMPARE
from humanline.score.config import GSM8K, Function, Judge, Math, RewardModel

MODEL_EXAMPLE = "--model Qwen/Qwen2.5-1.5B-Instruct"


def _require(condition: bool, key: str, value: object, expected: str) -> None:
    """Raise `ConfigError` naming the setting by its key path, its value and what was expected."""
    if not condition:
        raise ConfigError(f"{key} is {'null' if value is None else value!r}: expected {expected}.")


def _require_share(key: str, value: float) -> None:
    _require(0 <= value <= 1, key, value, "a share from 0 to 1")


@dataclass(frozen=True)
class InstructionRowsConfig:
    """Which rows are read, and how they are put to the model."""

    split: str = "eval"
    """split of a `datasets` data set; unused for files"""
    limit_rows: int | None = None
    """use only the first n instructions of `data` or `outputs`, ≥ 1; null = all"""
    template: Literal["chat", "none"] = "chat"
    """chat: a user turn in the model's chat template; none: plain text, for base models"""

    def __post_init__(self) -> None:
        require_count("rows.limit_rows", self.limit_rows)


@dataclass(frozen=True)
class ProblemRowsConfig:
    """Which rows are read, and how they are put to the model."""

    columns: dict[str, str] = field(default_factory=dict)
    """renames columns of `samples`, {expected: column in the file}, e.g. {completions: code, prompt: question}"""
    split: str = "test"
    """split of a `datasets` data set; unused for files"""
    limit_rows: int | None = None
    """use only the first n problems, ≥ 1; null = all"""
    template: Literal["chat", "none"] = "chat"
    """chat: a user turn in the model's chat template; none: plain text, for base models"""

    def __post_init__(self) -> None:
        require_count("rows.limit_rows", self.limit_rows)


@dataclass(frozen=True)
class AnswersConfig:
    """Problems with one right answer: `humanline evaluate math500|gsm8k|FILE`. Which samples: `samples`, else `rescore`, else drawn."""

    data: str = ""
    """problems with answers: a .jsonl, .json, .parquet or .csv file, or the name of a `datasets` data set"""
    model: str = ""
    """directory or hub name of a causal LM, or `smollm2`; with a server: whose tokenizer and template are used"""
    out: str = ""
    """folder of results: settings.json, problems.jsonl, samples.jsonl, verdicts.jsonl, results.json"""
    samples: str = ""
    """file with a row per problem that holds its completions; they are scored as they are, and no model is needed"""
    rescore: bool = False
    """score the samples that `out` has, e.g. with another verifier; no model is needed"""
    resume: bool = False
    """go on with an unfinished `out`"""
    problem: str = "problem"
    """column of `data` that holds the problem; that of the answer is `scorer.gold`"""
    right: str = ""
    """column of `samples` that holds ready verdicts, 1, 0 or null for each completion; "" = the scorer gives them"""
    rank: str = ""
    """column of `samples` with a score for each completion, e.g. a reward model's: how often is the best right? "" = not asked"""
    prompt: str = "{problem}"
    """what the model is asked; {problem} stands for the problem"""
    system: str = ""
    """system turn before it; "" = none"""
    k: tuple[int, ...] = ()
    """further k of pass@k besides 1 and the number of completions"""
    least_scored: float = 0.95
    """share of completions that must have a verdict for a number to be given, in [0, 1]; 0 = always"""
    backend: Backend = "transformers"
    """transformers: in this process; openai: a server; vllm: in this process by vLLM"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """of backend transformers; auto = the accelerator if there is one"""
    sample: SampleConfig = field(default_factory=lambda: SampleConfig(n=4, temperature=0.6, max_new_tokens=2048))
    scorer: Math | GSM8K = field(default_factory=Math)
    rows: ProblemRowsConfig = field(default_factory=ProblemRowsConfig)
    load: ModelConfig = field(default_factory=ModelConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        _require("{problem}" in self.prompt, "prompt", self.prompt, "a text with {problem} where the problem goes")
        _require(all(k >= 1 for k in self.k), "k", self.k, "whole numbers from 1 on")
        _require_share("least_scored", self.least_scored)


TASKS: dict[str, dict[str, Any]] = {
    "math500": {
        "prompt": "{problem}\n\nReason step by step, and put your final answer within \\boxed{}.",
        "scorer": Math(),
    },
    "gsm8k": {
        "problem": "question",
        "prompt": "{problem}\n\nReason step by step. End with a line that holds #### and the final number, like #### 42.",
        "scorer": GSM8K(style="flexible"),
    },
}
"""settings of the known tasks where they differ from those of a file of one's own; flags go before both"""


def answers_task(name: str, **settings: Any) -> AnswersConfig:
    """The settings of `humanline evaluate NAME`, with changes."""
    if name not in TASKS:
        raise ConfigError(f"task {name!r} is unknown.{nearest(name, TASKS)} Expected one of {', '.join(TASKS)}.")
    return AnswersConfig(**{**TASKS[name], **settings})


def validate_answers(config: AnswersConfig) -> None:
    """An output folder and one source of samples are named; raises `ConfigError`."""
    _require(config.out != "", "out", config.out, "a folder for the results, e.g. `--out evaluations/first`")
    if config.samples and (config.rescore or config.model):
        other = "--rescore" if config.rescore else "--model"
        raise ConfigError(f"--samples and {other} are both given: samples come from one place. Leave one out.")
    if config.rescore and config.resume:
        raise ConfigError("--rescore and --resume are both given: rescoring draws no samples. Leave one out.")
    if config.samples:
        return
    for key, value in {"rows.columns": config.rows.columns, "right": config.right, "rank": config.rank}.items():
        _require(not value, key, value, "nothing without `--samples FILE`, whose columns it names")
    if config.rescore:
        return
    for key, example in {"data": "--data math500_test.jsonl", "model": MODEL_EXAMPLE}.items():
        _require(getattr(config, key) != "", key, "", f"it, e.g. `{example}`; or completions to score, `--samples FILE`")
    for k in config.k:
        _require(k <= config.sample.n, "k", k, f"at most the number of completions, --n {config.sample.n}")


@dataclass(frozen=True)
class LengthConfig:
    """Length-controlled win rate."""

    control: bool = True
    """false = the raw win rate only"""
    difficulty: str | None = None
    """table of instructions with a column instruction_difficulty; null = that of the regulariser, or the fit does without"""
    regulariser: str | None = None
    """table of the baseline against short and long versions of itself (AlpacaEval's df_gamed.csv); null = an unregularised fit, whose
    number does not compare with published ones"""
    instructions: str | None = None
    """list of instructions that the tables number; null = the tables name the instructions themselves"""
    resamples: int = 500
    """refits for the interval, ≥ 2"""

    def __post_init__(self) -> None:
        _require(self.resamples >= 2, "length.resamples", self.resamples, "a whole number from 2 on")
        if not self.control and (self.difficulty or self.regulariser):
            raise ConfigError(
                "length.control is false, and a table is given that only the length-controlled fit reads. Leave one out."
            )


@dataclass(frozen=True)
class WinRateConfig:
    """Outputs against a baseline's: `humanline evaluate win-rate`. Which outputs: `annotations`, else `outputs`, else drawn for `data`."""

    data: str = ""
    """instructions for `model` to answer: a file with a column `instruction`, e.g. AlpacaEval's or the baseline's outputs"""
    model: str = ""
    """directory or hub name of a causal LM, or `smollm2`; with a server: whose tokenizer and template are used"""
    outputs: str = ""
    """outputs that are there already, in AlpacaEval's form; no model is needed"""
    baseline: str = ""
    """outputs of the baseline, in AlpacaEval's form"""
    annotations: str = ""
    """judgements that are there already, in AlpacaEval's form; nothing is judged"""
    out: str = ""
    """folder of results: settings.json, model_outputs.json, annotations.json, results.json and what was on the way"""
    name: str = ""
    """what the model is called in the results; "" = the last part of its path"""
    resume: bool = False
    """go on with an unfinished `out`, and ask again for judgements that failed"""
    allow_missing: bool = False
    """leave out instructions that are only on one side, there twice, or without difficulty, instead of stopping"""
    order: Literal["one", "both"] = "one"
    """in which the judge sees the outputs: one = drawn per instruction by `judge_seed`; both = asked twice, disagreement is a tie"""
    judge_seed: int = 0
    """of the order"""
    criteria: str = COMPARE
    """what the judge compares by"""
    least_judged: float = 0.95
    """share of instructions that must have a verdict for a number to be given, in [0, 1]; 0 = always"""
    backend: Backend = "transformers"
    """transformers: in this process; openai: a server; vllm: in this process by vLLM"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """of backend transformers; auto = the accelerator if there is one"""
    scorer: Judge | RewardModel | Function = field(
        default_factory=lambda: Judge(high=9.0)
    )  # a scale on which it may be weighted, too
    length: LengthConfig = field(default_factory=LengthConfig)
    rows: InstructionRowsConfig = field(default_factory=InstructionRowsConfig)
    sample: SampleConfig = field(default_factory=lambda: SampleConfig(n=1, temperature=0.7, max_new_tokens=2048))
    load: ModelConfig = field(default_factory=ModelConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        _require_share("least_judged", self.least_judged)
        _require(self.sample.n == 1, "sample.n", self.sample.n, "1: an instruction has one output")


def validate_win_rate(config: WinRateConfig) -> None:
    """An output folder, one source of outputs and a baseline are named; raises `ConfigError`."""
    _require(config.out != "", "out", config.out, "a folder for the results, e.g. `--out evaluations/first`")
    given = [name for name in ("annotations", "outputs", "model") if getattr(config, name)]
    if len(given) > 1:
        raise ConfigError(f"--{given[0]} and --{given[1]} are both given: outputs come from one place. Leave one out.")
    if not given:
        raise ConfigError(
            f"nothing to evaluate: expected `{MODEL_EXAMPLE} --data INSTRUCTIONS`, or ready outputs, `--outputs FILE`, "
            "or ready judgements, `--annotations FILE`."
        )
    if config.annotations:
        _require(not config.baseline, "baseline", config.baseline, "nothing, since the annotations hold the baseline's outputs")
        return
    if config.model:
        _require(config.data != "", "data", config.data, "instructions for the model, e.g. `--data baseline_outputs.json`")
    _require(
        config.baseline != "", "baseline", config.baseline, "the baseline's outputs, e.g. `--baseline baseline_outputs.json`"
    )
    _validate_scorer(config.scorer)


def _validate_scorer(scorer: Judge | RewardModel | Function) -> None:
    """Settings that play no part in comparing two outputs are left alone."""
    unused = ["weight"] + (["instructions", "show", "on_error"] if isinstance(scorer, Judge) else [])
    for name in unused:
        if getattr(scorer, name) != getattr(type(scorer), name):
            advice = " What the judge compares by is `--criteria`." if name == "instructions" else ""
            raise ConfigError(f"scorer.{name} plays no part in comparing two outputs. Leave it out.{advice}")
