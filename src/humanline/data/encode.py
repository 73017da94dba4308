"""Rows to tokens: one prompt shared by all completions of a row, and where training starts and stops, found in token space.

A conversation is rendered and tokenized once, as a whole. Its prompt is what these tokens share with those of the rendered prompt
alone, so prompt + completion always are the tokens of the whole text, whatever merges at the seam. Masks come from positions,
never from token ids.  mask: True = the token counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from humanline.config import DataConfig
from humanline.data.encode_report import Count, EncodeReport
from humanline.data.fit import Problem, nothing_left, problem_of, truncate
from humanline.data.render import Rendered, RenderedRow, Renderer
from humanline.data.rows import EncodedCompletion, EncodedGroup, Place, Row
from humanline.data.vocabulary import Vocabulary, shared
from humanline.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BLOCK = 1024
"""rows tokenized in one call: bounds the memory for texts"""
LEAST = -1000.0
"""nats: no sampler draws a token below; the -9999 of some servers stands for no value"""
ROUNDING = 1e-3
"""nats above 0 that are put down to a sampler's rounding; a log-prob beyond is none (a probability, or its sign is off)"""
WITHOUT_LOGPS = "Without log-probs, one scoring pass before training replaces them."


def encode_rows(
    rows: Iterable[Row], tokenizer: PreTrainedTokenizerBase, config: DataConfig, *, eos_ids: tuple[int, ...] = ()
) -> tuple[list[EncodedGroup], EncodeReport]:
    """Tokenize rows in their order, and say what became of each.

    `eos_ids`: further ids that end a completion, from the model's generation config. Raises `DataError` for a row that cannot be
    encoded or, with `too_long: error`, does not fit, and when no row is left; `ModelError` when a row needs a chat template and
    there is none.
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
    if longest <= report.max_length:
        return f"no row is left to train on: {reasons}.\n  Look at the rows named: every row needs a prompt and an answer."
    return (
        f"no row is left to train on: {reasons}.\n"
        f"  Raise --rows.max-length (the longest row has {longest} tokens), or cut rows with `--rows.too-long truncate`."
    )


class _Encoder:
    """Encodes block after block and counts what happens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: DataConfig, eos_ids: tuple[int, ...]) -> None:
        self.config = config
        self.vocabulary = Vocabulary(tokenizer, eos_ids)
        self.render = Renderer(tokenizer, config, end_texts=self.vocabulary.end_texts)
        self.longest = 0
        self._totals: Counter[str] = Counter()
        self._counts: dict[str, Count] = {}
        self._dropped_rows: dict[str, Count] = {}
        self._dropped_completions: dict[str, Count] = {}

    def encode(self, rows: Sequence[Row]) -> Iterator[EncodedGroup]:
        """One block; yields the rows that stay."""
        rendered = [self.render(row) for row in rows]
        ids = self.vocabulary.ids(text for each in rendered for text in _texts(each))
        for row, texts in zip(rows, rendered, strict=True):
            self._totals["rows_in"] += 1
            self._totals["completions_in"] += len(row.completions)
            self._count_unknown(row, texts, ids)
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
            dropped_rows=self._dropped_rows,
            dropped_completions=self._dropped_completions,
            prompt_tokens=sum(len(group.prompt_ids) for group in groups),
            completion_tokens=sum(len(completion.ids) for _, completion in completions),
            trained_tokens=sum(int(completion.mask.sum()) for _, completion in completions),
            longest=max((len(group.prompt_ids) + len(completion.ids) for group, completion in completions), default=0),
            first_example=self.vocabulary.mark(groups[0]) if groups else "",
            **self._counts,
        )

    def _count_unknown(self, row: Row, texts: RenderedRow, ids: Mapping[str, np.ndarray]) -> None:
        """Tokens that stand for characters the tokenizer has not: the prompt's once, then those of each answer."""
        prompt = self.vocabulary.unknown(texts.prompt, ids[texts.prompt])
        wholes = [self.vocabulary.unknown(whole.text, ids[whole.text]) for whole in texts.wholes if whole is not None]
        if number := prompt + sum(max(0, whole - prompt) for whole in wholes):
            _add(self._counts, "unknown_tokens", row.place, number=number)

    def _tokens(self, row: Row, texts: RenderedRow, ids: Mapping[str, np.ndarray]) -> tuple[np.ndarray, list[EncodedCompletion]]:
        """Find the seam: the shared prompt is the shortest that any completion leaves intact."""
        prompt_ids = self._prompt(row, texts, ids[texts.prompt])
        seams = [len(prompt_ids) if whole is None else shared(prompt_ids, ids[whole.text]) for whole in texts.wholes]
        start = min(seams)
        if start < len(prompt_ids):
            if None in texts.wholes:
                raise DataError(
                    f"{row.place}: the text of completion {seams.index(start) + 1} merges with the last prompt token, but other "
                    "completions have token_ids that follow it.\n  Give token_ids for all completions of the row, or for none."
                )
            _add(self._counts, "merged_seams", row.place)
        if texts.reopened:
            _add(self._counts, "reopened_seams", row.place)
        completions = [
            self._sampled(row, number) if whole is None else self._written(row, number, whole, ids, start=start, seam=seam)
            for number, (whole, seam) in enumerate(zip(texts.wholes, seams, strict=True))
        ]
        return prompt_ids[:start], completions

    def _prompt(self, row: Row, texts: RenderedRow, rendered: np.ndarray) -> np.ndarray:
        """The stored ids of a prompt whose completions are the sampler's own ids, else those of its text."""
        if row.prompt_ids is None or any(whole is not None for whole in texts.wholes):
            return rendered
        stored = self._known(row, "prompt_ids hold", row.prompt_ids)
        if not np.array_equal(stored, rendered):
            _add(self._counts, "stored_prompts", row.place)
        return stored.astype(np.int32)

    def _known(self, row: Row, what: str, token_ids: Sequence[int]) -> np.ndarray:
        """Stored ids as int64 [T], all of them within the vocabulary."""
        ids = np.array(token_ids, np.int64)
        wrong = ids[(ids < 0) | (ids >= self.vocabulary.size)]
        if len(wrong):
            raise DataError(
                f"{row.place}: {what} token id {wrong[0]}. Expected 0 to {self.vocabulary.size - 1}.\n"
                "  It was sampled with another tokenizer: leave token_ids and log-probs out, so that its text is tokenized."
            )
        return ids

    def _written(
        self, row: Row, number: int, whole: Rendered, tokens: Mapping[str, np.ndarray], *, start: int, seam: int
    ) -> EncodedCompletion:
        """A completion given as text: trained from `seam` to its end token, which is put there if nothing else did.

        Tokens from `start` to `seam` are prompt alone (another completion of the row merges with them): never trained.
        """
        completion, ids = row.completions[number], tokens[whole.text]
        mask = np.zeros(len(ids), bool)
        edges = [seam, *(self.vocabulary.covered(ids, tokens[whole.text[:cut]]) for cut in whole.cuts), len(ids)]
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            mask[begin:end] = True
        # Each turn of several has its own end; only the end of the last one ends the completion.
        stop, ended = self._stop(row, ids, start=len(ids) - 1 if whole.cuts else seam, turn_end=whole.ended)
        if whole.altered:
            _add(self._counts, "altered_answers", row.place)
        ids, mask = ids[start:stop], mask[start:stop]
        finished = ended or completion.finished is not False
        if finished and not ended and self.config.eos:
            if self.vocabulary.end_id is None:
                _add(self._counts, "without_end", row.place)
            else:
                ids, mask, ended = np.append(ids, np.int32(self.vocabulary.end_id)), np.append(mask, True), True
        logps = None
        if completion.logps is not None and self._of_policy(row, number):
            logps = self._stored_logps(row, number, mask, ended=ended)
            ids, mask = ids[: len(logps)], mask[: len(logps)]
        return EncodedCompletion(ids, mask, _feedback(row, number), logps, finished)

    def _sampled(self, row: Row, number: int) -> EncodedCompletion:
        """A completion given as the sampler's own ids: taken as they are, up to the first that ends it."""
        completion = row.completions[number]
        assert completion.token_ids is not None, "the renderer leaves only such completions unrendered"
        ids = self._known(row, f"completion {number + 1} has", completion.token_ids)
        logps = None if completion.logps is None else _finite_logps(row, number)
        if logps is not None and len(logps) != len(ids):
            raise DataError(
                f"{row.place}: completion {number + 1} has {len(logps)} log-probs for {len(ids)} token_ids. Expected one each.\n"
                f"  Store both from the same sampler. {WITHOUT_LOGPS}"
            )
        if logps is not None and not self._of_policy(row, number):
            logps = None
        stop, ended = self._stop(row, ids, start=0, turn_end=False)
        if completion.finished is not False and not ended and self.config.eos:
            _add(self._counts, "without_end", row.place)
        return EncodedCompletion(
            ids=ids[:stop].astype(np.int32),
            mask=np.ones(stop, bool),
            feedback=_feedback(row, number),
            logps=None if logps is None else logps[:stop],
            finished=ended or completion.finished is not False,
        )

    def _stop(self, row: Row, ids: np.ndarray, *, start: int, turn_end: bool) -> tuple[int, bool]:
        """Where a completion stops, and whether an end token does it: behind the first one from `start` on, or at the last id.

        `turn_end`: the last id is one, whatever the tokenizer declares.
        """
        ends = self.vocabulary.end_ids | ({int(ids[-1])} if turn_end else set())
        found = np.flatnonzero(np.isin(ids[start:], list(ends)))
        if not len(found):
            return len(ids), False
        stop = start + int(found[0]) + 1
        if stop < len(ids):
            _add(self._counts, "cut_after_end", row.place)
        return stop, True

    def _stored_logps(self, row: Row, number: int, mask: np.ndarray, *, ended: bool) -> np.ndarray:
        """Log-probs stored without token ids, one per trained token; the end token goes where the sampler stored none for it."""
        values = _finite_logps(row, number)
        trained = int(mask.sum())
        if ended and len(values) == trained - 1:
            _add(self._counts, "ends_without_logp", row.place)
            mask = mask[:-1]
        elif len(values) != trained:
            raise DataError(
                f"{row.place}: completion {number + 1} has {len(values)} log-probs, but its text encodes to {trained} tokens"
                f"{' with its end-of-sequence token' if ended else ''}. Expected one for each.\n"
                f"  Store the sampler's token_ids beside them. {WITHOUT_LOGPS}"
            )
        logps = np.zeros(len(mask), np.float32)
        logps[mask] = values
        return logps

    def _of_policy(self, row: Row, number: int) -> bool:
        """Whether stored log-probs are the policy's own, not those of another temperature or top_p."""
        own = row.completions[number].transform == (1.0, 1.0)
        if not own:
            _add(self._counts, "transformed_logps", row.place)
        return own

    def _fit(self, row: Row, prompt_ids: np.ndarray, completions: list[EncodedCompletion]) -> EncodedGroup | None:
        """Apply `too_long`. A group loses the completions that do not fit, any other row goes as a whole; None: gone."""
        self.longest = max(self.longest, *(len(prompt_ids) + len(completion.ids) for completion in completions))
        max_length, cut = self.config.max_length, self.config.too_long == "truncate"
        problems = [problem_of(prompt_ids, each, max_length=None if cut else max_length) for each in completions]
        fitted_ids, fitted = prompt_ids, completions
        if cut and None in problems:
            longest = max(len(each.ids) for each, problem in zip(completions, problems, strict=True) if problem is None)
            head = self.vocabulary.head(prompt_ids)
            fitted_ids, fitted = truncate(prompt_ids, completions, longest=longest, max_length=max_length, head=head)
            problems = [old or nothing_left(each, max_length=max_length) for each, old in zip(fitted, problems, strict=True)]
        if not self._stays(row, problems):
            return None
        if len(fitted_ids) < len(prompt_ids):
            _add(self._counts, "truncated_prompts", row.place)
        kept = [number for number, problem in enumerate(problems) if problem is None]
        for number in kept:
            if len(fitted[number].ids) < len(completions[number].ids):
                _add(self._counts, "truncated_completions", row.place)
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
                _add(self._dropped_completions, problem.reason, row.place, problem.detail)
            return True
        self._totals["completions_of_dropped_rows"] += len(problems)
        _add(self._dropped_rows, first.reason, row.place, first.detail)
        return False


