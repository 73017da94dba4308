"""Run configurations as YAML: `load_config` checks each value by its type, `dump` writes what loads back to the equal config.

YAML 1.2's core schema, so that `lr: 5e-6` is a number and `name: off` is text (YAML 1.1 has them the other way round).
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import os
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, Union

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from humanline import recipes
from humanline.config import TrainConfig
from humanline.errors import ConfigError, nearest

Config = TypeVar("Config")

_FLOAT = re.compile(
    r"[-+]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)
_CORE_SCHEMA = {
    "null": (re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    "bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF")),
    "int": (re.compile(r"[-+]?(?:0|[1-9][0-9]*)"), list("-+0123456789")),
    "float": (_FLOAT, list("-+.0123456789")),
}


MOST_ALIASES = 20  # they then unfold to at most about 3^(20/3) ≈ 1500 times what the file holds
DEEPEST = 50  # levels of nesting


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2, for files that a person may have written."""

    _aliases = _depth = 0
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's name and type

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """As PyYAML's, which follows any number of aliases and levels: a few lines could then fill the memory or the stack."""
        mark = self.peek_event().start_mark
        self._aliases += self.check_event(yaml.AliasEvent)
        if self._aliases > MOST_ALIASES:
            raise yaml.composer.ComposerError(None, None, f"more than {MOST_ALIASES} aliases", mark)
        if self._depth == DEEPEST:
            raise yaml.composer.ComposerError(None, None, f"nested more than {DEEPEST} levels deep", mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """As PyYAML's, which raises anything for a value that its own tag does not fit (`!!int abc`, 5000 digits)."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            problem = f"value is no {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


class _Dumper(yaml.SafeDumper):
    """SafeDumper that also quotes text which only YAML 1.2 would read as a number: the result means the same to both versions."""


for _name, (_pattern, _first) in _CORE_SCHEMA.items():
    _full = re.compile(f"(?:{_pattern.pattern})$")
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _full, _first)
    if _name == "float":
        _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _full, _first)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Line breaks and control characters are escaped, since a value has one line."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _represent_text)


def load_config(path: str | Path) -> TrainConfig:
    """Read a training run's YAML file; see `load_settings`."""
    return load_settings(path, TrainConfig)


def load_settings(path: str | Path, cls: type[Config]) -> Config:
    """Read a YAML file as a dataclass of settings. Those that it leaves out keep their defaults.

    Raises `ConfigError`, with file and line, for broken YAML, an unknown key, or a value of the wrong type or range.
    """
    return _parse(cls, read_text(path), str(path))


def read_text(path: str | Path) -> str:
    """The content of a YAML file; `ConfigError` where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", error)
        raise ConfigError(f"{path} cannot be read: {reason}. Expected a YAML file of settings.") from error


def load_recipe(recipe: str) -> TrainConfig:
    """A packaged recipe by name, or a YAML file by path."""
    if recipe in recipes.names():
        return load_config(recipes.path(recipe))
    if recipe.endswith((".yaml", ".yml")) or os.path.isfile(recipe):  # unlike Path.is_file, False for a name that is too long
        return load_config(recipe)
    raise ConfigError(
        f"recipe {recipe!r} is unknown.{nearest(recipe, recipes.names())} "
        f"Expected one of {', '.join(recipes.names())}, or the path of a .yaml file."
    )


def parse_config(text: str, *, source: str = "<text>") -> TrainConfig:
    """The config that `text` describes; `source` stands for the file name in errors."""
    return _parse(TrainConfig, text, source)


def _parse(cls: type[Config], text: str, source: str) -> Config:
    with reading(text, source) as (reader, node):
        if node is None:
            example = "those of `humanline train dpo --print-config`" if cls is TrainConfig else ", ".join(_fields(cls))
            raise ConfigError(f"{source} is empty: expected settings, e.g. {example}.")
        return reader.dataclass(cls, node, key="")


@contextmanager
def reading(text: str, source: str) -> Iterator[tuple[Reader, yaml.Node | None]]:
    """A reader of a document, and its root (None: it is empty). What turns out not to be YAML is a `ConfigError` with its line."""
    try:
        loader = _Loader(text)
        yield Reader(source, loader), loader.get_single_node()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{source}:{mark.line + 1}" if mark else source
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ConfigError(f"{place}: not valid YAML: {problem}.") from error


def parse_value(text: str, hint: Any) -> Any:
    """A single value of type `hint`, or a list of variants, in YAML's notation, as flags give it."""
    named = bool(variants_of_list(hint))
    expected = "a list, each item with a name" if named else _expected(hint)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if not named:
            return _adapter(hint).validate_python(None if node is None else loader.construct_object(node, deep=True))
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"{text!r} was given: expected {expected}.") from error
    if node is None:
        raise ConfigError(f"{text!r} was given: expected {expected}.")
    return Reader("<flag>", loader).value(hint, node, key="the list")


