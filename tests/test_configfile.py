"""Configurations as YAML: round trips, messages, recipes, and that every setting has a reader."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import re
import typing
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import humanline
from humanline import recipes
from humanline.config import (
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    LimitConfig,
    LogConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    TrainConfig,
    validate,
    validate_for_training,
)
from humanline.configfile import dump, field_docs, load_config, load_recipe, parse_config, variants
from humanline.errors import ConfigError
from humanline.limit import Clip, Off, Reject
from humanline.objectives import DPO, GRPO, KTO, SFT, CustomObjective, SimPO

SECTION_OF = {
    DataConfig: "rows",
    ModelConfig: "load",
    OptimizerConfig: "optimizer",
    CheckpointConfig: "checkpoint",
    EvalConfig: "eval",
    LogConfig: "log",
}
PLUGGED_IN = (*variants(ObjectiveConfig).values(), *variants(LimitConfig).values())


def message(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="run.yaml")
    return str(caught.value)


# Round trips

count = st.integers(1, 10**9)
positive = st.floats(0, exclude_min=True, allow_infinity=False)
share = st.floats(0, 1, exclude_max=True)
words = st.text() | st.sampled_from(
    ["off", "no", "null", "~", "5e-6", "1:30", "0o7", "012", "2024-01-01", ".inf", "a: b", "# c", "y"]
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words, lambda inner: st.lists(inner), max_leaves=4
)
objectives = st.one_of(
    st.builds(DPO, beta=positive, label_smoothing=st.floats(0, 0.5, exclude_max=True)),
    st.builds(KTO, beta=positive),
    st.builds(GRPO, epsilon_high=positive | st.just(math.inf), aggregate=st.sampled_from(["token", "sequence", "constant"])),
    st.builds(SimPO, margin=positive),
    st.just(SFT()),
    st.builds(CustomObjective, path=words, settings=st.dictionaries(words, plain, max_size=3)),
)
limits = st.one_of(
    st.just(Off()),
    st.builds(Clip, low=st.floats(max_value=0, exclude_max=True), high=positive | st.just(math.inf)),
    st.builds(Reject, gamma_policy=positive, scale_reference=positive),
)
configs = st.builds(
    TrainConfig,
    model=words,
    data=words,
    out=words,
    objective=objectives,
    limit=limits,
    sync_every=st.none() | count,
    steps=st.none() | count,
    epochs=positive,
    seed=st.integers(0, 2**63 - 1),
    resume=st.booleans(),
    reference_cache=st.none() | words,
    rows=st.builds(DataConfig, columns=st.dictionaries(words, words, max_size=3), split=words, shuffle=st.booleans()),
    load=st.builds(ModelConfig, autocast=st.sampled_from(["off", "bfloat16"]), revision=st.none() | words),
    optimizer=st.builds(
        OptimizerConfig, lr=positive, betas=st.tuples(share, share), max_grad_norm=st.none() | positive, warmup=share
    ),
    eval=st.builds(EvalConfig, fraction=share),
    log=st.builds(LogConfig, trackers=st.lists(st.sampled_from(["tensorboard", "wandb"])).map(tuple), project=words),
)


@given(configs)
def test_dump_loads_back_to_the_equal_config(config: TrainConfig) -> None:
    assert parse_config(dump(config)) == config


@given(configs)
def test_any_yaml_reader_finds_the_same_values(config: TrainConfig) -> None:
    """PyYAML's own YAML 1.1 loader reads "off" as false and 5e-6 as text; what `dump` writes is safe from both."""
    document = yaml.safe_load(dump(config))
    assert document["limit"]["name"] == config.limit.name
    assert document["load"]["autocast"] == config.load.autocast
    assert document["optimizer"]["lr"] == config.optimizer.lr
    assert document["model"] == config.model
    assert document["log"]["project"] == config.log.project
    assert document["rows"]["columns"] == config.rows.columns


def test_dump_explains_every_documented_setting() -> None:
    text = dump(TrainConfig(limit=Clip()))
    assert "  low: -1.5                       # nats, < 0; -.inf = no lower bound\n" in text
    for cls in (TrainConfig, *SECTION_OF):
        for doc in field_docs(cls).values():
            assert f"# {doc}\n" in text


def test_every_setting_of_a_section_is_documented() -> None:
    for cls in (*SECTION_OF, *PLUGGED_IN):
        assert set(field_docs(cls)) == {field.name for field in dataclasses.fields(cls)} - {"name"}, cls.__name__


