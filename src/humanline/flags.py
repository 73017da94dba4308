"""Command-line flags over a recipe, generated from the config's dataclasses: same names, same meaning as in YAML."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from humanline import recipes
from humanline.config import LimitConfig, ObjectiveConfig, TrainConfig
from humanline.configfile import load_config, load_recipe, parse_value, show_value, variants
from humanline.errors import CheckpointError, ConfigError, nearest

VARIANTS = {"objective": variants(ObjectiveConfig), "limit": variants(LimitConfig)}


def parse_train(words: Sequence[str]) -> tuple[TrainConfig, bool]:
    """`RECIPE [--flags]`, or `--resume --out RUN [--flags]`, as (config, whether --print-config was given).

    Only the flags of the objective and limiter that the recipe, `--objective.name` or `--limit.name` choose exist. A wrong flag
    or value ends the process with status 2 after a message that suggests the nearest.
    """
    if words[0].startswith("-"):
        recipe, config, flags = "", _run_config(words), list(words)
    else:
        recipe, config, flags = words[0], load_recipe(words[0]), list(words[1:])
    for section in VARIANTS:
        flags, chosen = _take(flags, f"--{section}.name")
        if chosen:
            config = config.replace(**{section: _variant(section, chosen[-1], getattr(config, section))})
        _refuse_other_variants(flags, section, getattr(config, section).name)
    return _apply(flags, config, recipe=recipe)


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
    if not (optional or info.type is float or get_origin(info.type) is dict):
        return None

    def read(text: str) -> Any:
        if optional and text in ("null", "None"):
            return None
        if optional and str in inner:
            return text
        return parse_value({"inf": ".inf", "-inf": "-.inf"}.get(text, text), info.type)

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
