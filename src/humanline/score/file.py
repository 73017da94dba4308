"""The file that `humanline score` writes: whole, in the order of the data, or not there at all.

While it grows, rows are appended to `NAME.partial.jsonl`; `finish` sorts them into `NAME.jsonl`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from humanline.errors import CheckpointError
from humanline.score.rows import ScorableRow, line_of


class ScoreFile:
    """An open output file. One process may hold it at a time. `done`: the rows that are there without any failure, by number."""

    def __init__(self, path: Path, *, resume: bool, rows: Sequence[ScorableRow], provenance: Mapping[str, Any]) -> None:
        """Raises `CheckpointError` when the file holds rows and `resume` is off, or rows of other settings or data."""
        self.path, self.partial = path, path.with_name(f"{path.stem}.partial.jsonl")
        if not resume:
            for existing in (self.path, self.partial):
                if existing.exists() and existing.stat().st_size:
                    raise CheckpointError(f"{existing} exists. Add --resume to score what it lacks, or choose another --out.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Half of a surrogate pair, which a judge's reply may hold, is written as JSON's own escape of it.
            self._file: IO[str] = open(self.partial, "a+", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        except OSError as error:
            raise CheckpointError(f"{self.partial} cannot be written: {error}. Choose another --out.") from error
        try:
            self._lock()
            self._rows = self._read({row.number: row for row in rows}, provenance)
        except BaseException:
            self._file.close()
            raise
        self.done = {number: row for number, row in self._rows.items() if not row["scorer"]["failed"]}

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, row: dict[str, Any]) -> None:
        """Add a row; it survives whatever happens afterwards, and takes the place of an earlier one of its number."""
        self._file.write(line_of(row) + "\n")
        self._file.flush()
        self._rows[row["scorer"]["number"]] = row

    def finish(self) -> None:
        """Sort the rows into the final file and close."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(line_of(self._rows[number]) + "\n" for number in sorted(self._rows))
        os.replace(temporary, self.path)
        self.discard()

    def discard(self) -> None:
        """Close and leave nothing of the partial file."""
        self.partial.unlink()
        self.close()

    def close(self) -> None:
        """Give the file free; rows stay."""
        self._file.close()

    def __enter__(self) -> ScoreFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"{self.partial} is in use by another process. Wait for it, or choose another --out."
            ) from error

    def _read(self, expected: Mapping[int, ScorableRow], provenance: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
        """The rows that are there, by number. A torn last line, from a process that was killed, is cut off."""
        found: dict[int, dict[str, Any]] = {}
        for path in (self.path, self.partial):
            if not path.exists():
                continue
            whole, end, torn = path.read_bytes().rpartition(b"\n")
            if torn and path == self.partial:
                self._file.truncate(len(whole + end))
            for line_number, line in enumerate(whole.split(b"\n") if end else [], 1):
                row = _checked(line, f"{path}:{line_number}", expected, provenance)
                found[row["scorer"]["number"]] = row
        return found


def _checked(line: bytes, place: str, expected: Mapping[int, ScorableRow], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """A stored row, which must be of this run."""
    try:
        row: dict[str, Any] = json.loads(line)
        number, record, stored = (row["scorer"][key] for key in ("number", "record", "parts"))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{place}: not a row that `humanline score` wrote ({error!r}). Choose another --out.") from error
    differences = _differences(stored, provenance["parts"])
    if differences:
        raise CheckpointError(
            f"{place}: scored with other settings, so going on would mix two kinds of scores:\n  "
            + "\n  ".join(differences)
            + "\n  Leave these as they were, or choose another --out."
        )
    if number not in expected or expected[number].key != record:
        raise CheckpointError(
            f"{place}: is of row {number + 1}, which the data no longer holds as it was scored.\n"
            "  Restore the data, or choose another --out."
        )
    return row


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    flat = [{f"{label}.{key}": value for label, part in parts.items() for key, value in part.items()} for parts in (then, now)]
    return [
        f"{key}: {flat[0].get(key, '(none)')} then, {flat[1].get(key, '(none)')} now"
        for key in {**flat[0], **flat[1]}
        if flat[0].get(key) != flat[1].get(key)
    ]
