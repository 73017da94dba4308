"""Command-line flags over a recipe, generated from the config's dataclasses: same names, same meaning as in YAML."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from humanline import recipes
from humanline.config import LimitConfig, ObjectiveConfig, TrainConfig
from humanline.configfile import (
    field_docs,
    load_config,
    load_recipe,
    load_settings,
    parse_value,
    show_value,
    variants,
    variants_of_list,
)
from humanline.errors import CheckpointError, ConfigError, nearest
from humanline.score.config import Math, ScoreConfig, ScorerConfig, ScorersFile

if TYPE_CHECKING:
    from humanline.evaluate.config import AnswersConfig, WinRateConfig

Settings = TypeVar("Settings")

VARIANTS = {"objective": variants(ObjectiveConfig), "limit": variants(LimitConfig), "scorer": variants(ScorerConfig)}


def parse_train(words: Sequence[str]) -> tuple[TrainConfig, bool]:
    """`RECIPE [--flags]`, or `--resume --out RUN [--flags]`, as (config, whether --print-config was given).

    Only the flags of the objective and limiter that the recipe, `--objective.name` or `--limit.name` choose exist. A wrong flag
    or value ends the process with status 2 after a message that suggests the nearest.
    """
    if words[0].startswith("-"):
        recipe, config, flags = "", _run_config(words), list(words)
    else:
        recipe, config, flags = words[0], load_recipe(words[0]), list(words[1:])
    for section in ("objective", "limit"):
        flags, chosen = _take(flags, f"--{section}.name")
        if chosen:
            config = config.replace(**{section: _variant(section, chosen[-1], getattr(config, section))})
        _refuse_other_variants(flags, section, getattr(config, section).name)
    return _apply(flags, config, recipe=recipe)


def parse_settings(
    cls: type[Settings], words: Sequence[str], *, verb: str, about: str, positional: str, flat: Sequence[str] = ()
) -> Settings:
    """The config `cls` of a verb without recipes: `POSITIONAL --flags` over its defaults. Ends with status 2 for a wrong flag.

    flat: sections whose flags have no prefix, `--n` instead of `--sample.n`.
    """
    fields = _fields(cls, positional, flat)
    given = _read(fields, words, verb=verb, about=about)
    return cls(**{name: getattr(given, name) for name, *_ in fields})


def parse_score(words: Sequence[str]) -> ScoreConfig:
    """`DATA --out FILE --scorer.name NAME [--flags]`, or with `--scorers FILE` for several scorers.

    Only the flags of the scorer that `--scorer.name` chooses exist.
    """
    flags, chosen = _take(words, "--scorer.name")
    scorer = _variant("scorer", chosen[-1], Math()) if chosen else Math()
    _refuse_other_variants(flags, "scorer", scorer.name)
    several = "YAML file with a list `scorers:` of such settings; null = the one of the --scorer flags"
    fields = [
        *(field for field in _fields(ScoreConfig, "data") if field[0] != "scorers"),
        ("scorer", ScorerConfig, dataclasses.field(default=scorer)),
        ("scorers", Annotated[str | None, tyro.conf.arg(help=several)], dataclasses.field(default=None)),
    ]
    about = "Score completions: rewards for training, null where there is no score. The defaults below are those of the chosen scorer."
    given = _read(fields, flags, verb="score", about=about)
    scorers: tuple[ScorerConfig, ...] = (given.scorer,)
    if given.scorers is not None:
        own = [word for word in words if word.startswith("--scorer.")]
        if own:
            raise ConfigError(f"{own[0]} and --scorers are given: expected one of them. Put all scorers into {given.scorers}.")
        scorers = load_settings(given.scorers, ScorersFile).scorers
    settings = {name: getattr(given, name) for name, *_ in fields if name not in ("scorer", "scorers")}
    return ScoreConfig(**settings, scorers=scorers)


def parse_evaluate(words: Sequence[str]) -> AnswersConfig | WinRateConfig:
    """`math500 | gsm8k | FILE [--flags]`, or `win-rate [--flags]`. Only the flags of the scorer that `--scorer.name` chooses exist."""
    from humanline.evaluate.config import TASKS, AnswersConfig, WinRateConfig, answers_task

    what = words[0]
    default: Any = WinRateConfig() if what == "win-rate" else answers_task(what) if what in TASKS else AnswersConfig(data=what)
    near = nearest(what, ("win-rate", *TASKS))
    if near and what not in ("win-rate", *TASKS) and not Path(what).exists():
        raise ConfigError(
            f"{what!r} is neither a task nor a file.{near} Expected win-rate, {', '.join(TASKS)} or a file of problems."
        )
    flags, chosen = _take(words[1:], "--scorer.name")
    scorer = _variant("scorer", chosen[-1], default.scorer) if chosen else default.scorer
    choices = variants(get_type_hints(type(default))["scorer"])
    if scorer.name not in choices:
        raise ConfigError(f"--scorer.name is {scorer.name!r}: expected {' or '.join(choices)} for evaluate {what}.")
    _refuse_other_variants(flags, "scorer", scorer.name)
    values = {field.name: getattr(default, field.name) for field in dataclasses.fields(default)} | {"scorer": scorer}
    fields = [
        (name, hint, dataclasses.field(default_factory=partial(values.__getitem__, name)))
        for name, hint, _ in _fields(type(default), "", ("sample",))
    ]
    about = (
        "How often outputs are preferred to a baseline's."
        if what == "win-rate"
        else "How often answers are right: pass@1 and pass@k."
    )
    given = _read(fields, flags, verb=f"evaluate {what}", about=about)
    config: AnswersConfig | WinRateConfig = type(default)(**{name: getattr(given, name) for name in values})
    return config


def _fields(cls: type, positional: str, flat: Sequence[str] = ()) -> list[Any]:
    """The flags of a dataclass, as `dataclasses.make_dataclass` takes them."""
    hints: dict[str, Any] = get_type_hints(cls)
    docs = field_docs(cls)
    fields: list[Any] = []
    for field in dataclasses.fields(cls):
        name, metavar = "" if field.name in flat else None, field.name.upper() if field.name == positional else None
        hint: Any = Annotated[hints[field.name], tyro.conf.arg(name=name, help=docs.get(field.name), metavar=metavar)]
        fields.append((field.name, Annotated[hint, tyro.conf.Positional] if field.name == positional else hint, field))
    return fields


def _read(fields: Sequence[Any], words: Sequence[str], *, verb: str, about: str) -> Any:
    """The values of flags. Ends with status 2 for a wrong one."""
    return tyro.cli(
        dataclasses.make_dataclass("Flags", fields),
        args=words,
        prog=f"humanline {verb}",
        description=about,
        config=(tyro.conf.AvoidSubcommands,),
        registry=_registry(),
    )


def _run_config(words: Sequence[str]) -> TrainConfig:
    """The settings of the run that `--resume --out RUN` goes on with."""
    _, out = _take(words, "--out")
    if "--resume" not in words or not out:
        raise ConfigError(
            f"train begins with {words[0]!r}: expected a recipe first ({', '.join(recipes.names())}, or a .yaml path), "
            "or `--resume --out RUN` to go on with a run."
        )
    path = Path(out[-1]) / "config.yaml"
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist: expected the run to resume. Start one with `humanline train RECIPE`.")
    return load_config(path)


def _take(words: Sequence[str], flag: str) -> tuple[list[str], list[str]]:
    """The words without `flag VALUE` and `flag=VALUE`, and the values."""
    rest: list[str] = []
    values: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word == flag:
            value = next(remaining, None)
            if value is None:
                raise ConfigError(f"{flag} has no value: expected `{flag} VALUE`.")
            values.append(value)
        elif word.startswith(f"{flag}="):
            values.append(word.removeprefix(f"{flag}="))
        else:
            rest.append(word)
    return rest, values


def _variant(section: str, name: str, current: Any) -> Any:
    """The objective or limiter of that name: the current one as it is, another with its own defaults (β differs in meaning)."""
    choices = VARIANTS[section]
    if name not in choices:
        raise ConfigError(f"--{section}.name is {name!r}.{nearest(name, choices)} Expected one of {', '.join(choices)}.")
    return current if name == current.name else choices[name]()


def _refuse_other_variants(flags: Sequence[str], section: str, chosen: str) -> None:
    """`--objective.label-smoothing` with objective kto: say whose setting it is, which a list of similar flags would not."""
    owners: dict[str, list[str]] = {}
    for variant, cls in VARIANTS[section].items():
        for field in dataclasses.fields(cls):
            owners.setdefault(f"--{section}.{field.name}", []).append(variant)
    for word in flags:
        whose = owners.get(word.partition("=")[0].replace("-", "_").replace("__", "--", 1), [chosen])
        if chosen not in whose:
            raise ConfigError(
                f"{word} does not apply to {section} {chosen}: it is a setting of {', '.join(whose)}. "
                f"Choose with `--{section}.name {whose[0]}`, or leave it out."
            )


def _apply(flags: Sequence[str], config: TrainConfig, *, recipe: str) -> tuple[TrainConfig, bool]:
    """Flags over a config whose objective and limiter are chosen already."""
    wrapper: Any = dataclasses.make_dataclass(
        "Flags",
        [
            ("config", Annotated[TrainConfig, tyro.conf.arg(name="")]),
            (
                "print_config",
                Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(help="show the resulting settings as YAML and stop")],
            ),
        ],
    )
    about = recipes.summary(recipe) if recipe in recipes.names() else ""
    given = tyro.cli(
        wrapper,
        args=flags,
        default=wrapper(config, False),
        prog=f"humanline train {recipe}".rstrip(),
        description=f"{about} Flags override the recipe, whose values are the defaults below.".lstrip(),
        config=(tyro.conf.AvoidSubcommands,),
        registry=_registry(),
    )
    return given.config, given.print_config


def _registry() -> ConstructorRegistry:
    """How flag values are read where tyro's own way differs from YAML's."""
    registry = ConstructorRegistry()
    registry.primitive_rule(_name_rule)
    registry.primitive_rule(_yaml_rule)
    return registry


def _name_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`--objective.name` has been taken already; here it only has to show all its choices in the help."""
    for choices in VARIANTS.values():
        if get_origin(info.type) is Literal and len(get_args(info.type)) == 1 and get_args(info.type)[0] in choices:
            return _spec("{" + ",".join(choices) + "}", str, str)
    return None


def _yaml_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Numbers, `null` and `'{key: value}'` as in YAML, besides Python's `None` and `inf`; text stays as it is."""
    inner = [argument for argument in get_args(info.type) if argument is not types.NoneType]
    optional = get_origin(info.type) in (Union, types.UnionType) and len(inner) == 1 and inner[0] in (int, float, str)
    several = variants_of_list(info.type)
    if not (optional or several or info.type is float or get_origin(info.type) is dict):
        return None

    def read(text: str) -> Any:
        if optional and text in ("null", "None"):
            return None
        if optional and str in inner:
            return text
        return parse_value({"inf": ".inf", "-inf": "-.inf"}.get(text, text), info.type)

    if several:
        return _spec("[{name: …}]", read, lambda items: f"[{', '.join(item.name for item in items)}]")
    metavar = f"{inner[0].__name__.upper()}|null" if optional else "FLOAT" if info.type is float else "{KEY: VALUE}"
    return _spec(metavar, read, show_value)


def _spec(metavar: str, read: Callable[[str], Any], show: Callable[[Any], str]) -> PrimitiveConstructorSpec[Any]:
    """A flag of one word."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: read(words[0]),
        is_instance=lambda value: True,
        str_from_instance=lambda value: [show(value)],
    )