# Scalars


@pytest.mark.parametrize("text", ["5e-6", "5E-6", "0.000005", "5.0e-06", "+5e-6"])
def test_a_number_in_scientific_notation_is_a_number(text: str) -> None:
    assert parse_config(f"optimizer: {{lr: {text}}}").optimizer.lr == 5e-6


def test_infinite_bounds() -> None:
    assert parse_config("limit: {name: clip, low: -.inf, high: .inf}").limit == Clip(low=-math.inf, high=math.inf)


def test_off_is_text_and_a_whole_number_is_a_float_where_one_is_expected() -> None:
    config = parse_config("limit: {name: off}\nload: {autocast: off}\noptimizer: {max_grad_norm: 2}")
    assert config == TrainConfig(optimizer=OptimizerConfig(max_grad_norm=2.0))
    assert isinstance(config.optimizer.max_grad_norm, float)


# Messages


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed: 1\noptimzer: {lr: 1}", "run.yaml:2: optimzer is not a setting. Did you mean 'optimizer'?"),
        ("rows:\n  max_lenght: 9", "run.yaml:2: rows.max_lenght is not a setting. Did you mean 'max_length'?"),
        ("lr: 5e-6", "run.yaml:1: lr is not a setting. Did you mean 'optimizer.lr'?"),
        ("label_smoothing: 0.1", "run.yaml:1: label_smoothing is not a setting. Did you mean 'objective.label_smoothing'?"),
        (
            "objective: {name: ipo, gamma: 1}",
            "run.yaml:1: objective.gamma is not a setting. Expected one of name, tau.",
        ),
        ("optimizer:\n  lr: fast", "run.yaml:2: optimizer.lr is fast: expected a number."),
        ("optimizer:\n  lr: '5e-6'", "run.yaml:2: optimizer.lr is 5e-6: expected a number. Remove the quotes."),
        ("optimizer: {lr: true}", "run.yaml:1: optimizer.lr is true: expected a number."),
        ("steps: 1.5", "run.yaml:1: steps is 1.5: expected a whole number or null."),
        ("rows: {eos: 1}", "run.yaml:1: rows.eos is 1: expected true or false."),
        (
            "rows: {too_long: trunc}",
            "run.yaml:1: rows.too_long is trunc: expected one of drop, truncate, error. Did you mean 'truncate'?",
        ),
        ("load: {revision: 1234}", "run.yaml:1: load.revision is 1234: expected text or null. Put it in quotes."),
        ("optimizer: {betas: [0.9]}", "run.yaml:1: optimizer.betas is [0.9]: expected a list of 2 numbers."),
        (
            "log: {trackers: [wndb]}",
            "run.yaml:1: log.trackers is ['wndb']: expected a list, each item one of tensorboard, wandb, trackio.",
        ),
        ("rows: {columns: [prompt]}", "run.yaml:1: rows.columns is ['prompt']: expected a mapping, e.g. {key: value}."),
        ("seed: 1\nseed: 2", "run.yaml:2: seed is given twice, first in line 1. Keep one."),
        ("limit: {low: -1.0}", "run.yaml:1: limit has no 'name': expected one of off, clip, reject."),
        ("limit:\n  name: clop", "run.yaml:2: limit.name is clop: expected one of off, clip, reject. Did you mean 'clip'?"),
        ("objective: kto", "run.yaml:1: objective is kto: expected settings with a name, e.g. `objective: {name: dpo}`."),
        ("log: 3", "run.yaml:1: log is 3: expected settings (every, trackers, project, report), one `key: value` a line."),
        ("seed: [", "run.yaml:1: not valid YAML: expected the node content, but found '<stream end>'."),
        ("", "run.yaml is empty: expected settings, e.g. those of `humanline train dpo --print-config`."),
    ],
)
def test_message_names_line_key_value_and_what_was_expected(text: str, expected: str) -> None:
    assert message(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sync_every: 0", "sync_every is 0: expected a whole number from 1 on."),
        ("steps: -1", "steps is -1: expected a whole number from 1 on."),
        ("batch_size: 0", "batch_size is 0: expected a whole number from 1 on."),
        ("micro_batch_tokens: 0", "micro_batch_tokens is 0: expected a whole number from 1 on."),
        ("epochs: .nan", "epochs is nan: expected a number above 0, e.g. 1.0."),
        ("seed: -1", "seed is -1: expected a whole number in [0, 2^63)."),
        ("rows: {limit_rows: 0}", "rows.limit_rows is 0: expected a whole number from 1 on."),
        ("rows: {max_length: 1}", "rows.max_length is 1: expected a whole number from 2 on."),
        ("optimizer: {lr: 0}", "optimizer.lr is 0.0: expected a number above 0, e.g. 5e-6."),
        ("optimizer: {lr: .inf}", "optimizer.lr is inf: expected a number above 0, e.g. 5e-6."),
        ("optimizer: {betas: [0.9, 1]}", "optimizer.betas is [0.9, 1.0]: expected two numbers in [0, 1), e.g. [0.9, 0.999]."),
        ("optimizer: {eps: 0}", "optimizer.eps is 0.0: expected a number above 0, e.g. 1e-8."),
        ("optimizer: {weight_decay: -1}", "optimizer.weight_decay is -1.0: expected a number from 0 on."),
        (
            "optimizer: {max_grad_norm: 0}",
            "optimizer.max_grad_norm is 0.0: expected a number above 0, e.g. 1.0, or null for no clipping.",
        ),
        (
            "optimizer: {warmup: 1.5}",
            "optimizer.warmup is 1.5: expected a share of all steps in [0, 1) or a whole number of steps.",
        ),
        ("checkpoint: {every: 0}", "checkpoint.every is 0: expected a whole number from 1 on."),
        ("checkpoint: {keep: 0}", "checkpoint.keep is 0: expected a whole number from 1 on."),
        ("eval: {fraction: 1}", "eval.fraction is 1.0: expected a share in [0, 1), e.g. 0.05."),
        ("eval: {every: 0}", "eval.every is 0: expected a whole number from 1 on."),
        ("log: {every: -1}", "log.every is -1: expected a whole number from 0 on."),
        ("limit: {name: clip, low: 0}", "limit.low is 0.0: expected nats below 0 (the log of a probability ratio), e.g. -1.5."),
        ("objective: {name: dpo, beta: 0}", "objective.beta is 0.0: expected a finite number above 0, e.g. 0.1."),
    ],
)
def test_every_range_is_checked(text: str, expected: str) -> None:
    assert message(text) == f"run.yaml:1: {expected}"


