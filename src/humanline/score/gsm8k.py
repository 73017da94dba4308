"""Grade-school answers: the final number, wherever it stands in the completion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from humanline.score.config import GSM8K
from humanline.score.gold import gold_answers
from humanline.score.item import Item, Scorer, Verdict
from humanline.score.thoughts import after_thoughts

_NUMBER = re.compile(
    r"(?P<sign>(?<![\w.)])[-−]\s?)?(?:[$€£¥]\s?(?P<inner>-)?)?"  # no sign, but a subtraction, behind what is subtracted from
    r"(?<![\w.])(?P<digits>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
)
_MARK = "####"


class GSM8KScorer(Scorer):
    """1 or 0. `strict` takes the number right after the first `####`, `flexible` the last number; no part of the text is left unread.

    The first, because what follows an answer is a model that rambles on. Thousands commas, currency signs and a full stop after the
    number are no part of it; 3 and 3.0 are equal. Thoughts before `</think>` are not read.
    """

    def __init__(self, settings: GSM8K) -> None:
        self.settings = settings
        self.label = settings.label or settings.name

    def verdicts(self, items: Sequence[Item]) -> list[Verdict]:
        return [self._verdict(item) for item in items]

    def _verdict(self, item: Item) -> Verdict:
        golds = gold_answers(item.row, self.settings.gold)
        if isinstance(golds, Verdict):
            return golds
        values = [marked_number(gold) or last_number(gold) for gold in golds]
        if None in values:
            return Verdict(None, "no gold answer", f"column {self.settings.gold!r} has no number: {golds[values.index(None)]!r}")
        text = after_thoughts(item.answer) or ""
        found = marked_number(text) if self.settings.style == "strict" else last_number(text)
        if found is None:
            return Verdict(0.0, note="no number after ####" if self.settings.style == "strict" else "no number", found="")
        right = any(Decimal(found) == Decimal(value) for value in values if value is not None)
        return Verdict(float(right), note=f"answer {found}", found=found)


def marked_number(text: str) -> str | None:
    """The number right behind the first `####`, without commas and signs of currency."""
    _, _, rest = text.partition(_MARK)
    found = _NUMBER.match(rest.lstrip(" \n*:"))
    return _plain(found) if found else None


def last_number(text: str) -> str | None:
    """The last number of a text."""
    found = list(_NUMBER.finditer(text))
    return _plain(found[-1]) if found else None


def _plain(found: re.Match[str]) -> str:
    negative = bool(found["sign"]) != bool(found["inner"])
    return ("-" if negative else "") + found["digits"].replace(",", "")
