"""Records from a file, a `datasets` data set or memory: (place, dict) pairs, one at a time.

No type is inferred over rows. JSON goes through `json`, never through Arrow, so a column may be null for the first thousand
rows, or text in one row and a list of messages in the next. What the columns mean is decided by `schema`.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import json
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from humanline.data.rows import Place
from humanline.errors import ConfigError, DataError

Source = str | os.PathLike[str] | Iterable[Mapping[str, Any]]
"""A path, the name of a data set on the hub (`name` or `name:config`), a `datasets` object, or dicts."""
Records = Iterator[tuple[Place, dict[str, Any]]]

SUFFIXES = ".jsonl, .ndjson, .json, .csv (each also with .gz) or .parquet"
MEMORY = "<memory>"
GZIP = b"\x1f\x8b"
"""what every gzip file starts with"""


class Cell(str):
    """A CSV cell: text that may stand for a JSON value where its column needs one. Text of other files is never decoded."""


def read_records(source: Source, *, split: str = "train", limit: int | None = None) -> Records:
    """The first `limit` records of `source` (all of them for None), streamed where the format allows.

    A `.json` file that starts with `[` is an array of objects, any other is read as one object per line. Blank lines are skipped,
    a byte-order mark is tolerated. `split` chooses among the splits of a data set and is unused for files.
    Raises `DataError`, starting with `file:line` once a line is at fault.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"rows.limit_rows is {limit}: expected a number of rows from 1 on, or null for all.")
    if isinstance(source, (str, os.PathLike)):
        name, records = _from_name(os.fspath(source), split)
    else:
        name, records = MEMORY, _from_memory(source, split)
    return _at_least_one(islice(records, limit), name)


def _at_least_one(records: Records, name: str) -> Records:
    empty = True
    for record in records:
        empty = False
        yield record
    if empty:
        raise DataError(f"{name}: holds no rows.\n  Expected at least one record. Is it the right file and split?")


def _from_name(source: str, split: str) -> tuple[str, Records]:
    try:
        path = Path(source).expanduser()
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, half of a surrogate pair, too long, or ~ of nobody
        raise DataError(f"{source!r}: cannot be opened: {error}.\n  Expected the path of a file that you may read.") from error
    if path.is_dir():
        return path.name, _saved_dataset(path, split)
    if path.exists():
        return path.name, _file(path)
    suffix = _suffix(path)
    if suffix in _READERS or suffix == ".parquet" or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?", source):
        raise DataError(f"{source}: no such file.\n  {_similar_names(path)}")
    return source, _hub_dataset(source, split)