def dump(config: Any) -> str:
    """A dataclass of settings as YAML, each with its meaning; `parse_config(dump(config)) == config`."""
    return "\n".join(_lines(config, indent="")) + "\n"


def variants(union: Any) -> dict[str, type]:
    """The dataclasses of a union that are told apart by their `name`; {} for any other type."""
    members = typing.get_args(union)
    if not all(dataclasses.is_dataclass(member) for member in members):
        return {}
    return {member.name: member for member in members}


def variants_of_list(hint: Any) -> dict[str, type]:
    """The `variants` of the items of a tuple of any length; {} for any other type."""
    arguments = typing.get_args(hint)
    return variants(arguments[0]) if typing.get_origin(hint) is tuple and arguments[1:] == (Ellipsis,) else {}


class Reader:
    """Walks a YAML document along the dataclasses, so that every error knows its key and line."""

    def __init__(self, source: str, loader: _Loader, prefix: str = "") -> None:
        """prefix: of every key path in errors, for settings that are a part of a larger document."""
        self.source = source
        self.loader = loader
        self.prefix = prefix

    def within(self, prefix: str) -> Reader:
        """A reader of settings that lie below `prefix`, such as `base.`."""
        return Reader(self.source, self.loader, prefix)

    def fail(self, node: yaml.Node, message: str) -> NoReturn:
        raise ConfigError(f"{self.source}:{node.start_mark.line + 1}: {self.prefix}{message}")

    def dataclass(self, cls: type[Config], node: yaml.Node, *, key: str) -> Config:
        """An instance of `cls` from a mapping; `key` is the path that leads to it, "" at the top."""
        hints = {name: hint for name, hint in typing.get_type_hints(cls).items() if name in _fields(cls)}
        entries = self.entries(node, hints, key)
        values = {name: self.value(hints[name], child, key=_join(key, name)) for name, (_, child) in entries.items()}
        try:
            return cls(**values)
        except ConfigError as error:
            # The message starts with the key path of the setting that is out of range.
            found = [name_node for name, (name_node, _) in entries.items() if str(error).startswith(f"{_join(key, name)} ")]
            raise ConfigError(f"{self.source}:{(found or [node])[0].start_mark.line + 1}: {self.prefix}{error}") from error

    def entries(self, node: yaml.Node, known: Iterable[str], key: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """{name: (its node, its value's node)} of a mapping whose keys must be known and unique."""
        if not isinstance(node, yaml.MappingNode):
            self.fail(
                node,
                f"{key or 'the document'} is {self.show(node)}: expected settings ({', '.join(known)}), one `key: value` a line.",
            )
        entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for name_node, child in node.value:
            name = str(name_node.value)
            if name not in known:
                self.fail(name_node, f"{_join(key, name)} is not a setting.{_suggestion(name, known, key)}")
            if name in entries:
                self.fail(
                    name_node,
                    f"{_join(key, name)} is given twice, first in line {entries[name][0].start_mark.line + 1}. Keep one.",
                )
            entries[name] = (name_node, child)
        return entries

    def value(self, hint: Any, node: yaml.Node, *, key: str) -> Any:
        """What a field of type `hint` holds: a section, one of several variants, or a plain value."""
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return self.dataclass(hint, node, key=key)
        if choices := variants(hint):
            return self.dataclass(self.variant(choices, node, key=key), node, key=key)
        if choices := variants_of_list(hint):
            return self.several(choices, node, key=key)
        value = self.loader.construct_object(node, deep=True)
        if typing.get_origin(hint) is tuple and isinstance(value, list):
            value = tuple(value)
        try:
            return _adapter(hint).validate_python(value)
        except ValidationError:
            self.fail(node, f"{key} is {self.show(node)}: expected {_expected(hint)}.{_advice(hint, node, value)}")

    def several(self, choices: Mapping[str, type], node: yaml.Node, *, key: str) -> tuple[Any, ...]:
        """A list of mappings, each of which chooses its class."""
        if not isinstance(node, yaml.SequenceNode):
            self.fail(
                node, f"{key} is {self.show(node)}: expected a list, each item with a name, e.g. `- name: {next(iter(choices))}`."
            )
        items = [(f"{key}[{index}]", child) for index, child in enumerate(node.value)]
        return tuple(self.dataclass(self.variant(choices, child, key=name), child, key=name) for name, child in items)

    def variant(self, choices: Mapping[str, type], node: yaml.Node, *, key: str) -> type:
        """The class that the mapping's `name` chooses."""
        names = ", ".join(choices)
        if not isinstance(node, yaml.MappingNode):
            self.fail(
                node, f"{key} is {self.show(node)}: expected settings with a name, e.g. `{key}: {{name: {next(iter(choices))}}}`."
            )
        chosen = [child for name_node, child in node.value if name_node.value == "name"]
        if not chosen:
            self.fail(node, f"{key} has no 'name': expected one of {names}.")
        name = self.show(chosen[0])
        if name not in choices:
            self.fail(chosen[0], f"{key}.name is {name}: expected one of {names}.{nearest(name, choices)}")
        return choices[name]

    def show(self, node: yaml.Node) -> str:
        """The value as it stands in the file, shortened to one line."""
        text = self.loader.construct_object(node, deep=True)
        return textwrap.shorten(
            "null" if text is None else str(text).lower() if isinstance(text, bool) else str(text), 60, placeholder=" …"
        )


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(cls)}


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    """Strict: text is not a number, true is not 1, 10.0 is not a whole number."""
    return TypeAdapter(hint, config=ConfigDict(strict=True))


