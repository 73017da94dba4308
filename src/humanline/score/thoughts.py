"""Reasoning that precedes an answer, as thinking models write it: never part of the answer."""

from __future__ import annotations

import re

_OPEN, _CLOSE = re.compile(r"<think(?:ing)?>"), re.compile(r"</think(?:ing)?>")


def after_thoughts(text: str) -> str | None:
    """What follows the last `</think>`, or all of a text without thoughts. None: the thoughts never end, so there is no answer.

    The opening tag may be missing: templates put it into the prompt.
    """
    closings = list(_CLOSE.finditer(text))
    rest = text[closings[-1].end() :] if closings else text
    return None if _OPEN.search(rest) else rest
