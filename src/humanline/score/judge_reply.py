"""From a judge's reply to a score: strictly, so that a reply that says something else is no score at all."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from humanline.data.record import shown
from humanline.score.chat import Token, Unanswered
from humanline.score.thoughts import after_thoughts

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_FENCED = re.compile(r"```(?:json)?\s*(\{.*?\})\s*```", re.DOTALL)


class Found(NamedTuple):
    """A value in a reply."""

    value: Any
    reason: str
    position: int
    """of its first character in the whole reply"""


def find_score(reply: str, low: float, high: float) -> Found:
    """The number that a reply consists of, or the `score` of the JSON object that it ends in, within [low, high].

    Thoughts are left out first. Raises `Unanswered` for anything else: words around a number, a score as text, one off the scale.
    """
    rest = _answer(reply)
    position = len(reply) - len(rest)
    number = _NUMBER.fullmatch(rest.strip())
    if number:
        found = Found(float(number[0]), "", position + rest.index(number[0]))
    else:
        found = _in_object(rest, position, "score")
        if isinstance(found.value, bool) or not isinstance(found.value, (int, float)) or not math.isfinite(found.value):
            raise Unanswered("out of format", f"score is {shown(found.value)}: expected a number")
    if not low <= found.value <= high:
        raise Unanswered("out of scale", f"score {found.value:g} is not within {low:g} … {high:g}")
    return found._replace(value=float(found.value))


def find_choice(reply: str, choices: Sequence[str]) -> Found:
    """The choice that a reply consists of, or the `better` of the JSON object that it ends in."""
    rest = _answer(reply)
    position = len(reply) - len(rest)
    if rest.strip() in choices:
        return Found(rest.strip(), "", position + rest.index(rest.strip()))
    found = _in_object(rest, position, "better")
    if found.value not in choices:
        raise Unanswered("out of format", f"better is {shown(found.value)}: expected one of {', '.join(choices)}")
    return found


def weigh(tokens: Sequence[Token] | None, reply: str, position: int, values: Mapping[str, float]) -> float | None:
    """The mean of `values` under the token probabilities at `position`, where a token stands that is one of their names.

    The probabilities of the names are normalised to sum to 1 among themselves. None: no log-probs, or none that belong to the reply.
    """
    if tokens is None or "".join(token.text for token in tokens) != reply:
        return None
    start = 0
    for token in tokens:
        if start <= position < start + len(token.text):
            if token.text.strip() not in values:
                return None
            masses: dict[str, float] = {}
            for text, logp in token.likely.items():
                if text.strip() in values:
                    masses[text.strip()] = masses.get(text.strip(), 0.0) + math.exp(logp)
            mass = sum(masses.values())
            return sum(values[name] * share for name, share in masses.items()) / mass if mass > 0 else None
        start += len(token.text)
    return None


def _answer(reply: str) -> str:
    """What follows the thoughts."""
    rest = after_thoughts(reply)
    if rest is None or not rest.strip():
        raise Unanswered("out of format", "the reply is all thoughts")
    return rest


def _in_object(text: str, position: int, key: str) -> Found:
    """The value of `key` in the JSON object that `text` ends in, fenced or not."""
    fenced = list(_FENCED.finditer(text))
    if fenced and not text[fenced[-1].end() :].strip():
        start, end = fenced[-1].span(1)
    else:
        start, end = _last_object(text), len(text.rstrip())
    try:
        if start < 0:
            raise ValueError("no JSON object at its end")
        value = json.loads(text[start:end], object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Unanswered("out of format", f"{shown(text.strip()[-60:])}: {error}") from None
    if key not in value:
        raise Unanswered("out of format", f"the JSON object has no {key!r} (keys: {', '.join(value) or 'none'})")
    named = re.search(rf'"{key}"\s*:\s*"?', text[start:end])
    assert named is not None, "a key of the object stands in its text"
    return Found(value[key], str(value.get("reason", "")), position + start + named.end())


def _last_object(text: str) -> int:
    """Where the JSON object that ends the text begins: the first brace from which the rest is valid JSON; -1: there is none."""
    start = text.find("{")
    while start >= 0:
        try:
            _, end = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
            continue
        if not text[end:].strip():
            return start
        start = text.find("{", end)
    return -1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key appears twice")
    return value
