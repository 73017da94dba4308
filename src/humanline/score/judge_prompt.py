"""What a judge is shown: the whole conversation with its roles marked, then what to reply."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from humanline.data.turns import Turns
from humanline.score.config import Judge

_OBJECT = 'Reply with one JSON object and nothing else: {"reason": "<one or two sentences>", '
SCORE_OBJECT = _OBJECT + '"score": <number from {low} to {high}>}'
SCORE_NUMBER = "Reply with one whole number from {low} to {high} and nothing else."
CHOICE_OBJECT = _OBJECT + '"better": "A" or "B"}'
CHOICE_LETTER = "Reply with the letter of the better answer, A or B, and nothing else."


def grading_prompt(settings: Judge, turns: Turns, columns: Mapping[str, Any]) -> str:
    """The instructions, the conversation whose last turn is graded, the columns to be shown, and the form of the reply."""
    reply = SCORE_OBJECT if settings.mode == "number" else SCORE_NUMBER
    return "\n\n".join(
        [
            fill(settings.instructions, settings),
            conversation(turns),
            *shown_columns(columns),
            "Grade the last turn of the conversation, which the assistant wrote. " + fill(reply, settings),
        ]
    )


def comparing_prompt(instructions: str, turns: Turns, answers: tuple[str, str], *, letter: bool) -> str:
    """The instructions, the conversation, two answers to it named A and B, and the form of the reply: a letter or an object."""
    tag = free_tag("answer", answers)
    return "\n\n".join(
        [
            instructions,
            conversation(turns),
            *(f'<{tag} name="{name}">\n{answer}\n</{tag}>' for name, answer in zip("AB", answers, strict=True)),
            CHOICE_LETTER if letter else CHOICE_OBJECT,
        ]
    )


def fill(instructions: str, settings: Judge) -> str:
    """The ends of the scale put in; other braces stay."""
    return instructions.replace("{low}", f"{settings.low:g}").replace("{high}", f"{settings.high:g}")


def conversation(turns: Turns) -> str:
    """Every turn, unaltered, between tags that name its role and that no turn can close by itself."""
    contents = [content(turn) for turn in turns]
    tag = free_tag("turn", contents)
    return "\n".join(f'<{tag} role="{turn["role"]}">\n{text}\n</{tag}>' for turn, text in zip(turns, contents, strict=True))


def content(turn: Mapping[str, Any]) -> str:
    """A turn's text, and its tool calls as JSON."""
    calls = turn.get("tool_calls")
    return str(turn["content"]) + (f"\n{json.dumps(calls, ensure_ascii=False)}" if calls else "")


def shown_columns(columns: Mapping[str, Any]) -> list[str]:
    """Further columns, named."""
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for name, value in columns.items()
    }
    tag = free_tag("column", texts.values())
    return [f'<{tag} name="{name}">\n{text}\n</{tag}>' for name, text in texts.items()]


def free_tag(name: str, texts: Iterable[str]) -> str:
    """`name`, or `name-2`, `name-3` …: the first whose closing tag stands in none of the texts."""
    texts = list(texts)
    tags = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(tag for tag in tags if not any(f"</{tag}>" in text for text in texts))
