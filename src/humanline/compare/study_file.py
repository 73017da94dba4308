"""A study as a YAML file: `base` is a training run as in any config, each method says in what it differs.

    out: comparison
    seeds: [1, 2, 3]
    base: {recipe: dpo, model: smollm2, data: pairs.jsonl, eval: {fraction: 0.1}, steps: 200}
    methods:
      plain: {}
      humanline: {limit: {name: clip}, sync_every: 1}
    measure: [eval_reward_accuracy]
    claims:
      - {a: humanline, b: plain, metric: eval_reward_accuracy, kind: better}

Settings lie over each other in the order recipe, base, method. Documents are merged as trees, so that every value keeps its line.
"""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

import yaml

from humanline import recipes
from humanline.compare.study import Claim, Study, check, check_claim, check_name
from humanline.config import TrainConfig
from humanline.configfile import Reader, load_recipe, read_text, reading, variants
from humanline.errors import ConfigError

KEYS = ("out", "seeds", "processes", "base", "methods", "measure", "claims", "alpha")
OWN = {"out": "`out` of the study", "seed": "`seeds` of the study", "resume": "the study, which goes on with what it finds"}
"""settings of a run that are not a method's, and who sets them"""


def load_study(path: str | Path) -> Study:
    """Read and check a study. Raises `ConfigError` with file, line and key path."""
    with reading(read_text(path), str(path)) as (reader, root):
        if root is None:
            raise ConfigError(f"{path} is empty: expected a study ({', '.join(KEYS)}).")
        study = _study(reader, root, str(path))
    try:
        check(study)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return study


def _study(reader: Reader, root: yaml.Node, source: str) -> Study:
    entries = reader.entries(root, KEYS, "")
    nodes = {name: child for name, (_, child) in entries.items()}
    hints = typing.get_type_hints(Study)
    values = {
        name: reader.value(hints[name], nodes[name], key=name)
        for name in ("out", "seeds", "processes", "measure", "alpha")
        if name in nodes
    }
    for name in ("out", "methods", "measure"):
        if name not in nodes:
            raise ConfigError(
                f"{source}: {name} is missing: expected {', '.join(KEYS[:-1])} (all but out, methods, measure may be left out)."
            )
    methods = _methods(reader, nodes.get("base"), nodes["methods"])
    claims = _claims(reader, nodes["claims"], methods) if "claims" in nodes else ()
    try:
        return Study(methods=methods, claims=claims, source=source, **values)
    except ConfigError as error:
        reader.fail(nodes.get(str(error).split()[0], root), str(error))


def _claims(reader: Reader, node: yaml.Node, methods: dict[str, TrainConfig]) -> tuple[Claim, ...]:
    if not isinstance(node, yaml.SequenceNode):
        reader.fail(node, f"claims is {reader.show(node)}: expected a list, e.g. `- {{a: x, b: y, metric: m, kind: better}}`.")
    claims = []
    for number, item in enumerate(node.value):
        within = reader.within(f"claims[{number}].")
        if not isinstance(item, yaml.MappingNode):
            reader.fail(item, f"claims[{number}] is {reader.show(item)}: expected {{a: x, b: y, metric: m, kind: better}}.")
        given = {str(name.value) for name, _ in item.value}
        for name in ("a", "b", "metric"):
            if name not in given:
                within.fail(item, f"{name} is missing: expected {{a: x, b: y, metric: m, kind: better}}.")
        claim = within.dataclass(Claim, item, key="")
        try:
            check_claim(claim, methods, key=f"claims[{number}]")
        except ConfigError as error:
            reader.fail(item, str(error))
        claims.append(claim)
    return tuple(claims)


def _methods(reader: Reader, base: yaml.Node | None, methods: yaml.Node) -> dict[str, TrainConfig]:
    """{name: recipe, base and overrides as one config}."""
    below, recipe = _layer(reader, base, "base") if base else (None, None)
    if below is not None:
        own = _merged(reader.within("base."), [recipe, below])
        reader.within("base.").dataclass(TrainConfig, own, key="")  # its errors come first, and once
    if not isinstance(methods, yaml.MappingNode):
        reader.fail(methods, f"methods is {reader.show(methods)}: expected {{name: settings that differ from base}}.")
    found = {}
    for name, (name_node, node) in reader.entries(methods, [str(key.value) for key, _ in methods.value], "methods").items():
        try:
            check_name(name)
        except ConfigError as error:
            reader.fail(name_node, str(error))
        within = reader.within(f"methods.{name}.")
        above, another = _layer(reader, node, f"methods.{name}")
        if another is not None and below is not None:
            _refuse_hidden(reader, below, node, name)
        layers = [another if another is not None else recipe, below, above]
        found[name] = within.dataclass(TrainConfig, _merged(within, layers), key="")
    return found


