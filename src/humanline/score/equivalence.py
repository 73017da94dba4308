r"""Whether a completion's answer equals a gold answer as mathematics; runs in the verifier's worker process.

math-verify extracts, parses and compares. Around it, where it says no to what people call equal, and yes to what they do not:

- A gold answer is all answer, so it is parsed as LaTeX from end to end, unless it is a plain number; `\tfrac83`, `5x + 1` and `10, 4, 2`
  have no delimiters by which they would be found in text. The same holds for a completion that is nothing but an answer.
- Words are compared as words. As LaTeX, `east` is a product of four letters, and equals `seat`.
- `pi/2` in plain text is `\pi/2`. An answer without delimiters is what follows "answer is", or the last line.
- Radicals are equal if they are so wherever both are real: √(1/n) and 1/√n.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import sympy
from math_verify import parse, verify

_PLAIN_NUMBER = re.compile(r"\s*[-+]?\s*[$€£¥]?\s*[\d.,]*\d[\d.,]*\s*[$€£¥]?\s*\.?\s*")
_LIST_OR_DECIMAL = re.compile(r"\s*[-+]?\d+,\d{1,2}\s*")
_DELIMITED = re.compile(r"(?<!\\)\$|\\\(|\\\[|\\boxed")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit|operatorname)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[A-Za-z]+(?:[ -][A-Za-z]+)*")
_ANSWER = re.compile(r"(?i)\banswer(?:\s+is)?\s*:?\s*(.+?)\s*$")
_NAMES = re.compile(r"(?<![\\A-Za-z])(pi|sqrt|sin|cos|tan|log|ln|exp)(?![A-Za-z])")
_ROOT = re.compile(r"\\sqrt\s*\(([^()]*)\)")
SHORT = 60
"""characters of a line that may be nothing but an answer"""


class Comparison(NamedTuple):
    """What was found in a completion, and how it compares."""

    right: bool | None
    """None: the gold answer cannot be read"""
    found: str
    """the extracted answer as text, "" if there is none"""


def compare(golds: Sequence[str], text: str, *, precision: int, set_relations: bool) -> Comparison:
    """Whether the answer in `text` equals any of `golds`. No time limit of its own: the caller kills what takes too long."""
    readings = {gold: _read_gold(gold) for gold in golds}
    readable = {gold: reading for gold, reading in readings.items() if reading}
    if not readable:
        return Comparison(None, "")
    answer = _read_answer(text)
    found = next((part.strip("* .") for part in answer if isinstance(part, str)), str(answer[0]) if answer else "")
    for gold, reading in readable.items():
        words = _words(gold)
        if words is not None and (_words(found) is not None or not answer):
            if words == _words(found or _last_line(text)):
                return Comparison(True, found or _last_line(text))
            continue
        options: dict[str, Any] = {"float_rounding": precision, "allow_set_relation_comp": set_relations, "timeout_seconds": None}
        if verify(reading, answer, **options) or _equal_where_real(reading, answer):
            return Comparison(True, found)
    return Comparison(False, found)


def _read(text: str) -> list[Any]:
    return parse(text, parsing_timeout=None)


def _read_gold(gold: str) -> list[Any]:
    if _LIST_OR_DECIMAL.fullmatch(gold):
        return _read(gold) + _read(f"${gold}$")
    return _read(gold) if _DELIMITED.search(gold) or _PLAIN_NUMBER.fullmatch(gold) else _read(f"${_as_latex(gold)}$")


def _read_answer(text: str) -> list[Any]:
    """As math-verify reads it, unless the text is, or ends in, an answer without delimiters."""
    if _DELIMITED.search(text):
        text = re.sub(r"(?<=\\boxed\{)[^{}]*", lambda boxed: _as_latex(boxed[0]), text)
        return _read(text) or _read_line(_last_line(text))
    line = _last_line(text)
    whole = "\n" not in text.strip() and line == text.strip("*_. \n")
    if (whole or _NAMES.search(line)) and not _PLAIN_NUMBER.fullmatch(line):
        return _read_line(line) or _read(text)
    return _read(text) or _read_line(line)


def _read_line(line: str) -> list[Any]:
    """A line as LaTeX from end to end, unless words stand in it."""
    return [] if _has_words(line) else _read(f"${_as_latex(line)}$")


def _has_words(line: str) -> bool:
    """Whether there is more than mathematics: two letters together that are no command and no name of a function."""
    return re.search(r"[A-Za-z]{2,}", _NAMES.sub("", re.sub(r"\\[A-Za-z]+", "", line))) is not None


def _last_line(text: str) -> str:
    """What follows "answer is" in the last line, else a short last line, without emphasis and full stop; "" if it is long."""
    line = text.strip().rpartition("\n")[2].strip()
    stated = _ANSWER.search(line)
    line = (stated[1] if stated else line).strip("*_` ").rstrip(".").strip("*_` ")
    return line if len(line) <= SHORT and "$" not in line else ""


def _as_latex(text: str) -> str:
    """Names of functions and constants as commands, `sqrt(x)` with braces."""
    return _ROOT.sub(r"\\sqrt{\1}", _NAMES.sub(r"\\\1", text))


def _words(text: str) -> str | None:
    """An answer that is words, for comparing; None for anything else. One or two letters are variables unless marked as text."""
    inner = _TEXT.sub(r"\1", text).replace(r"\ ", " ").strip(" $().*")
    if not _WORDS.fullmatch(inner):
        return None
    return inner.lower() if _TEXT.search(text) or len(inner) >= 3 else None


def _equal_where_real(golds: Sequence[Any], answers: Sequence[Any]) -> bool:
    """Equality of expressions with radicals in the same variables at sample points where both are real, to 20 digits."""
    for gold in golds:
        for answer in answers:
            if isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr) and gold.free_symbols == answer.free_symbols:
                has_root = any(isinstance(part, sympy.Pow) and not part.exp.is_integer for part in gold.atoms(sympy.Pow))
                if gold.free_symbols and has_root and _agree(gold, answer):
                    return True
    return False


def _agree(first: sympy.Expr, second: sympy.Expr) -> bool:
    symbols = sorted(first.free_symbols, key=str)
    compared = 0
    for point in range(1, 9):
        values = {
            symbol: (-1) ** (point + place) * sympy.sqrt(7 * point + 3 * place + 2) / 3 for place, symbol in enumerate(symbols)
        }
        try:
            numbers = [complex(expression.subs(values).evalf(30)) for expression in (first, second)]
        except TypeError:  # no number comes out: an unevaluated sum, an infinity
            return False
        if all(abs(number.imag) < 1e-15 for number in numbers):
            compared += 1
            if abs(numbers[0] - numbers[1]) > 1e-12 * max(1.0, abs(numbers[0])):
                return False
    return compared >= 3