def _similar_names(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"There is no folder {folder} either."
    names = sorted(entry.name for entry in folder.iterdir())
    similar = difflib.get_close_matches(path.name, names, n=3)
    if similar:
        return f"Did you mean {' or '.join(similar)}?"
    return f"The folder {folder.resolve()} has no file of a similar name."


def _file(path: Path) -> Records:
    if path.suffix.lower() == ".parquet":
        return _parquet(path)
    reader = _READERS.get(_suffix(path))
    if reader is None:
        raise DataError(f"{path}: unknown file type {path.suffix!r}.\n  Expected {SUFFIXES}.")
    return reader(path)


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _open(path: Path) -> BinaryIO | gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines, split at newlines only: a line separator inside a JSON text does not end the record."""
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                yield (number, _decode(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, path, number))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path.name}:{number + 1}: reading stops here: {error}.\n  Is the file complete, and yours to read?"
        ) from error


def _decode(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        if number == 1 and line.startswith(GZIP):
            raise DataError(f"{path.name}:1: is compressed with gzip.\n  Name it {path.name}.gz.") from None
        byte = f"0x{line[error.start]:02x}"
        raise DataError(
            f"{path.name}:{number}: not UTF-8: byte {byte} at position {error.start + 1} of the line.\n  Save the file as UTF-8."
        ) from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} appears twice in one object")
    return record


def _parse_json(text: str, *, source: str, line: int) -> Any:
    """The value of a JSON text that starts on `line`. NaN and Infinity are let through: whether they fit is up to the column."""
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 20) : error.pos + 20]
        problem = f"{error.msg} at column {error.colno}, near {near!r}"
        line += error.lineno - 1
    except RecursionError:
        problem = "nested too deeply"
    except ValueError as error:
        problem = str(error)
    raise DataError(
        f"{source}:{line}: not valid JSON: {problem}.\n  Expected one object per line, or in a .json file an array of objects."
    )


def _object(value: Any, place: Place) -> tuple[Place, dict[str, Any]]:
    if not isinstance(value, Mapping):
        kind = {list: "an array", str: "text", type(None): "null"}.get(type(value), f"of type {type(value).__name__}")
        raise DataError(f'{place}: record is {kind}: expected an object, e.g. {{"prompt": "2 + 2?", "completion": "4"}}.')
    return place, dict(value)


def _json_lines(path: Path) -> Records:
    for number, line in _lines(path):
        if line.strip():
            yield _object(_parse_json(line.rstrip("\r\n"), source=path.name, line=number), Place(path.name, number))


def _json(path: Path) -> Records:
    opening = next((line.lstrip() for _, line in _lines(path) if line.strip()), "")
    if not opening.startswith("["):
        yield from _json_lines(path)
        return
    text = "".join(line for _, line in _lines(path))
    for number, value in enumerate(_parse_json(text, source=path.name, line=1), 1):
        yield _object(value, Place(path.name, number))


def _csv(path: Path) -> Records:
    """Rows under a header line. Cells stay text; `schema` decodes the JSON in columns that hold lists."""
    csv.field_size_limit(2**31 - 1)  # the default of 128 kB is shorter than a long conversation
    reader = csv.reader((line for _, line in _lines(path)), strict=True)
    header: list[str] | None = None
    start = 1
    try:
        for cells in reader:
            place, start = Place(path.name, start), reader.line_num + 1
            if not cells:
                continue
            if header is None:
                header = cells
                if repeated := {name for name in header if header.count(name) > 1}:
                    raise DataError(f"{place}: column {min(repeated)!r} appears twice in the header.\n  Rename one of them.")
                continue
            if len(cells) != len(header):
                problem = f"the row has {len(cells)} cells, the header {len(header)}"
                raise DataError(f"{place}: {problem}.\n  Cells with commas or line breaks need double quotes.")
            yield (place, {name: Cell(cell) for name, cell in zip(header, cells, strict=True)})
    except csv.Error as error:
        raise DataError(f"{path.name}:{start}: not valid CSV: {error}.\n  Is a quoted cell left open?") from error


def _parquet(path: Path) -> Records:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for record in batch.to_pylist():
                    number += 1
                    yield Place(path.name, number), record
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path.name}:{number + 1}: not readable as Parquet: {error}.\n  Is the file complete?") from error


_READERS = {".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json, ".csv": _csv}


def _saved_dataset(path: Path, split: str) -> Records:
    if not any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
        files = [entry.name for entry in sorted(path.iterdir()) if entry.is_file()]
        inside = f"It holds {', '.join(files[:5])}{' …' if len(files) > 5 else ''}." if files else "It holds no files."
        raise DataError(f"{path}: is a folder, and no data set saved by `datasets`.\n  Name a file ({SUFFIXES}). {inside}")
    import datasets

    try:
        dataset = datasets.load_from_disk(os.fspath(path))
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(
            f"{path}: cannot be loaded by datasets.load_from_disk: {type(error).__name__}: {error}\n"
            "  Expected a folder as save_to_disk writes it. Save the data set again."
        ) from error
    return _rows_of(_one_split(dataset, split, path.name), path.name)


def _hub_dataset(source: str, split: str) -> Records:
    import datasets

    name, _, config = source.partition(":")
    try:
        dataset = datasets.load_dataset(name, config or None, split=split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"{source}: neither a path here nor a data set that loads.\n"
            f"  Tried the path {Path(source).absolute()}: no such file. {_similar_names(Path(source))}\n"
            f"  Tried datasets.load_dataset({name!r}, {config or None!r}, split={split!r}): {type(error).__name__}: {error}"
        ) from error
    return _rows_of(dataset, source)


def _from_memory(source: Iterable[Mapping[str, Any]], split: str) -> Records:
    return _rows_of(_one_split(source, split, MEMORY), MEMORY)


def _one_split(dataset: Any, split: str, name: str) -> Any:
    if not isinstance(dataset, Mapping):
        return dataset
    if split not in dataset:
        raise DataError(f"{name}: has no split {split!r}.\n  Set rows.split to one of: {', '.join(map(str, dataset))}.")
    return dataset[split]


def _rows_of(dataset: Any, name: str) -> Records:
    library = sys.modules.get("datasets")
    if library is not None and isinstance(dataset, (library.Dataset, library.IterableDataset)):
        dataset = dataset.with_format(None)  # a torch or numpy format would turn lists into tensors
    elif not isinstance(dataset, Iterable):
        raise DataError(
            f"{name}: source is a {type(dataset).__name__}.\n  Expected a path, a data set name, a `datasets` object or dicts."
        )
    return (_object(value, Place(name, number)) for number, value in enumerate(dataset, 1))
