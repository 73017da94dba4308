"""RUN/samples*.jsonl: completions of the same prompts beside each other.

A line is what `humanline sample` writes, {"prompt", "completions", "rewards"}, or {"prompt", "completion", "reward"}; a prompt is text
or a list of messages. Other fields are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from humanline.errors import DataError

READ = 500
"""lines of a file, at most, that are searched for shared prompts"""
PROMPTS = 12
COMPLETIONS = 4
"""of a prompt and a file, at most, shown"""
LENGTH = 4000
"""characters of a text, at most, shown"""


class Completion(NamedTuple):
    """One answer."""

    text: str
    reward: float | None
    cut: bool
    """it ended at the token limit, not of itself"""


class SampleFile(NamedTuple):
    """The beginning of a file of samples."""

    name: str
    answers: dict[str, list[Completion]]
    """by prompt, as text"""


class Column(NamedTuple):
    """What one file has for a prompt."""

    name: str
    completions: tuple[Completion, ...]
    hidden: int
    """completions beyond those"""


class Comparison(NamedTuple):
    """One prompt and its columns."""

    prompt: str
    columns: tuple[Column, ...]


def read_samples(path: Path, name: str) -> SampleFile:
    """Raises `DataError`, with the line's number, for what is no sample."""
    answers: dict[str, list[Completion]] = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(islice(file, READ), 1):
            try:
                row = json.loads(line)
                answers.setdefault(_prompt(row["prompt"]), []).extend(_completions(row))
            except (ValueError, LookupError, TypeError) as error:
                if not line.endswith("\n"):  # still being written
                    break
                raise DataError(
                    f"{path}:{number}: not a sample ({type(error).__name__}: {error}). "
                    'Expected {"prompt": …, "completions": […]} or {"prompt": …, "completion": …}.'
                ) from error
    return SampleFile(name, answers)


def _prompt(prompt: Any) -> str:
    """Text as it is; messages one after another under their roles."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"{message['role']}:\n{_text(message['content'])}" for message in prompt)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _completions(row: dict[str, Any]) -> Iterator[Completion]:
    if "completions" in row:
        texts, rewards, reasons = row["completions"], row.get("rewards"), row.get("finish_reason")
    else:
        texts, rewards, reasons = [row["completion"]], [row.get("reward")], [row.get("finish_reason")]
    for number, text in enumerate(texts):
        reward = rewards[number] if rewards else None
        if not (reward is None or isinstance(reward, float | int)):
            raise TypeError(f"reward is {reward!r}, not a number")
        yield Completion(_prompt(text), reward, reasons is not None and reasons[number] == "length")


def side_by_side(files: Sequence[SampleFile]) -> tuple[tuple[Comparison, ...], str]:
    """The first prompts that most files share, and a sentence on what is shown."""
    if not files:
        return (), ""
    shared: dict[str, int] = {}
    for file in files:
        for prompt in file.answers:
            shared[prompt] = shared.get(prompt, 0) + 1
    most = max(shared.values(), default=0)
    prompts = [prompt for prompt, count in shared.items() if count == most]
    comparisons = tuple(
        Comparison(
            _shorten(prompt),
            tuple(
                Column(file.name, tuple(map(_shown, found[:COMPLETIONS])), max(len(found) - COMPLETIONS, 0))
                for file in files
                if (found := file.answers.get(prompt))
            ),
        )
        for prompt in prompts[:PROMPTS]
    )
    return comparisons, (
        f"{len(comparisons)} of {len(prompts)} prompts that {most} of {len(files)} files have in their first {READ} lines, in file order."
    )


def _shown(completion: Completion) -> Completion:
    return completion._replace(text=_shorten(completion.text))


def _shorten(text: str) -> str:
    return text if len(text) <= LENGTH else f"{text[:LENGTH]}\n… ({len(text) - LENGTH:,} more characters)"