def _texts(row: RenderedRow) -> Iterator[str]:
    """Everything of a row that has to be tokenized."""
    yield row.prompt
    for whole in row.wholes:
        if whole is not None:
            yield whole.text
            yield from (whole.text[:cut] for cut in whole.cuts)


def _add(counts: dict[str, Count], key: str, place: Place, detail: str = "", *, number: int = 1) -> None:
    """Count `number` more; place and detail stay those of the first."""
    seen = counts.get(key, Count(0, place, detail))
    counts[key] = Count(seen.number + number, seen.place, seen.detail)


def _feedback(row: Row, number: int) -> float:
    value = row.feedback[number]
    return math.nan if value is None else float(value)


def _finite_logps(row: Row, number: int) -> np.ndarray:
    """The stored log-probs of a completion, float32."""
    with np.errstate(over="ignore"):
        values = np.array(row.completions[number].logps, np.float32)
    wrong = np.flatnonzero(~np.isfinite(values) | (values > ROUNDING) | (values < LEAST))
    if len(wrong):
        value = values[wrong[0]]
        expected = "finite" if not np.isfinite(value) else "one of at most 0" if value > 0 else f"one of at least {LEAST:g}"
        raise DataError(
            f"{row.place}: completion {number + 1} has log-prob {value} at token {wrong[0] + 1}. Expected {expected}.\n"
            f"  Correct it, or leave the log-probs out. {WITHOUT_LOGPS}"
        )
    return values
