"""Rows to tokens: one prompt shared by all completions of a row, and where training starts and stops, found in token space.

A conversation is rendered and tokenized once, as a whole. Its prompt is what these tokens share with those of the rendered prompt
alone, so prompt + completion always are the tokens of the whole text, whatever merges at the seam. Masks come from positions, never
from token ids.  mask: True = the token counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from humanline.config import DataConfig
from humanline.data.encode_report import Count, EncodeReport
from humanline.data.fit import Problem, problem_of, truncate
from humanline.data.render import Rendered, RenderedRow, Renderer
from humanline.data.rows import EncodedCompletion, EncodedGroup, Place, Row
from humanline.data.vocabulary import Vocabulary
from humanline.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BLOCK = 1024
"""rows tokenized in one call: bounds the memory for texts"""


def encode_rows(
    rows: Iterable[Row], tokenizer: PreTrainedTokenizerBase, config: DataConfig, *, eos_ids: tuple[int, ...] = ()
) -> tuple[list[EncodedGroup], EncodeReport]:
    """Tokenize rows in their order, and say what became of each.

    `eos_ids`: further ids that end a completion, from the model's generation config. Raises `DataError` for a row that cannot be
    encoded or, with `too_long: error`, does not fit, and when no row is left; `ModelError` when a chat template is needed and missing.
    """
    encoder = _Encoder(tokenizer, config, eos_ids)
    rows = iter(rows)
    groups: list[EncodedGroup] = []
    while block := list(islice(rows, BLOCK)):
        groups.extend(encoder.encode(block))
    report = encoder.report(groups)
    if not groups:
        raise DataError(_nothing_left(report, encoder.longest))
    return groups, report


def _nothing_left(report: EncodeReport, longest: int) -> str:
    if not report.rows_in:
        return "no rows to encode. Expected at least one."
    reasons = "; ".join(line for line in report.lines() if line.startswith("dropped"))
    move = "Raise --rows.max-length" + (f" (the longest row has {longest} tokens)" if longest > report.max_length else "")
    return f"no row is left to train on: {reasons}.\n  {move}, cut rows with `--rows.too-long truncate`, or look at the rows named."


class _Encoder:
    """Encodes block after block and counts what happens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: DataConfig, eos_ids: tuple[int, ...]) -> None:
        self.config = config
        self.vocabulary = Vocabulary(tokenizer, eos_ids)
        self.render = Renderer(tokenizer, config, end_texts=self.vocabulary.end_texts)
        self.longest = 0
        self._totals: dict[str, int] = defaultdict(int)
        self._counts: dict[str, Count] = defaultdict(Count)
        self._dropped_rows: dict[str, Count] = defaultdict(Count)
        self._dropped_completions: dict[str, Count] = defaultdict(Count)

    def encode(self, rows: Sequence[Row]) -> Iterator[EncodedGroup]:
        """One block; yields the rows that stay."""
        rendered = [self.render(row) for row in rows]
        ids = self.vocabulary.ids(text for each in rendered for text in _texts(each))
        for row, texts in zip(rows, rendered, strict=True):
            self._totals["rows_in"] += 1
            self._totals["completions_in"] += len(row.completions)
            prompt_ids, completions = self._tokens(row, texts, ids)
            group = self._fit(row, prompt_ids, completions)
            if group is not None:
                yield group

    def report(self, groups: Sequence[EncodedGroup]) -> EncodeReport:
        """The counts so far; `groups` are all that came out."""
        completions = [(group, completion) for group in groups for completion in group.completions]
        return EncodeReport(
            max_length=self.config.max_length,
            rows_in=self._totals["rows_in"],
            rows_out=len(groups),
            completions_in=self._totals["completions_in"],
            completions_out=len(completions),
            completions_of_dropped_rows=self._totals["completions_of_dropped_rows"],
            dropped_rows=dict(self._dropped_rows),
            dropped_completions=dict(self._dropped_completions),
            prompt_tokens=sum(len(group.prompt_ids) for group in groups),
            completion_tokens=sum(len(completion.ids) for _, completion in completions),
            trained_tokens=sum(int(completion.mask.sum()) for _, completion in completions),
            longest=max((len(group.prompt_ids) + len(completion.ids) for group, completion in completions), default=0),
            first_example=self.vocabulary.mark(groups[0]) if groups else "",
            **self._counts,
        )

    def _count(self, name: str, place: Place) -> None:
        self._counts[name] = self._counts[name].plus(place)

    def _tokens(self, row: Row, texts: RenderedRow, ids: Mapping[str, np.ndarray]) -> tuple[np.ndarray, list[EncodedCompletion]]:
        """Find the seam: the shared prompt is the shortest that any completion leaves intact."""
        prompt_ids = ids[texts.prompt]
        seams = [len(prompt_ids) if whole is None else _shared(prompt_ids, ids[whole.text]) for whole in texts.wholes]
        start = min(seams)
        if start < len(prompt_ids):
            if None in texts.wholes:
                raise DataError(
                    f"{row.place}: completions with token_ids need the whole prompt as tokens, but completion {seams.index(start) + 1} "
                    "merges with its end.\n  Give token_ids for all completions of the row, or for none."
                )
            self._count("merged_seams", row.place)
        if texts.reopened:
            self._count("reopened_seams", row.place)
        completions = [
            self._sampled(row, number) if whole is None else self._written(row, number, whole, ids, start=start, seam=seam)
            for number, (whole, seam) in enumerate(zip(texts.wholes, seams, strict=True))
        ]
        return prompt_ids[:start], completions

    def _written(
        self, row: Row, number: int, whole: Rendered, tokens: Mapping[str, np.ndarray], *, start: int, seam: int
    ) -> EncodedCompletion:
        """A completion given as text: trained from `seam` to its end token, which is put there if nothing else did.

        Tokens between `start` and `seam` are prompt alone (another completion of the row merges with them): never trained.
        """
        completion, ids = row.completions[number], tokens[whole.text]
        mask = np.zeros(len(ids), bool)
        edges = [seam, *(_shared(tokens[whole.text[:cut]], ids) for cut in whole.cuts), len(ids)]
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            mask[begin:end] = True
        ends = self._ends(ids, extra=ids[-1:] if whole.ended else ids[:0])
        ends = ends[(ends >= seam) & ((ends == len(ids) - 1) | (not whole.cuts))]
        stop = int(ends[0]) + 1 if len(ends) else len(ids)
        if stop < len(ids):
            self._count("cut_after_end", row.place)
        if whole.altered:
            self._count("altered_answers", row.place)
        ids, mask, ended = ids[start:stop], mask[start:stop], len(ends) > 0
        finished = ended or completion.finished is not False
        if finished and not ended and self.config.eos:
            if self.vocabulary.end_id is None:
                self._count("without_end", row.place)
            else:
                ids, mask, ended = np.append(ids, np.int32(self.vocabulary.end_id)), np.append(mask, True), True
        logps = None
        if completion.logps is not None:
            logps = self._stored_logps(row, number, mask, ended=ended)
            ids, mask = ids[: len(logps)], mask[: len(logps)]
        return EncodedCompletion(ids, mask, _feedback(row, number), logps, finished)

    def _stored_logps(self, row: Row, number: int, mask: np.ndarray, *, ended: bool) -> np.ndarray:
        """Log-probs stored without token ids, one per trained token; the end token goes where the sampler stored none for it."""
        values = _finite(row, number)
        trained = int(mask.sum())
        if ended and len(values) == trained - 1:
            self._count("ends_without_logp", row.place)
            mask = mask[:-1]
        elif len(values) != trained:
            raise DataError(
                f"{row.place}: completion {number + 1} has {len(values)} logps, but its text encodes to {trained} tokens"
                f"{' with its end-of-sequence token' if ended else ''}. Expected one for each token.\n"
                "  Store the sampler's token_ids beside them, or leave logps out: one scoring pass before training replaces them."
            )
        logps = np.zeros(len(mask), np.float32)
        logps[mask] = values
        return logps

    def _sampled(self, row: Row, number: int) -> EncodedCompletion:
        """A completion given as the sampler's own ids: taken as they are, up to the first that ends it."""
        completion = row.completions[number]
        ids = np.array(completion.token_ids, np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.vocabulary.size:
            raise DataError(
                f"{row.place}: completion {number + 1} has token id {ids[(ids < 0) | (ids >= self.vocabulary.size)][0]}, but the "
                f"tokenizer has {self.vocabulary.size} tokens.\n  It was sampled with another tokenizer: leave token_ids (and logps) out."
            )
        logps = None
        if completion.logps is not None:
            logps = _finite(row, number)
            if len(logps) != len(ids):
                raise DataError(
                    f"{row.place}: completion {number + 1} has {len(logps)} logps for {len(ids)} token_ids. Expected one for each.\n"
                    "  Leave logps out if the sampler did not give one for each token: one scoring pass before training replaces them."
                )
        ends = self._ends(ids)
        stop = int(ends[0]) + 1 if len(ends) else len(ids)
        if stop < len(ids):
            self._count("cut_after_end", row.place)
        finished = len(ends) > 0 or completion.finished is not False
        if finished and not len(ends) and self.config.eos:
            self._count("without_end", row.place)
        ids = ids[:stop].astype(np.int32)
        return EncodedCompletion(ids, np.ones(stop, bool), _feedback(row, number), None if logps is None else logps[:stop], finished)

    def _ends(self, ids: np.ndarray, *, extra: np.ndarray | tuple[int, ...] = ()) -> np.ndarray:
        """Positions of ids that end a completion."""
        return np.flatnonzero(np.isin(ids, [*self.vocabulary.end_ids, *extra]))

    def _fit(self, row: Row, prompt_ids: np.ndarray, completions: list[EncodedCompletion]) -> EncodedGroup | None:
        """Apply `too_long`. A group loses the completions that do not fit, any other row goes as a whole; None: gone."""
        self.longest = max(self.longest, *(len(prompt_ids) + len(completion.ids) for completion in completions))
        cut = self.config.too_long == "truncate"
        limit = None if cut else self.config.max_length
        problems = [problem_of(prompt_ids, completion, max_length=limit) for completion in completions]
        fitted_ids, fitted = prompt_ids, completions
        if cut and None in problems:
            sound = [completion for completion, problem in zip(completions, problems, strict=True) if problem is None]
            head, longest = self.vocabulary.head(prompt_ids), max(len(completion.ids) for completion in sound)
            fitted_ids, fitted = truncate(prompt_ids, completions, longest=longest, max_length=self.config.max_length, head=head)
            problems = [problem or problem_of(fitted_ids, each, max_length=None) for each, problem in zip(fitted, problems, strict=True)]
        if not self._stays(row, problems):
            return None
        if len(fitted_ids) < len(prompt_ids):
            self._count("truncated_prompts", row.place)
        kept = [number for number, problem in enumerate(problems) if problem is None]
        for number in kept:
            if len(fitted[number].ids) < len(completions[number].ids):
                self._count("truncated_completions", row.place)
        return EncodedGroup(row.kind, fitted_ids, tuple(fitted[number] for number in kept), row.place)

    def _stays(self, row: Row, problems: Sequence[Problem | None]) -> bool:
        """Whether anything of the row can be trained on; what cannot is counted, or raised with `too_long: error`."""
        found = [(number, problem) for number, problem in enumerate(problems) if problem is not None]
        if not found:
            return True
        number, first = found[0]
        if self.config.too_long == "error":
            which = f"completion {number + 1} of {len(problems)}: " if len(problems) > 1 else ""
            raise DataError(f"{row.place}: {which}{first.detail}.\n  {first.move}")
        if row.kind == "group" and len(found) < len(problems):
            for _, problem in found:
                self._dropped_completions[problem.reason] = self._dropped_completions[problem.reason].plus(row.place, problem.detail)
            return True
        self._totals["completions_of_dropped_rows"] += len(problems)
        self._dropped_rows[first.reason] = self._dropped_rows[first.reason].plus(row.place, first.detail)
        return False


def _texts(row: RenderedRow) -> Iterator[str]:
    """Everything of a row that has to be tokenized."""
    yield row.prompt
    for whole in row.wholes:
        if whole is not None:
            yield whole.text
            yield from (whole.text[:cut] for cut in whole.cuts)


def _shared(first: np.ndarray, second: np.ndarray) -> int:
    """Length of the longest common prefix."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length


def _feedback(row: Row, number: int) -> float:
    value = row.feedback[number]
    return math.nan if value is None else float(value)


def _finite(row: Row, number: int) -> np.ndarray:
    """The stored log-probs of a completion, float32."""
    values = np.array(row.completions[number].logps, np.float32)
    if not np.isfinite(values).all():
        position = int(np.flatnonzero(~np.isfinite(values))[0])
        raise DataError(
            f"{row.place}: completion {number + 1} has logp {values[position]} at token {position + 1}. Expected finite nats.\n"
            "  Leave logps out: one scoring pass before training replaces them."
        )
    return values
