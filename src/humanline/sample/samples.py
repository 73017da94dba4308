"""The file that `humanline sample` writes: a group row per prompt, in the order of the prompts, whole or not there at all.

While it grows, rows are appended to `NAME.partial.jsonl` as they are made; `finish` sorts them into `NAME.jsonl`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from humanline.data.vocabulary import Vocabulary
from humanline.errors import CheckpointError
from humanline.sample.prompts import Prompt
from humanline.sample.sampler import Sampled

ANSWERS = ("chosen", "rejected", "output_A", "output_B")
"""columns that would make the written row a pair"""
PROMPT_PARTS = ("system", "history")
"""columns that are part of `prompt` already, and would be put before it once more"""
FREE_ON_RESUME = ("number", "versions", "server")
"""entries of `sampler` that may differ between rows of one file"""


def group_row(
    prompt: Prompt, completions: Sequence[Sampled], vocabulary: Vocabulary, sampler: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The row as it is written, and the names of columns that were left out.

    Loads as a group of unscored completions: `rewards` are null, a state of its own. Other columns of the prompt's record stay.
    """
    own = {
        "prompt": prompt.text,
        "prompt_ids": prompt.ids.tolist(),
        "completions": [_text(prompt, sampled, vocabulary) for sampled in completions],
        "completion_ids": [None if sampled.token_ids is None else sampled.token_ids.tolist() for sampled in completions],
        "logprobs": [None if sampled.logps is None else _shortest(sampled.logps) for sampled in completions],
        "finish_reason": ["stop" if sampled.finished else "length" for sampled in completions],
        "rewards": [None] * len(completions),
        "sampler": {"number": prompt.number, **sampler},
    }
    others = {name: value for name, value in prompt.others.items() if name not in own}
    left_out = [name for name, value in others.items() if name in (*ANSWERS, *PROMPT_PARTS) or not _is_json(value)]
    return {name: value for name, value in others.items() if name not in left_out} | own, left_out


def _text(prompt: Prompt, sampled: Sampled, vocabulary: Vocabulary) -> str:
    if sampled.text is not None:
        return sampled.text
    assert sampled.token_ids is not None, "a completion has ids or text"
    return vocabulary.continuation(prompt.ids, sampled.token_ids)


def _shortest(values: np.ndarray) -> list[float]:
    """float32 numbers in the fewest digits that read back as the same float32."""
    return [float(str(value)) for value in values]


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError):  # a date, bytes, half of a surrogate pair …
        return False
    return True


class SampleFile:
    """An open output file. One process may hold it at a time.

    `done`: numbers of the prompts whose rows it has already.
    """

    def __init__(self, path: Path, *, resume: bool, prompts: Sequence[Prompt], sampler: Mapping[str, Any]) -> None:
        """Raises `CheckpointError` when the file holds rows and `resume` is off, or rows of other settings or prompts."""
        self.path, self.partial = path, path.with_name(f"{path.stem}.partial.jsonl")
        if not resume:
            for existing in (self.path, self.partial):
                if existing.exists() and existing.stat().st_size:
                    raise CheckpointError(f"{existing} exists. Add --resume to go on with it, or choose another --out.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = open(self.partial, "a+", encoding="utf-8")  # noqa: SIM115 (open for the length of the run)
        except OSError as error:
            raise CheckpointError(f"{self.partial} cannot be written: {error}. Choose another --out.") from error
        try:
            self._lock()
            self._lines = self._read(prompts, json.loads(json.dumps(sampler)))
        except BaseException:
            self._file.close()
            raise

    @property
    def done(self) -> frozenset[int]:
        """Numbers of the prompts whose rows are there."""
        return frozenset(self._lines)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row; it survives whatever happens afterwards."""
        line = json.dumps(row, ensure_ascii=False)
        self._file.write(line + "\n")
        self._file.flush()
        self._lines[row["sampler"]["number"]] = line

    def finish(self) -> None:
        """Sort the rows into the final file and close."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text("".join(f"{self._lines[number]}\n" for number in sorted(self._lines)), encoding="utf-8")
        os.replace(temporary, self.path)
        self.partial.unlink()
        self.close()

    def close(self) -> None:
        """Give the file free; rows stay."""
        self._file.close()

    def __enter__(self) -> SampleFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CheckpointError(
                f"{self.partial} is in use by another process. Wait for it, or choose another --out."
            ) from error

    def _read(self, prompts: Sequence[Prompt], sampler: Mapping[str, Any]) -> dict[int, str]:
        """The rows that are there, by number. A torn last line, from a process that was killed, is cut off."""
        lines: dict[int, str] = {}
        ids = {prompt.number: prompt.ids.tolist() for prompt in prompts}
        for path in (self.path, self.partial):
            if not path.exists():
                continue
            whole, end, torn = path.read_bytes().rpartition(b"\n")
            if torn and path == self.partial:
                self._file.truncate(len(whole + end))
            for place, line in enumerate(whole.split(b"\n") if end else [], 1):
                lines[_checked(line, f"{path}:{place}", ids, sampler)] = line.decode()
        return lines


def _checked(line: bytes, place: str, ids: Mapping[int, list[int]], sampler: Mapping[str, Any]) -> int:
    """The number of a stored row, which must be of this run."""
    try:
        row = json.loads(line)
        stored, number, prompt_ids = row["sampler"], row["sampler"]["number"], row["prompt_ids"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{place}: not a row that `humanline sample` wrote ({error!r}). Choose another --out.") from error
    changed = [
        f"{key}: {stored.get(key)} then, {sampler.get(key)} now"
        for key in {**stored, **sampler}
        if key not in FREE_ON_RESUME and stored.get(key) != sampler.get(key)
    ]
    if changed:
        raise CheckpointError(
            f"{place}: sampled with other settings, so going on would mix two sets:\n  "
            + "\n  ".join(changed)
            + "\n  Leave these as they were, or choose another --out."
        )
    if ids.get(number) != prompt_ids:
        raise CheckpointError(
            f"{place}: is of prompt {number + 1}, which the data no longer holds as it was sampled.\n"
            "  Restore the data, or choose another --out."
        )
    return int(number)
