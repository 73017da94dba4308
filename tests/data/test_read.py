"""Records come out of every kind of file unchanged, with their places; what is broken is named by file and line."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from humanline.data.read import Cell, read_records
from humanline.errors import ConfigError, DataError

RECORDS: list[dict[str, Any]] = [
    {"prompt": "2 + 2? 🤖", "chosen": "四 — 4", "rejected": None, "scores": [1.0, None]},
    {"prompt": "a\u2028b\nc", "chosen": "", "rejected": "ü", "scores": None},
]


def write(path: Path, text: str | bytes) -> Path:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def read(source: Any, **settings: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(str(place), record) for place, record in read_records(source, **settings)]


def error_of(source: Any, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(source, **settings)
    return str(caught.value)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.ndjson", "rows.jsonl.gz", "rows.json", "ROWS.JSONL"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_R20_one_object_per_line_keeps_nulls_emoji_cjk_and_line_numbers(tmp_path: Path, name: str, mark: str) -> None:
    """U+2028 inside a text is no line end; a blank line is skipped and counted; a byte-order mark is tolerated."""
    text = mark + lines(RECORDS[:1]) + "\r\n" + lines(RECORDS[1:])
    assert read(write(tmp_path / name, text)) == [(f"{name}:1", RECORDS[0]), (f"{name}:3", RECORDS[1])]


@pytest.mark.parametrize("name", ["rows.json", "rows.json.gz"])
def test_json_array_is_numbered_by_row(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "\n " + json.dumps(RECORDS, indent=2))
    assert read(path) == [(f"{name}:1", RECORDS[0]), (f"{name}:2", RECORDS[1])]


def test_parquet_and_datasets_give_the_same_records(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.Table.from_pylist(RECORDS), tmp_path / "rows.parquet")
    assert read(tmp_path / "rows.parquet") == [("rows.parquet:1", RECORDS[0]), ("rows.parquet:2", RECORDS[1])]
    dataset = datasets.Dataset.from_list(RECORDS)
    for source in (dataset, dataset.with_format("numpy"), dataset.to_iterable_dataset(), RECORDS, iter(RECORDS)):
        assert read(source) == [("<memory>:1", RECORDS[0]), ("<memory>:2", RECORDS[1])]
    dataset.save_to_disk(str(tmp_path / "saved"))
    assert read(str(tmp_path / "saved")) == [("saved:1", RECORDS[0]), ("saved:2", RECORDS[1])]


def test_split_is_chosen_and_a_wrong_one_lists_the_others(tmp_path: Path) -> None:
    splits = datasets.DatasetDict({name: datasets.Dataset.from_list([{"split": name}]) for name in ("train", "test")})
    splits.save_to_disk(str(tmp_path / "saved"))
    for source, name in ((splits, "<memory>"), (tmp_path / "saved", "saved")):
        assert read(source, split="test") == [(f"{name}:1", {"split": "test"})]
        assert error_of(source, split="val") == f"{name}: has no split 'val'.\n  Set rows.split to one of: train, test."


def test_csv_cells_stay_text_over_quoted_line_breaks_and_long_cells(tmp_path: Path) -> None:
    rows = [{"prompt": 'a, "b"\nc', "rewards": "[1, 0]"}, {"prompt": "四" * 200_000, "rewards": ""}]
    with open(tmp_path / "rows.csv", "w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, ["prompt", "rewards"])
        writer.writeheader()
        writer.writerows(rows)
    records = read(tmp_path / "rows.csv")
    assert records == [("rows.csv:2", rows[0]), ("rows.csv:4", rows[1])]
    assert all(type(cell) is Cell for _, record in records for cell in record.values())


def test_jsonl_is_streamed(tmp_path: Path) -> None:
    """Line 3 is broken, and the two before it arrive all the same."""
    path = write(tmp_path / "rows.jsonl", lines(RECORDS) + "broken\n")
    records = read_records(path)
    assert [next(records)[1], next(records)[1]] == RECORDS
    with pytest.raises(DataError, match=r"^rows\.jsonl:3: not valid JSON"):
        next(records)


def test_limit_stops_before_what_follows(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", lines(RECORDS) + "broken\n")
    assert len(read(path, limit=2)) == 2
    with pytest.raises(ConfigError, match=r"^rows\.limit_rows is 0: expected a number of rows from 1 on"):
        read_records(path, limit=0)


@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
def test_numbers_beyond_json_are_left_to_the_schema(tmp_path: Path, number: str) -> None:
    ((_, record),) = read(write(tmp_path / "rows.jsonl", f'{{"reward": {number}}}'))
    assert repr(record["reward"]) == repr(float(number))


BROKEN = [
    (
        "rows.jsonl",
        '{"prompt": "a"}\n{"prompt": "b" "chosen": 1}\n',
        'rows.jsonl:2: not valid JSON: Expecting \',\' delimiter at column 16, near \'{"prompt": "b" "chosen": 1}\'.\n'
        "  Expected one object per line, or in a .json file an array of objects.",
    ),
    (
        "rows.json",
        '[{"prompt": "a"},\n {"prompt": }]',
        'rows.json:2: not valid JSON: Expecting value at column 13, near \': "a"},\\n {"prompt": }]\'.\n'
        "  Expected one object per line, or in a .json file an array of objects.",
    ),
    (
        "rows.jsonl",
        '{"prompt": "a", "prompt": "b"}',
        "rows.jsonl:1: not valid JSON: key 'prompt' appears twice in one object.\n"
        "  Expected one object per line, or in a .json file an array of objects.",
    ),
    (
        "rows.jsonl",
        "\n[1]\n",
        'rows.jsonl:2: record is an array: expected an object, e.g. {"prompt": "2 + 2?", "completion": "4"}.',
    ),
    (
        "rows.json",
        '[{"a": 1}, null]',
        'rows.json:2: record is null: expected an object, e.g. {"prompt": "2 + 2?", "completion": "4"}.',
    ),
    (
        "rows.jsonl",
        b'{"a": 1}\n{"a": "\xff"}\n',
        "rows.jsonl:2: not UTF-8: byte 0xff at position 8 of the line.\n  Save the file as UTF-8.",
    ),
    ("rows.jsonl", "", "rows.jsonl: holds no rows.\n  Expected at least one record. Is it the right file and split?"),
    ("rows.json", "[]", "rows.json: holds no rows.\n  Expected at least one record. Is it the right file and split?"),
    ("rows.csv", "prompt\n", "rows.csv: holds no rows.\n  Expected at least one record. Is it the right file and split?"),
    (
        "rows.csv",
        'a,b\n1,2\n"x\ny"\n',
        "rows.csv:3: the row has 1 cells, the header 2.\n  Cells with commas or line breaks need double quotes.",
    ),
    ("rows.csv", 'a,b\n1,"2\n', "rows.csv:2: not valid CSV: unexpected end of data.\n  Is a quoted cell left open?"),
    ("rows.csv", "a,b,a\n1,2,3\n", "rows.csv:1: column 'a' appears twice in the header.\n  Rename one of them."),
]


@pytest.mark.parametrize(("name", "text", "message"), BROKEN, ids=lambda value: str(value)[:30])
def test_R20_broken_file_is_named_by_line(tmp_path: Path, name: str, text: str | bytes, message: str) -> None:
    assert error_of(write(tmp_path / name, text)) == message


@pytest.mark.parametrize(
    ("text", "problem"),
    [("[" * 200_000, "nested too deeply"), ('{"a": ' + "1" * 5000 + "}", "Exceeds the limit")],
    ids=["deep", "long number"],
)
def test_json_that_stops_the_parser_is_an_error_with_a_place(tmp_path: Path, text: str, problem: str) -> None:
    if problem == "Exceeds the limit" and not hasattr(sys, "get_int_max_str_digits"):
        pytest.skip("this Python parses integers of any length")
    assert error_of(write(tmp_path / "rows.jsonl", text)).startswith(f"rows.jsonl:1: not valid JSON: {problem}")


def test_cut_off_gzip_names_the_line(tmp_path: Path) -> None:
    whole = gzip.compress(lines(RECORDS).encode())
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(whole[:-8])
    assert error_of(path).startswith("rows.jsonl.gz:3: reading stops here: Compressed file ended before the end-of-stream marker")
    path.write_bytes(b"no gzip")
    assert error_of(path).startswith("rows.jsonl.gz:1: reading stops here: Not a gzipped file")


def test_broken_parquet_is_an_error(tmp_path: Path) -> None:
    assert error_of(write(tmp_path / "rows.parquet", "no parquet")).startswith("rows.parquet:1: not readable as Parquet: ")


def test_missing_file_suggests_names_of_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", "{}")
    assert error_of(tmp_path / "trian.jsonl") == f"{tmp_path}/trian.jsonl: no such file.\n  Did you mean train.jsonl?"
    assert error_of(tmp_path / "x.csv.gz") == (
        f"{tmp_path}/x.csv.gz: no such file.\n  The folder {tmp_path.resolve()} has no file of a similar name."
    )
    assert (
        error_of(tmp_path / "no" / "x.csv") == f"{tmp_path}/no/x.csv: no such file.\n  There is no folder {tmp_path}/no either."
    )


def test_unknown_type_and_plain_folder_say_what_is_read(tmp_path: Path) -> None:
    expected = ".jsonl, .ndjson, .json, .csv (each also with .gz) or .parquet"
    path = write(tmp_path / "rows.txt", "a")
    assert error_of(path) == f"{path}: unknown file type '.txt'.\n  Expected {expected}."
    assert error_of(tmp_path) == (
        f"{tmp_path}: is a folder, and no data set saved by `datasets`.\n  Name a file ({expected}). It holds rows.txt."
    )


def test_name_that_is_no_path_is_looked_up_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(*names: Any, split: str) -> datasets.Dataset:
        asked.append((*names, split))
        if names[0] == "no/such":
            raise datasets.exceptions.DatasetNotFoundError("not there")
        return datasets.Dataset.from_list(RECORDS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.chdir(tmp_path)
    assert read("some/set:main", split="test") == [("some/set:main:1", RECORDS[0]), ("some/set:main:2", RECORDS[1])]
    assert error_of("no/such") == (
        "no/such: neither a path here nor a data set that loads.\n"
        f"  Tried the path {tmp_path}/no/such: no such file. There is no folder no either.\n"
        "  Tried datasets.load_dataset('no/such', None, split='train'): DatasetNotFoundError: not there"
    )
    assert asked == [("some/set", "main", "test"), ("no/such", None, "train")]


def test_what_is_no_data_is_refused() -> None:
    assert error_of(5) == "<memory>: source is a int.\n  Expected a path, a data set name, a `datasets` object or dicts."
    assert error_of([{"a": 1}, "b"]) == (
        '<memory>:2: record is text: expected an object, e.g. {"prompt": "2 + 2?", "completion": "4"}.'
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=4), min_size=1, max_size=5), ascii_only=st.booleans())
def test_R20_any_json_object_survives_the_way_through_a_file(
    tmp_path: Path, records: list[dict[str, Any]], ascii_only: bool
) -> None:
    texts = [json.dumps(record, ensure_ascii=ascii_only) for record in records]
    by_line = write(tmp_path / "rows.jsonl", "\n".join(texts))
    as_array = write(tmp_path / "rows.json", f"[{', '.join(texts)}]")
    assert [record for _, record in read_records(by_line)] == records
    assert [record for _, record in read_records(as_array)] == records