def _advice(hint: Any, node: yaml.Node, value: Any) -> str:
    """The next move for a value of the wrong type, where it can be told."""
    accepted = (hint, *typing.get_args(hint))
    if typing.get_origin(hint) is Literal and isinstance(value, str):
        return nearest(value, accepted[1:])
    if str in accepted and isinstance(node, yaml.ScalarNode):
        return " Put it in quotes."
    if isinstance(value, str) and (int in accepted or float in accepted) and _FLOAT.fullmatch(value):
        return " Remove the quotes."
    return ""


def _expected(hint: Any) -> str:
    """A type in a user's words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(arguments)}" if len(arguments) > 1 else arguments[0]
    if origin in (Union, types.UnionType):
        return " or ".join(_expected(argument) for argument in arguments)
    if origin is tuple:
        return f"a list, each item {_expected(arguments[0])}" if Ellipsis in arguments else f"a list of {len(arguments)} numbers"
    if origin is dict:
        return "a mapping, e.g. {key: value}"
    return {float: "a number", int: "a whole number", bool: "true or false", str: "text", types.NoneType: "null"}[hint]


def _suggestion(name: str, known: Iterable[str], key: str) -> str:
    """The nearest setting here, else the same name elsewhere, else all names here."""
    if close := nearest(name, known):
        return close
    elsewhere = dict.fromkeys(
        path for path in _leaf_keys(TrainConfig) if path.rpartition(".")[2] == name and path != _join(key, name)
    )
    if elsewhere:
        return f" Did you mean {' or '.join(repr(path) for path in elsewhere)}?"
    return f" Expected one of {', '.join(known)}."


def _leaf_keys(cls: type, key: str = "") -> Iterator[str]:
    """The key path of every setting, sections and variants included."""
    for name, hint in typing.get_type_hints(cls).items():
        if name not in _fields(cls):
            continue
        own = [hint] if isinstance(hint, type) and dataclasses.is_dataclass(hint) else []
        sections = list((variants(hint) or variants_of_list(hint)).values()) or own
        if not sections:
            yield _join(key, name)
        for section in sections:
            yield from _leaf_keys(section, _join(key, name))


def _lines(settings: Any, *, indent: str) -> Iterator[str]:
    """A dataclass as YAML lines, each setting with its docstring as a comment."""
    cls: type = type(settings)
    docs = field_docs(cls)
    for name in _fields(cls):
        value = getattr(settings, name)
        if dataclasses.is_dataclass(value):
            yield f"{indent}{name}:"
            yield from _lines(value, indent=indent + "  ")
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            yield f"{indent}{name}:"
            for item in value:
                first, *rest = _lines(item, indent=indent + "    ")
                yield from (f"{indent}  - {first.lstrip()}", *rest)
        else:
            line = f"{indent}{name}: {show_value(value)}"
            yield f"{line:<32}  # {docs[name]}" if name in docs else line


def show_value(value: Any) -> str:
    """A value as YAML on one line."""
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.dump(plain, Dumper=_Dumper, default_flow_style=True, width=10**9, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


@cache
def field_docs(cls: type) -> dict[str, str]:
    """{field: the string below it}, inherited fields included.

    {} where the source is not at hand (a frozen application), since comments are a courtesy.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except OSError:
        return {}
    body = tree.body[0].body  # type: ignore[attr-defined]
    bases = [base for base in cls.__bases__ if dataclasses.is_dataclass(base)]
    inherited = {name: doc for base in bases for name, doc in field_docs(base).items()}
    return inherited | {
        field.target.id: " ".join(doc.value.value.split())
        for field, doc in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
        and isinstance(doc.value.value, str)
    }
