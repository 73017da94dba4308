"""What became of the rows on their way to tokens: counts, each with the place of its first case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from humanline.data.rows import Place


@dataclass(frozen=True, slots=True)
class Count:
    """How often something happened, and where first."""

    number: int = 0
    place: Place | None = None
    detail: str = ""
    """the first case in numbers, e.g. "prompt 20 >= max_length 16" """

    def plus(self, place: Place, detail: str, number: int = 1) -> Count:
        """One more; the first place and detail stay."""
        return Count(self.number + number, self.place or place, self.detail or detail)

    @property
    def where(self) -> str:
        """` (train.jsonl:3)`, or ` (first train.jsonl:3)` of several, or nothing."""
        return f" ({'first ' if self.number > 1 else ''}{self.place})" if self.place else ""


@dataclass(frozen=True)
class EncodeReport:
    """Every row and completion that went in is in here: encoded, or counted under the reason why not."""

    max_length: int
    rows_in: int
    rows_out: int
    completions_in: int
    completions_out: int
    completions_of_dropped_rows: int
    dropped_rows: Mapping[str, Count]
    """by reason"""
    dropped_completions: Mapping[str, Count]
    """by reason, out of groups that stay"""
    prompt_tokens: int
    """each row's prompt once"""
    completion_tokens: int
    trained_tokens: int
    """of the completion tokens, those that count in the loss"""
    longest: int
    """tokens of the longest prompt + completion"""
    first_example: str
    """the first row as the model sees it, its first completion's trained parts between ⟦ and ⟧"""
    truncated_prompts: Count = field(default=Count(), metadata={"line": "prompts cut at the start to fit max_length"})
    truncated_completions: Count = field(default=Count(), metadata={"line": "completions cut at the end to fit max_length"})
    merged_seams: Count = field(default=Count(), metadata={"line": "rows repaired where a token spans prompt and completion"})
    reopened_seams: Count = field(default=Count(), metadata={"line": "rows repaired where the template's generation prompt is not in the answer"})
    altered_answers: Count = field(default=Count(), metadata={"line": "answers changed by the chat template"})
    cut_after_end: Count = field(default=Count(), metadata={"line": "completions cut after their first end-of-sequence token"})
    without_end: Count = field(default=Count(), metadata={"line": "finished completions without an end-of-sequence token"})
    ends_without_logp: Count = field(default=Count(), metadata={"line": "end-of-sequence tokens left out for want of a stored log-prob"})

    def lines(self) -> list[str]:
        """For printing: what happened, a line each with its first place; then, in one line, what did not."""
        dropped = [
            *(f"dropped {count.number} of {self.rows_in} rows: {count.detail}{count.where}" for count in self.dropped_rows.values()),
            *(
                f"dropped {count.number} of {self.completions_in} completions, their groups stay: {count.detail}{count.where}"
                for count in self.dropped_completions.values()
            ),
        ]
        counts = [(each.metadata["line"], getattr(self, each.name)) for each in fields(self) if "line" in each.metadata]
        nothing = [name for name, seen in (("rows", self.dropped_rows), ("completions out of groups", self.dropped_completions)) if not seen]
        none = [*(f"{name} dropped" for name in nothing), *(line for line, count in counts if not count.number)]
        return [
            f"encoded {self.rows_out} of {self.rows_in} rows with {self.completions_out} of {self.completions_in} completions",
            f"tokens: {self.prompt_tokens} in prompts, {self.completion_tokens} in completions ({self.trained_tokens} trained), "
            f"longest {self.longest} of max_length {self.max_length}",
            *dropped,
            *(f"{count.number} {line}{count.where}" for line, count in counts if count.number),
            *([f"0 each: {'; '.join(none)}"] if none else []),
        ]