def _layer(reader: Reader, node: yaml.Node, key: str) -> tuple[yaml.MappingNode, yaml.Node | None]:
    """(the settings in it, those of its recipe)."""
    if isinstance(node, yaml.ScalarNode) and reader.loader.construct_object(node) is None:
        node = yaml.MappingNode("tag:yaml.org,2002:map", [], node.start_mark, node.end_mark)
    if not isinstance(node, yaml.MappingNode):
        reader.fail(node, f"{key} is {reader.show(node)}: expected settings, or {{}} for none.")
    names = [field.name for field in dataclasses.fields(TrainConfig)]
    within = reader.within(f"{key}.")
    entries = within.entries(node, [*names, "recipe"], "")
    for name, setter in OWN.items():
        if name in entries:
            within.fail(entries[name][0], f"{name} is set by {setter}. Remove it here.")
    kept = [pair for name, pair in entries.items() if name != "recipe"]
    settings = yaml.MappingNode(node.tag, kept, node.start_mark, node.end_mark)
    return settings, _recipe(within, entries["recipe"][1]) if "recipe" in entries else None


def _recipe(reader: Reader, node: yaml.Node) -> yaml.Node:
    """The root of a recipe's document, which loads by itself."""
    name = reader.value(str, node, key="recipe")
    try:
        load_recipe(name)
    except ConfigError as error:
        reader.fail(node, f"recipe: {error}")
    path = str(recipes.path(name)) if name in recipes.names() else name
    with reading(read_text(path), path) as (_, root):
        assert root is not None, "load_recipe refuses an empty file"
        return root


def _refuse_hidden(reader: Reader, base: yaml.MappingNode, method: yaml.Node, name: str) -> None:
    """A method's recipe is chosen for its objective and limiter, which base, lying over it, would silently replace."""
    for key_node, _ in base.value:
        if key_node.value in ("objective", "limit"):
            reader.fail(
                method,
                f"methods.{name}.recipe is hidden by base.{key_node.value} in line {key_node.start_mark.line + 1}: base lies over recipes. "
                f"Move {key_node.value} from base to the methods that need it, or name the settings here instead of a recipe.",
            )


def _merged(reader: Reader, layers: list[yaml.Node | None]) -> yaml.Node:
    """The layers from the lowest to the highest as one document."""
    present = [layer for layer in layers if layer is not None]
    whole = present[0]
    for layer in present[1:]:
        whole = merge(reader, whole, layer, TrainConfig, "")
    return whole


def merge(reader: Reader, below: yaml.Node, above: yaml.Node, hint: Any, key: str) -> yaml.Node:
    """`above` over `below`: sections setting by setting, variants of the same name too, everything else replaced.

    hint: the type that both describe.
    """
    section = _section(below, above, hint)
    if section is None or not isinstance(below, yaml.MappingNode) or not isinstance(above, yaml.MappingNode):
        return above
    hints = {field.name: typing.get_type_hints(section)[field.name] for field in dataclasses.fields(section)}
    lower, upper = reader.entries(below, hints, key), reader.entries(above, hints, key)
    pairs = []
    for name in {**lower, **upper}:
        if name in lower and name in upper:
            inner = f"{key}.{name}" if key else name
            pairs.append((upper[name][0], merge(reader, lower[name][1], upper[name][1], hints[name], inner)))
        else:
            pairs.append(upper.get(name) or lower[name])
    return yaml.MappingNode(above.tag, pairs, above.start_mark, above.end_mark)


def _section(below: yaml.Node, above: yaml.Node, hint: Any) -> type | None:
    """The dataclass that both describe; None where they describe different ones, or no section at all."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    choices = variants(hint)
    name = _name(below)
    return choices.get(name) if name and _name(above) in (name, None) else None


def _name(node: yaml.Node) -> str | None:
    found = [value.value for key, value in node.value if key.value == "name"] if isinstance(node, yaml.MappingNode) else []
    return str(found[0]) if found else None
