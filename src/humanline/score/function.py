"""A user's own function as a scorer. Its parameters decide how it is called.

| parameters | called | returns |
|---|---|---|
| `completion` | once per completion: `prompt`, `completion`, and the row's columns | a number |
| `prompt` and `completions` | once per prompt: `completions` is a list of texts, columns as they are | a number each |
| `completions`, `prompts` | once per prompt, TRL's form: every argument is a list with an entry per completion | a number each |

In TRL's form a conversational prompt makes each completion a list of one assistant message, as TRL does; elsewhere a completion
is text. Besides the columns every form is offered `prompt_tail` (what the generation prompt prefilled) and `finished`. A
function gets the arguments that it names, or all if it takes `**`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import itertools
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from humanline.data.record import listed, shown, type_name
from humanline.data.rows import Text
from humanline.errors import ConfigError, nearest
from humanline.score.config import Function
from humanline.score.item import Item, Scorer, Verdict

Form = Literal["completion", "prompt", "lists"]


class FunctionScorer(Scorer):
    """Calls the function and checks every value it returns."""

    def __init__(self, settings: Function) -> None:
        self.path = settings.path
        self.function = load_function(settings.path)
        self.label = settings.label or settings.path.rpartition(":")[2]
        self.form, self._named, self._takes_all = _signature(self.function, settings.path)
        self._source = source_hash(self.function)

    def verdicts(self, items: Sequence[Item]) -> list[Verdict]:
        """An exception or a wrong number of values concerns the items of that call only."""
        if self.form == "completion":
            calls = [[item] for item in items]
        else:
            calls = [list(group) for _, group in itertools.groupby(items, key=lambda item: (item.prompt, item.row))]
        return [verdict for call in calls for verdict in self._call(call)]

    def facts(self) -> dict[str, Any]:
        """The function's module as a hash: an edited function is another function."""
        return {"source": self._source}

    def _call(self, items: list[Item]) -> list[Verdict]:
        offered = _arguments(self.form, items)
        missing = [name for name, needed in self._named.items() if needed and name not in offered]
        if missing:
            columns = listed(items[0].row)
            return [Verdict(None, "no such column", f"{self.path} needs {missing[0]!r} (columns: {columns})")] * len(items)
        arguments = offered if self._takes_all else {name: offered[name] for name in self._named if name in offered}
        try:
            returned = self.function(**arguments)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            note = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            return [Verdict(None, "raised", note, error)] * len(items)
        return [as_verdict(returned)] if self.form == "completion" else _as_verdicts(returned, len(items))


def load_function(path: str, *, key: str = "scorer.path") -> Callable[..., Any]:
    """Import `package.module:function` or `file.py:function`; `ConfigError` says which part is wrong. key: the setting it comes from."""
    module_name, _, name = path.rpartition(":")
    if not module_name or not name.isidentifier():
        raise ConfigError(f"{key} is {path!r}: expected 'package.module:function' or 'file.py:function'.")
    module = _file(module_name, path, key) if module_name.endswith(".py") else _module(module_name, path, key)
    function = getattr(module, name, None)
    if function is None:
        raise ConfigError(f"{key} {path!r}: {module.__file__ or module_name} defines no {name!r}.{nearest(name, vars(module))}")
    if not callable(function):
        raise ConfigError(f"{key} {path!r} is {type_name(function)}: expected a function.")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{key} {path!r} is an async function: expected a plain one. Wrap it with asyncio.run.")
    return function


def source_hash(function: Callable[..., Any]) -> str | None:
    """Of the file that defines the function, now: a later edit is not what runs."""
    defined: Any = inspect.unwrap(function)
    file = inspect.getsourcefile(defined if inspect.isfunction(defined) or inspect.ismethod(defined) else type(defined))
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else None


def _module(name: str, path: str, key: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"{key} {path!r} cannot be imported: {error}. Is its folder on PYTHONPATH?") from error


def _file(name: str, path: str, key: str) -> Any:
    file = Path(name).expanduser()
    if not file.is_file():
        raise ConfigError(f"{key} {path!r}: there is no file {file.absolute()}.")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError) as error:
        raise ConfigError(f"{key} {path!r} cannot be imported: {error}.") from error
    return module


def _signature(function: Callable[..., Any], path: str) -> tuple[Form, dict[str, bool], bool]:
    """(the form, {parameter: whether it must be given}, whether any keyword is taken)."""
    named: dict[str, bool] = {}
    takes_all = False
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_all = True
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            named[name] = parameter.default is parameter.empty
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"scorer.path {path!r}: parameter {name!r} is positional only. It is called by keywords: remove the '/'."
            )
    form: Form | None = None
    if "completion" in named and "completions" not in named:
        form = "completion"
    elif "completions" in named and "completion" not in named:
        form = "prompt" if "prompt" in named and "prompts" not in named else "lists"
    if form is None:
        raise ConfigError(
            f"scorer.path {path!r} has the parameters {', '.join(named) or 'none'}: expected one named completion or completions, "
            "e.g. `def reward(prompt, completion, answer)` or, as in TRL, `def reward(prompts, completions, answer, **kwargs)`."
        )
    return form, named, takes_all


def _arguments(form: Form, items: Sequence[Item]) -> dict[str, Any]:
    """Everything that may be passed. The prompt and what belongs to it come before columns of the same name."""
    first = items[0]
    own: dict[str, Any]
    if form == "completion":
        own = {"prompt": _plain(first.prompt), "completion": first.completion, "prompt_tail": first.prompt_tail}
        return {**first.row, **own, "finished": first.finished}
    finished = [item.finished for item in items]
    if form == "prompt":
        own = {"prompt": _plain(first.prompt), "completions": [item.completion for item in items]}
        return {**first.row, **own, "prompt_tail": first.prompt_tail, "finished": finished}
    turns = not isinstance(first.prompt, str)
    completions = [[{"role": "assistant", "content": item.completion}] if turns else item.completion for item in items]
    columns = {name: [item.row[name] for item in items] for name in first.row}
    own = {"prompts": [_plain(item.prompt) for item in items], "completions": completions}
    return {**columns, **own, "prompt_tail": [item.prompt_tail for item in items], "finished": finished}


def _plain(prompt: Text) -> str | list[dict[str, Any]]:
    """A fresh value of ordinary types, which a function may change without harm."""
    return prompt if isinstance(prompt, str) else [dict(turn) for turn in prompt]


def _as_verdicts(returned: Any, count: int) -> list[Verdict]:
    """One verdict per completion of a call that returns them all."""
    if hasattr(returned, "tolist"):
        returned = returned.tolist()
    if isinstance(returned, (str, bytes, Mapping)) or not isinstance(returned, Sequence):
        return [Verdict(None, "no list of values", f"returned {type_name(returned)} ({shown(returned)})")] * count
    if len(returned) != count:
        return [Verdict(None, "wrong number of values", f"returned {len(returned)} values for {count} completions")] * count
    return [as_verdict(value) for value in returned]


def as_verdict(value: Any) -> Verdict:
    """A finite number as a score; True and False are 1 and 0. Anything else is unscored, and why."""
    if value is None:
        return Verdict(None, "None")
    if hasattr(value, "tolist"):  # a scalar of numpy or torch
        value = value.tolist()
    if not isinstance(value, (int, float)):
        return Verdict(None, "not a number", f"returned {type_name(value)} ({shown(value)})")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isfinite(number):
        return Verdict(number)
    return Verdict(None, "NaN" if math.isnan(number) else "infinite")
