"""A whole file of records: gathered, converted, rendered alike, counted; CSV cells, round trips, real files."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from humanline.data.notes import Notes
from humanline.data.rows import Completion, Kind, Row
from humanline.data.schema import load_rows, rows_for

REAL_DATA = os.environ.get("HUMANLINE_REAL_DATA")
needs_real_data = pytest.mark.skipif(REAL_DATA is None, reason="HUMANLINE_REAL_DATA names no folder")


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


USER, FOUR, FIVE, MORE = turn("user", "2 + 2?"), turn("assistant", "4"), turn("assistant", "5"), turn("user", "sure?")


def content(row: Row) -> tuple[Any, ...]:
    """Kind, prompt, answers and feedback."""
    return row.kind, row.prompt, tuple(completion.text for completion in row.completions), row.feedback


PAIR = ("pair", (USER,), ((FOUR,), (FIVE,)), (1.0, 0.0))


def test_completions_scored_one_a_record_are_gathered_by_prompt() -> None:
    """HALOs' scalar feedback: an unscored one stays in its group; order is that of first appearance."""
    other = turn("user", "3 + 3?")
    records: list[dict[str, Any]] = [
        {"type": "scalar_feedback", "prompt_id": index, "prompt": [prompt], "output": [answer], "reward": reward}
        for index, (prompt, answer, reward) in enumerate([(USER, FOUR, 1.0), (other, FIVE, 0.0), (USER, FIVE, None)])
    ]
    records[0] |= {"finish_reason": "length", "logprobs": [-0.5], "token_ids": [4]}
    rows, _ = load_rows(records, "group")
    assert [content(found) for found in rows] == [
        ("group", (USER,), ((FOUR,), (FIVE,)), (1.0, None)),
        ("group", (other,), ((FIVE,),), (0.0,)),
    ]
    assert rows[0].completions[0] == Completion((FOUR,), token_ids=(4,), logps=(-0.5,), finished=False)
    assert [str(found.place) for found in rows] == ["<memory>:1", "<memory>:2"]


def test_label_and_reward_are_read_as_the_objective_wants() -> None:
    record = {"type": "binary_feedback", "prompt": [USER], "output": [FOUR], "label": 1, "reward": 0.2}
    assert content(load_rows([record], "label")[0][0]) == ("label", (USER,), ((FOUR,),), (1.0,))
    assert content(load_rows([record], "group")[0][0]) == ("group", (USER,), ((FOUR,),), (0.2,))