def test_out_of_range_names_the_line_of_the_setting_not_of_its_section() -> None:
    assert message("optimizer:\n  eps: 1e-8\n  lr: -1\n").startswith("run.yaml:3: optimizer.lr is -1.0")


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    assert "not valid YAML: could not determine a constructor" in message(
        f"model: !!python/object/apply:pathlib.Path.touch [{witness}]"
    )
    assert not witness.exists()


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml cannot be read: No such file or directory"):
        load_config(tmp_path / "missing.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.yaml cannot be read: not UTF-8 text"):
        load_config(binary)


# Settings that contradict each other


@pytest.mark.parametrize("objective", [SimPO(), SFT()])
@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({"limit": Clip()}, "limit.name is clip"),
        ({"limit": Reject()}, "limit.name is reject"),
        ({"sync_every": 4}, "sync_every is 4"),
        ({"reference_cache": "cache"}, "reference_cache is cache"),
    ],
)
def test_an_objective_without_reference_has_no_humanline_variant(
    objective: SimPO | SFT, change: dict[str, object], start: str
) -> None:
    validate(TrainConfig(objective=objective))
    with pytest.raises(
        ConfigError, match=f"^{re.escape(start)} with objective {objective.name}: it has no reference, and hence no humanline"
    ):
        validate(TrainConfig(objective=objective).replace(**change))


def test_R3_a_stored_reference_and_a_moving_one_are_refused_together() -> None:
    validate(TrainConfig(reference_cache="cache"))
    with pytest.raises(ConfigError) as caught:
        validate(TrainConfig(reference_cache="cache", sync_every=1, limit=Clip()))
    assert str(caught.value) == (
        "reference_cache is 'cache' while sync_every is 1: stored reference log-probs go stale once the reference moves. "
        "Leave reference_cache out, or keep the reference fixed with `--sync-every null`."
    )


def test_held_out_rows_come_from_one_place() -> None:
    validate(TrainConfig(eval=EvalConfig(data="held_out.jsonl")))
    with pytest.raises(ConfigError, match=r"^eval\.data is 'held_out\.jsonl' and eval\.fraction is 0\.1"):
        validate(TrainConfig(eval=EvalConfig(data="held_out.jsonl", fraction=0.1)))


