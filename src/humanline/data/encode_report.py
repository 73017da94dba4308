"""What became of the rows on their way to tokens: counts, each with the place of its first case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from humanline.data.rows import Place


@dataclass(frozen=True, slots=True)
class Count:
    """How often something happened, and where first."""

    number: int = 0
    place: Place | None = None
    detail: str = ""
    """the first case in numbers, e.g. "prompt 20 >= max_length 16" """

    @property
    def where(self) -> str:
        """` (train.jsonl:3)`, or ` (first train.jsonl:3)` of several, or nothing."""
        return f" ({'first ' if self.number > 1 else ''}{self.place})" if self.place else ""


COUNTED = {
    "truncated_prompts": ("prompts truncated", "their start was cut to fit max_length"),
    "truncated_completions": ("completions truncated", "their end was cut to fit max_length"),
    "merged_seams": ("seams repaired", "a token spans prompt and completion, so the prompt ends before it"),
    "reopened_seams": ("openings repaired", "the template renders the answer without all of its generation prompt"),
    "altered_answers": ("answers altered", "the template left out or changed part of them"),
    "cut_after_end": ("completions cut", "something followed their end-of-sequence token"),
    "without_end": ("completions unended", "finished, but no end-of-sequence token is known or stored"),
    "ends_without_logp": ("ends left out", "the end-of-sequence token has no stored log-prob"),
    "stored_prompts": ("prompts as sampled", "their stored prompt_ids differ from their text: cut, or under another template"),
    "transformed_logps": ("log-probs left out", "taken under a temperature or top_p; a scoring pass replaces them"),
}
"""The fields of `EncodeReport` that count unusual but usable cases: name and explanation in words."""

UNKNOWN = "the tokenizer does not have these characters, so the model cannot tell them apart"


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
    """the first row as the model sees it, the trained parts of its first completion between ⟦ and ⟧"""
    truncated_prompts: Count = Count()
    truncated_completions: Count = Count()
    merged_seams: Count = Count()
    """rows: the tokenizer merges across the end of the prompt, so the shared prompt ends before that"""
    reopened_seams: Count = Count()
    """rows: the template renders an answer otherwise than its generation prompt opens it, so the prompt ends before that"""
    altered_answers: Count = Count()
    cut_after_end: Count = Count()
    without_end: Count = Count()
    ends_without_logp: Count = Count()
    """completions stored with a log-prob for every token but the end token, which was left out"""
    stored_prompts: Count = Count()
    transformed_logps: Count = Count()
    """completions whose log-probs are those of the sampler's temperature and top_p, not of the policy itself (R10)"""

    unknown_tokens: Count = Count()
    """tokens of texts that stand for characters which the tokenizer has not"""

    def lines(self) -> list[str]:
        """For printing: what happened, a line each with its first place; the last line says that the other counts are 0."""
        rows = [f"dropped {seen.number} of {self.rows_in} rows: {seen.detail}{seen.where}" for seen in self.dropped_rows.values()]
        completions = [
            f"dropped {seen.number} of {self.completions_in} completions, their groups stay: {seen.detail}{seen.where}"
            for seen in self.dropped_completions.values()
        ]
        unknown = self.unknown_tokens
        cases: list[tuple[Count, str, str]] = [(getattr(self, name), *words) for name, words in COUNTED.items()]
        told = [*rows, *completions, *(count for count, _, _ in cases if count.number)]
        return [
            f"encoded {self.rows_out} of {self.rows_in} rows with {self.completions_out} of {self.completions_in} completions",
            f"tokens: {self.prompt_tokens} in prompts, {self.completion_tokens} in completions ({self.trained_tokens} trained), "
            f"longest {self.longest} of max_length {self.max_length}",
            *rows,
            *completions,
            *(f"{count.number} {name}{count.where}: {why}" for count, name, why in cases if count.number),
            *([f"warning: {unknown.number} unknown tokens{unknown.where}: {UNKNOWN}"] if unknown.number else []),
            f"nothing {'else ' if told else ''}was dropped, cut or repaired",
        ]
