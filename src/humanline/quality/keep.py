"""Writing the rows that are likely enough under the model, as they stand in the input file."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from humanline.data.read import read_records
from humanline.data.record import Record
from humanline.data.rows import EncodedGroup, Place, Row
from humanline.data.schema import parse_rows
from humanline.errors import CheckpointError, DataError
from humanline.quality.config import InspectConfig
from humanline.quality.likelihood import Logp
from humanline.score.rows import line_of


@dataclass(frozen=True)
class Kept:
    """What kept.jsonl holds."""

    threshold: float
    """least mean of the mean token log-probs of a row's completions, nats"""
    records: int
    """lines written"""
    rows: int
    """rows of them; fewer than records where completions are stored one a record"""
    of: int
    """rows that were read; those that cannot be trained on are not kept"""


def check_target(config: InspectConfig) -> Path | None:
    """The folder of results, made; kept.jsonl must not be there yet."""
    if config.out is None:
        return None
    folder = Path(config.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"out is {config.out}: the folder cannot be made ({error}). Choose another --out.") from error
    if config.keep_above is not None and (folder / "kept.jsonl").exists():
        raise CheckpointError(f"{folder / 'kept.jsonl'} exists. Remove it, or choose another --out.")
    return folder


def row_logps(logps: Sequence[Sequence[Logp]]) -> np.ndarray:
    """Of each row the mean over its completions of their mean token log-prob, nats."""
    return np.array([np.mean([logp.mean for logp in group]) for group in logps])


def write_kept(
    config: InspectConfig, folder: Path, rows: Sequence[Row], groups: Sequence[EncodedGroup], logps: Sequence[Sequence[Logp]]
) -> Kept:
    """Write folder/kept.jsonl. A row stays or goes whole, whatever its number of completions. rows: as parsed."""
    assert config.keep_above is not None, "the caller asks for a filter"
    values = row_logps(logps)
    threshold = config.keep_above if config.keep_above < 0 else float(np.quantile(values, config.keep_above))
    stays = {group.place for group, value in zip(groups, values, strict=True) if value >= threshold}
    if not stays:
        raise DataError(
            f"keep_above {config.keep_above:g} keeps none of {len(groups)} rows: the highest has {values.max():.3f} nats a token.\n"
            "  Lower it, or name a quantile such as 0.25."
        )
    wanted = {identity for row in rows if row.place in stays for identity in (row.place, _prompt_of(row))}
    written = 0
    path, partial = folder / "kept.jsonl", folder / f".kept.jsonl.{os.getpid()}"
    try:
        with partial.open("w", encoding="utf-8", errors="backslashreplace") as file:
            settings = config.rows
            for place, raw in read_records(config.data, split=settings.split, limit=settings.limit_rows):
                if _identity(place, raw, config, rows[0].kind == "group") in wanted:
                    file.write(line_of(raw) + "\n")
                    written += 1
        os.replace(partial, path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}. Choose another --out.") from error
    finally:
        partial.unlink(missing_ok=True)
    return Kept(threshold, written, len(stays), len(rows))


def _identity(place: Place, raw: dict[str, Any], config: InspectConfig, grouped: bool) -> Hashable:
    """What ties a record to its row: its place, or the prompt where completions of a group are stored one a record."""
    columns = config.rows.columns
    if not grouped or Record.of(place, raw, columns).has("completions"):
        return place
    return _prompt_of(next(parse_rows([(place, raw)], columns=columns)))


def _prompt_of(row: Row) -> Hashable:
    """By what records of one group are gathered."""
    return repr((row.prompt, row.prompt_ids))