def test_training_needs_model_data_and_out() -> None:
    complete = TrainConfig(model="smollm2", data="pairs.jsonl", out="runs/first")
    validate_for_training(complete)
    for key in ("model", "data", "out"):
        with pytest.raises(ConfigError, match=rf"^{key} is empty: a training run needs one\. Set it with `--{key} "):
            validate_for_training(complete.replace(**{key: ""}))


# Recipes


def test_the_packaged_recipes() -> None:
    assert recipes.names() == (
        "cdpo",
        "dpo",
        "dpo-humanline",
        "grpo",
        "grpo-dr",
        "grpo-humanline",
        "ipo",
        "kto",
        "kto-humanline",
        "sft",
        "simpo",
    )


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_is_valid_complete_and_summarised(name: str) -> None:
    """Complete: it states objective, limiter and sync schedule in full, so reading it tells what will be computed."""
    config = load_recipe(name)
    validate(config)
    stated = yaml.compose(recipes.path(name).read_text(encoding="utf-8"))
    sections = {
        key.value: {inner.value for inner, _ in child.value} if child.id == "mapping" else None for key, child in stated.value
    }
    assert {"objective", "limit", "sync_every", "epochs", "batch_size", "optimizer", "rows"} <= set(sections)
    unused = {"constant_length"} if getattr(config.objective, "aggregate", "constant") != "constant" else set()
    assert sections["objective"] == {field.name for field in dataclasses.fields(config.objective)} - unused
    assert sections["limit"] == {field.name for field in dataclasses.fields(config.limit)}
    assert 20 < len(recipes.summary(name)) < 100


@pytest.mark.parametrize("name", ["dpo", "kto", "grpo"])
def test_a_humanline_recipe_differs_from_its_plain_one_in_limiter_and_sync_only(name: str) -> None:
    plain, human = load_recipe(name), load_recipe(f"{name}-humanline")
    assert human == plain.replace(limit=Clip(low=-1.5, high=1.5), sync_every=16 if name == "grpo" else 1)


def test_an_unknown_recipe_suggests_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"^recipe 'dpo-humanlin' is unknown\. Did you mean 'dpo-humanline'\? Expected one of cdpo, dpo"
    ):
        load_recipe("dpo-humanlin")


def test_a_recipe_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("objective: {name: kto}\n", encoding="utf-8")
    assert load_recipe(str(file)) == TrainConfig(objective=KTO())


# Readers


@cache
def _reads(path: Path) -> set[tuple[str, str]]:
    """(receiver, attribute) of each attribute that a file reads: ("rows", "split") of `config.rows.split`. Not range checks."""
    found: set[tuple[str, str]] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef) and node.name == "__post_init__":
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add((ast.unparse(node.value).rpartition(".")[2].lstrip("_"), node.attr))
        pending += ast.iter_child_nodes(node)
    return found


def _readers(cls: type) -> set[tuple[str, str]]:
    """What the package reads of `cls`, outside the modules that only check, print and set settings."""
    if cls in PLUGGED_IN:
        return _reads(Path(inspect.getfile(cls)))
    section = SECTION_OF.get(cls, "")
    reads: set[tuple[str, str]] = set()
    for path in Path(humanline.__file__).parent.rglob("*.py"):
        if path.name not in ("config.py", "configfile.py", "flags.py"):
            # A section is read as `config.rows.split`, or under another name where it was handed on.
            handed_on = cls is TrainConfig or re.search(
                rf": {cls.__name__}\b|= config\.{section}\b", path.read_text(encoding="utf-8")
            )
            reads |= {read for read in _reads(path) if read[0] == section or (handed_on and read[0] in ("config", "settings"))}
    return reads


@pytest.mark.parametrize("cls", [TrainConfig, *SECTION_OF, *PLUGGED_IN])
def test_every_setting_has_a_reader(cls: type) -> None:
    """Only `name` has none: it chooses the class."""
    read = {attribute for _, attribute in _readers(cls)}
    assert [field.name for field in dataclasses.fields(cls) if field.name not in read | {"name"}] == []


def test_types_of_sections_are_what_the_reader_expects() -> None:
    """A new section or variant of another shape would be taken for a plain value."""
    hints = typing.get_type_hints(TrainConfig)
    assert [name for name, hint in hints.items() if hint in SECTION_OF] == list(SECTION_OF.values())
    assert list(variants(hints["limit"])) == ["off", "clip", "reject"]
    assert list(variants(hints["objective"])) == ["dpo", "ipo", "kto", "grpo", "simpo", "sft", "custom"]
