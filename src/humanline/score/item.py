"""What is scored, what comes out, and what every scorer is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from humanline.data.rows import Place, Text

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class Item:
    """One completion with all that a scorer may look at."""

    prompt: Text
    completion: str
    """what the model wrote, up to the first end-of-sequence token"""
    prompt_tail: str = ""
    """what the generation prompt put into the model's mouth, e.g. "<think>\\n"; the answer as read is tail + completion"""
    row: Mapping[str, Any] = field(default_factory=dict)
    """the record's other columns: answer, ground_truth, …"""
    finished: bool | None = None
    """False: cut by a length limit; None: unknown"""
    place: Place | None = None
    """where the record stands, for messages"""

    @property
    def answer(self) -> str:
        """The whole of the assistant's turn."""
        return self.prompt_tail + self.completion


@dataclass(frozen=True, slots=True)
class Verdict:
    """A score, or why there is none. Unscored is a state of its own, never 0."""

    score: float | None
    """finite"""
    why: str = ""
    """the kind of failure, in words that are counted: "timeout", "raised", "out of scale"; "" for an ordinary score"""
    note: str = ""
    """what it rests on: the extracted answer, the judge's reason, the exception"""
    error: Exception | None = field(default=None, compare=False, repr=False)
    """the exception behind `why`, if there is one"""
    found: str | None = field(default=None, compare=False)
    """the extracted answer, "" where the completion has none; None = unknown, or the scorer extracts nothing"""


class Scorer(ABC):
    """Scores completions. Rows are independent: what an item gets does not depend on which others come along in the call."""

    label: str
    """its name in counts and in the column `scores`"""

    @abstractmethod
    def verdicts(self, items: Sequence[Item]) -> list[Verdict]:
        """One verdict per item, in order. A failure of one item is its verdict; `ScoringError` when going on makes no sense."""

    def score(self, items: Sequence[Item]) -> list[float | None]:
        """The scores alone; None = unscored."""
        return [verdict.score for verdict in self.verdicts(items)]

    def facts(self) -> dict[str, Any]:
        """What scores depend on besides the settings (versions, sources), as JSON values: equal facts, equal scores."""
        return {}

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give back processes, connections and files. The scorer opens what it needs again if it is used once more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