def test_R20_texts_beside_message_lists_become_turns_in_the_whole_file() -> None:
    records: list[dict[str, Any]] = [
        {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"},
        {"prompt": [USER], "chosen": [FOUR], "rejected": [FIVE]},
    ]
    rows, notes = load_rows(records, "pair")
    assert [content(found) for found in rows] == [PAIR, PAIR]
    assert notes.lines() == ["plain texts taken as user and assistant turns, as other rows are: 1 row (first <memory>:1)"]
    assert load_rows(records[:1], "pair")[0][0].prompt == "2 + 2?"


def test_unusual_rows_are_counted_with_their_first_place() -> None:
    records: list[dict[str, Any]] = [
        {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"},
        {"prompt": "2 + 2?", "chosen": [FOUR, MORE], "rejected": "4"},
        {"prompt": "2 + 2?", "chosen": "", "rejected": "", "tools": "[]", "images": []},
    ]
    assert load_rows(records, "pair")[1].lines() == [
        "turns after the last assistant turn dropped: 1 row (first <memory>:2)",
        "column 'tools' not used: 1 row (first <memory>:3)",
        "plain texts taken as user and assistant turns, as other rows are: 2 rows (first <memory>:1)",
        "identical chosen and rejected: 2 rows (first <memory>:2)",
    ]


def converted(records: list[dict[str, Any]], kind: Kind) -> tuple[list[tuple[Any, ...]], list[str]]:
    rows, notes = load_rows(records, kind)
    return [content(found) for found in rows], notes.lines()


def test_pair_becomes_two_labelled_rows_or_a_chat() -> None:
    pair = {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}
    assert converted([pair], "label") == (
        [("label", "2 + 2?", ("4",), (1.0,)), ("label", "2 + 2?", ("5",), (0.0,))],
        ["pair split into a desirable and an undesirable row: 1 row (first <memory>:1)"],
    )
    assert converted([pair], "chat") == (
        [("chat", "2 + 2?", ("4",), (1.0,))],
        ["chosen taken as the conversation, rejected left out: 1 row (first <memory>:1)"],
    )


def test_chat_from_labels_keeps_the_desirable_only() -> None:
    labelled = [{"prompt": "2 + 2?", "completion": str(number), "label": number == 4} for number in (3, 4, 5)]
    assert converted(labelled, "chat") == (
        [("chat", "2 + 2?", ("4",), (1.0,))],
        ["undesirable completion left out: 2 rows (first <memory>:1)"],
    )


def test_no_rows_convert_to_no_rows() -> None:
    assert rows_for([], "pair") == ([], Notes())


CSV_ROWS: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "group": (
        {"prompt": "2 + 2?", "completions": '["4", "5"]', "rewards": "[1, null]", "logprobs": ""},
        ("group", "2 + 2?", ("4", "5"), (1.0, None)),
    ),
    "messages": ({"messages": json.dumps([USER, FOUR]), "label": "False"}, ("label", (USER,), ((FOUR,),), (0.0,))),
    "message answers": ({"prompt": "2 + 2?", "chosen": json.dumps([FOUR]), "rejected": json.dumps(FIVE)}, PAIR),
    "text that looks like a list": (
        {"prompt": "[1]", "chosen": '{"a": 1}', "rejected": "[]"},
        ("pair", "[1]", ('{"a": 1}', "[]"), (1.0, 0.0)),
    ),
    "scored": (
        {"prompt": "2 + 2?", "completion": "4", "reward": "0.5", "finish_reason": "length"},
        ("group", "2 + 2?", ("4",), (0.5,)),
    ),
    "unscored": ({"prompt": "2 + 2?", "completion": "4", "reward": ""}, ("group", "2 + 2?", ("4",), (None,))),
}


@pytest.mark.parametrize(("cells", "expected"), CSV_ROWS.values(), ids=CSV_ROWS)
def test_csv_cells_are_json_where_the_column_needs_it(tmp_path: Path, cells: dict[str, str], expected: tuple[Any, ...]) -> None:
    path = tmp_path / "rows.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, cells)
        writer.writeheader()
        writer.writerow(cells)
    ((found,), _) = load_rows(path, expected[0])
    assert content(found) == expected
    assert type(found.prompt) in (str, tuple)


def test_R20_null_only_start_and_arrow_nulls_read_like_absent_columns() -> None:
    """Arrow fills the columns that a row lacks with null: a data set and its records give equal rows."""
    records: list[dict[str, Any]] = [{"prompt": "a", "chosen": "b", "rejected": "c"} for _ in range(20)]
    records.append({"prompt": "a", "chosen": "b", "rejected": "c", "system": "Be brief.", "history": [["x", "y"]]})
    dataset = datasets.Dataset.from_list([dict.fromkeys(records[-1]) | record for record in records])
    assert dataset[0] == records[0] | {"system": None, "history": None}
    assert load_rows(dataset, "pair") == load_rows(records, "pair")


TEXT = st.text(max_size=12)
RECORDS: dict[Kind, st.SearchStrategy[dict[str, Any]]] = {
    "pair": st.fixed_dictionaries({"prompt": TEXT, "chosen": TEXT, "rejected": TEXT}),
    "label": st.fixed_dictionaries({"prompt": TEXT, "completion": TEXT, "label": st.booleans()}),
    "chat": st.fixed_dictionaries({"prompt": TEXT, "completion": TEXT}),
}
ANSWERS = {"pair": ("chosen", "rejected"), "label": ("completion",), "chat": ("completion",)}


@pytest.mark.parametrize("kind", RECORDS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_R20_texts_reach_the_row_unchanged_plain_or_as_messages(tmp_path: Path, kind: Kind, data: st.DataObject) -> None:
    """records → JSONL → rows, once as texts and once as message lists: the same texts come out, to the character."""
    records = data.draw(st.lists(RECORDS[kind], min_size=1, max_size=4))
    names = ANSWERS[kind]
    as_messages = [
        {**record, "prompt": [turn("user", record["prompt"])], **{name: [turn("assistant", record[name])] for name in names}}
        for record in records
    ]
    found = []
    for version in (records, as_messages):
        path = tmp_path / "rows.jsonl"
        path.write_text(
            "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in version), encoding="utf-8", newline=""
        )
        found.append(load_rows(path, kind)[0])
    for record, plain, spoken_row in zip(records, *found, strict=True):
        assert (plain.prompt, *(each.text for each in plain.completions)) == (record["prompt"], *(record[name] for name in names))
        assert spoken_row.prompt == (turn("user", record["prompt"]),)
        assert [each.text for each in spoken_row.completions] == [(turn("assistant", record[name]),) for name in names]
        assert (plain.feedback, plain.place) == (spoken_row.feedback, spoken_row.place)


@needs_real_data
def test_real_preference_file() -> None:
    rows, notes = load_rows(Path(REAL_DATA or "") / "preference" / "lf_dpo_en_demo.json", "pair")
    assert len(rows) == 300
    assert notes.lines() == []
    assert Counter(len(found.prompt) for found in rows) == {1: 114, 2: 80, 5: 57, 7: 46, 3: 1, 9: 1, 13: 1}
    assert Counter(found.prompt[0]["role"] for found in rows) == {"user": 220, "system": 80}  # type: ignore[index]
    assert all(found.prompt[-1]["role"] == "user" for found in rows)  # type: ignore[index]


@needs_real_data
def test_R25_real_label_file_has_both_classes() -> None:
    path = Path(REAL_DATA or "") / "preference" / "lf_kto_en_demo.json"
    rows, notes = load_rows(path, "label")
    assert Counter(found.feedback for found in rows) == {(1.0,): 150, (0.0,): 150}
    assert notes.lines() == []
    assert Counter(len(found.prompt) for found in rows) == {1: 223, 5: 47, 7: 22, 11: 4, 3: 3, 9: 1}
    assert len(load_rows(path, "chat")[0]) == 150


@needs_real_data
def test_R31_real_groups() -> None:
    rows, notes = load_rows(Path(REAL_DATA or "") / "gsm8k" / "gsm8k_groups.jsonl", "group")
    assert len(rows) == 1319
    assert notes.lines() == []
    assert sum(len(set(found.feedback)) == 1 for found in rows) == 588
    means = [sum(found.feedback[index] or 0 for found in rows) / 1319 for index in range(4)]
    assert [round(mean, 3) for mean in means] == [0.217, 0.390, 0.347, 0.563]


@needs_real_data
def test_real_groups_under_other_names() -> None:
    columns = {"prompt": "question", "completions": "response", "rewards": "score"}
    rows, _ = load_rows(Path(REAL_DATA or "") / "math" / "qwen_math_cot_100.jsonl", "group", columns=columns)
    assert len(rows) == 100
    assert {len(found.completions) for found in rows} == {8}
    assert sum(reward or 0 for found in rows for reward in found.feedback) / 800 == pytest.approx(0.910, abs=5e-4)
    assert all([message["role"] for message in found.prompt] == ["system", "user"] for found in rows)  # type: ignore[index]
