"""`score`: from a file of completions to the same file with rewards."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from humanline.errors import DataError, ModelError, ScoringError, ServerError
from humanline.metrics import duration
from humanline.score.config import Judge, ScoreConfig, ScorerConfig, validate
from humanline.score.file import ScoreFile
from humanline.score.item import Item, Verdict
from humanline.score.rows import ScorableRow, load_scorable, scored_record
from humanline.score.weighted import Part, Sheet, Tally, Weighted

EVERY_SECONDS = 10.0
SHOWN = 80
"""characters of a setting that are written into every row; a longer one is written as its hash"""


@dataclass(frozen=True)
class ScoreResult:
    """What a finished run left behind; counts are over all rows of `out`."""

    out: Path
    completions: int
    scored: int
    cut: int
    """completions that a length limit cut"""


def score(config: ScoreConfig, say: Callable[[str], None] = print) -> ScoreResult:
    """Score as `config` says; `say` gets every line for a person. Raises a `HumanlineError` for anything a user can mend.

    Rows are kept as soon as they are scored. What remains after an interruption, and what failed, is done by `resume`.
    """
    validate(config)
    rows, notes = load_scorable(
        config.data, columns=config.rows.columns, split=config.rows.split, limit=config.rows.limit_rows, stop=config.stop
    )
    say(f"{config.data}: {len(rows)} rows with {sum(len(row.items) for row in rows)} completions")
    for line in notes.lines():
        say(f"{config.data}: {line}")
    configs = [_with_jobs(each, config.out, index) for index, each in enumerate(config.scorers)]
    with Weighted([Part(each.build(), each.weight, each.on_error) for each in configs]) as weighted:
        provenance = {
            "parts": {part.scorer.label: _facts(each, part) for each, part in zip(configs, weighted.parts, strict=True)}
        }
        with ScoreFile(Path(config.out), resume=config.resume, rows=rows, provenance=provenance) as file:
            counts = _Counts()
            for row in rows:
                if row.number in file.done:
                    counts.add(row.items, _sheet(file.done[row.number], row))
            todo = [row for row in rows if row.number not in file.done]
            with _kept(file, len(rows), say):
                for chunk, sheet in _scored(todo, weighted, config.chunk, say):
                    counts.add([item for row in chunk for item in row.items], sheet)
                    _write(file, chunk, sheet, provenance)
            return _finish(config, file, rows, counts, say)


@dataclass
class _Counts:
    """Over all rows."""

    parts: dict[str, Tally] = field(default_factory=dict)
    reward: Tally = field(default_factory=Tally)

    def add(self, items: Sequence[Item], sheet: Sheet) -> None:
        for label, verdicts in sheet.parts.items():
            self.parts.setdefault(label, Tally()).add(items, verdicts)
        self.reward.add(items, sheet.rewards)

    def lines(self) -> list[str]:
        return [*(line for label, tally in self.parts.items() for line in tally.lines(label)), *self.reward.lines("reward")]


def _sheet(written: dict[str, Any], row: ScorableRow) -> Sheet:
    """What a row of an earlier part of the run got; nothing in it failed."""
    rewards = [written["reward"]] if row.single else written["rewards"]
    scores: dict[str, list[float]] = written["scores"]
    return Sheet(
        [Verdict(value) for value in rewards], {label: [Verdict(value) for value in part] for label, part in scores.items()}
    )


def _scored(
    todo: Sequence[ScorableRow], weighted: Weighted, chunk: int, say: Callable[[str], None]
) -> Iterator[tuple[Sequence[ScorableRow], Sheet]]:
    """Rows in chunks with what they got; a line every `EVERY_SECONDS` says how far, how fast, how long still."""
    total, done = sum(len(row.items) for row in todo), 0
    started = shown = time.perf_counter()
    for start in range(0, len(todo), chunk):
        rows = todo[start : start + chunk]
        items = [item for row in rows for item in row.items]
        yield rows, weighted.sheet(items)
        done += len(items)
        now = time.perf_counter()
        if now - shown >= EVERY_SECONDS and done < total:
            rate = done / (now - started)
            say(f"scoring: {done}/{total} completions, {rate:.1f}/s, ETA {duration((total - done) / rate)}")
            shown = now


def _write(file: ScoreFile, rows: Sequence[ScorableRow], sheet: Sheet, provenance: dict[str, Any]) -> None:
    start = 0
    for row in rows:
        file.append(scored_record(row, sheet.cut(start, start + len(row.items)), provenance))
        start += len(row.items)


def _finish(
    config: ScoreConfig, file: ScoreFile, rows: Sequence[ScorableRow], counts: _Counts, say: Callable[[str], None]
) -> ScoreResult:
    reward = counts.reward
    if not reward.scored:
        file.discard()
        raise ScoringError("none of the completions could be scored, so nothing is written:\n  " + "\n  ".join(counts.lines()))
    for line in counts.lines():
        say(line)
    cut = sum(item.finished is False for row in rows for item in row.items)
    if cut > reward.items / 2:
        say(
            f"warning: {cut} of {reward.items} completions ({cut / reward.items:.0%}) were cut by a length limit before they ended, and "
            "were scored without their end. Sample again with a larger --max-new-tokens."
        )
    elif cut:
        say(f"{cut} of {reward.items} completions ({cut / reward.items:.0%}) were cut by a length limit")
    file.finish()
    say(f"done: {config.out}")
    return ScoreResult(Path(config.out), reward.items, reward.scored, cut)


def _with_jobs(config: ScorerConfig, out: str, index: int) -> ScorerConfig:
    """A judge's job file beside the output, unless it has one."""
    if not isinstance(config, Judge) or config.jobs is not None:
        return config
    name = config.label or f"judge{index or ''}"
    return dataclasses.replace(config, jobs=str(Path(out).with_name(f"{Path(out).stem}.{name}.jsonl")))


def _facts(config: ScorerConfig, part: Part) -> dict[str, Any]:
    """What the scores of a part depend on, as JSON; the same for the same scores."""
    settings = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(config).items()
        if name not in (*config.free, "label") and value is not None
    }
    return {
        name: f"sha256:{hashlib.sha256(value.encode()).hexdigest()[:16]}"
        if isinstance(value, str) and len(value) > SHOWN
        else value
        for name, value in {**settings, **part.scorer.facts()}.items()
    }


@contextmanager
def _kept(file: ScoreFile, total: int, say: Callable[[str], None]) -> Iterator[None]:
    """When scoring stops before its end: say what is kept and how to go on."""
    try:
        yield
    except (DataError, ModelError, ScoringError, ServerError, KeyboardInterrupt) as error:
        kept = f"{len(file)} of {total} rows are kept in {file.partial}. Go on with --resume."
        if isinstance(error, KeyboardInterrupt):
            say(kept)
            raise
        raise type(error)(f"{error}\n  {kept}") from error
