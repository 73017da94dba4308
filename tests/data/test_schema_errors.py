"""What cannot be a row is a `DataError` that names place, column, types and the next move; nothing else is ever raised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanline.data.read import Cell
from humanline.data.record import COLUMNS
from humanline.data.rows import Kind, Place
from humanline.data.schema import NAMES, load_rows, parse_rows
from humanline.errors import ConfigError, DataError

PAIR = 'Accepted: {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}.'
LABEL = 'Accepted: {"prompt": "2 + 2?", "completion": "4", "label": true}.'
GROUP = 'Accepted: {"prompt": "2 + 2?", "completions": ["4", "5"], "rewards": [1.0, 0.0]}.'
MESSAGE = '{"role": "user", "content": "2 + 2?"}'
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}


def group(**columns: Any) -> dict[str, Any]:
    return {"prompt": "a", "completions": ["b", "c"], "rewards": [1, 0], **columns}


CASES: dict[str, tuple[Any, str]] = {
    "no rejected": (
        {"prompt": "a", "chosen": "b", "reject": "c"},
        "pair has no 'rejected' (keys: prompt (text), chosen (text), reject (text)).\n"
        f"  {PAIR} Another name is mapped by rows.columns: {{rejected: reject}}.",
    ),
    "null chosen": (
        {"prompt": "a", "chosen": None, "rejected": [ANSWER]},
        f"pair has a 'chosen' that is null (keys: prompt (text), chosen (null), rejected (list)).\n  {PAIR}",
    ),
    "number": ({"prompt": 5, "chosen": "b", "rejected": "c"}, "'prompt' is a number (5): expected text or a list of messages."),
    "no prompt": (
        {"question": "a", "chosen": "b", "rejected": "c"},
        "row has no prompt (keys: question (text), chosen (text), rejected (text)).\n"
        "  Expected a column 'prompt', 'messages' or 'instruction'; another name is mapped by rows.columns: {prompt: question}.",
    ),
    "no shared turn": (
        {"chosen": [USER, ANSWER], "rejected": [{**USER, "content": "x"}, ANSWER]},
        "the answers are conversations that share no first turn, so there is no prompt.\n  Give a 'prompt' column.",
    ),
    "role": (
        {"messages": [USER, {"role": "asistant", "content": "ho"}]},
        "'messages[1]' has role 'asistant': expected system, user, assistant or tool.\n  Did you mean 'assistant'?",
    ),
    "speaker": (
        {"conversations": [{"from": 3, "value": "hi"}]},
        f"'conversations[0]' has from 3: expected system, user, assistant or tool.\n  A message is e.g. {MESSAGE}.",
    ),
    "no message": ({"messages": [USER, "ho"]}, f"'messages[1]' is text ('ho'): expected a message, e.g. {MESSAGE}."),
    "no content": ({"messages": [USER, {"role": "assistant"}]}, "'messages[1].content' is null: expected text."),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image"}]}, ANSWER]},
        "'messages[0].content[0]' is an object ({'type': 'image'}): expected a text part, "
        'e.g. {"type": "text", "text": "2 + 2?"}.',
    ),
    "no messages": ({"messages": []}, "'messages' is an empty list: expected at least one message."),
    "text for messages": ({"messages": "hi"}, "'messages' is text ('hi'): expected a list."),
    "no assistant": (
        {"messages": [USER, USER]},
        "'messages' has no assistant turn (roles: user, user).\n  The answer to train on is an assistant turn.",
    ),
    "user answers": (
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [{**USER, "content": "x"}, ANSWER]},
        "an answer starts with a user turn: expected an assistant turn after the prompt.",
    ),
    "answered prompt": (
        {"messages": [USER, ANSWER], "chosen": "b", "rejected": "c"},
        "'messages' ends with an assistant turn: expected the user's turn that the answers reply to.",
    ),
    "answer alone": (
        {"messages": [ANSWER], "label": 1},
        "nothing comes before the answer: expected a user or system turn first.",
    ),
    "history": (
        {"instruction": "a", "output": "b", "history": [["x"]]},
        "'history[0]' is a list (['x']): expected a list of two texts, [user, assistant].",
    ),
    "surrogate": (
        {"prompt": "a\ud83d", "completion": "b"},
        "'prompt' has a lone surrogate '\\ud83d' at character 2: expected Unicode text.",
    ),
    "no answer": (
        {"text": "a"},
        "row has no answer to train on (keys: text (text)).\n  Accepted, e.g.:\n"
        '    {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}\n'
        '    {"prompt": "2 + 2?", "completion": "4", "label": true}\n'
        '    {"prompt": "2 + 2?", "completions": ["4", "5"], "rewards": [1.0, 0.0]}\n'
        f'    {{"messages": [{MESSAGE}, {{"role": "assistant", "content": "4"}}]}}\n'
        "  Other names are mapped by rows.columns: {expected: name in the file}.",
    ),
    "no object": (["a"], 'record is a list: expected an object, e.g. {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}.'),
    "comparison": (
        {"prompt": "a", "output_A": "b", "output_B": "c"},
        "comparison has no 'label' (keys: prompt (text), output_A (text), output_B (text)).\n"
        f"  {PAIR} Another name is mapped by rows.columns: {{label: its name in the file}}.",
    ),
    "no completions": (group(completions=[]), f"'completions' is an empty list: expected at least one completion.\n  {GROUP}"),
    "no rewards": (
        {"prompt": "a", "completions": ["b"], "reward": 1},
        "group has no 'rewards' (keys: prompt (text), completions (list), reward (number)).\n"
        f"  {GROUP} Another name is mapped by rows.columns: {{rewards: its name in the file}}.",
    ),
    "lengths": (group(rewards=[1]), "'rewards' has 1 entries for 2 completions: expected one each."),
    "text reward": (group(rewards=["1", 0]), "'rewards[0]' is text ('1'): expected a finite number, or null for no score."),
    "huge reward": (group(rewards=[1, 10**400]), "'rewards[1]' is infinite: expected a finite number, or null for no score."),
    "NaN reward": (group(rewards=[1, float("nan")]), "'rewards[1]' is NaN: expected a finite number, or null for no score."),
    "infinite log-prob": (
        group(logprobs=[[0.0, float("-inf")], None]),
        "'logprobs[0][1]' is infinite: expected a finite number.",
    ),
    "ids and log-probs": (
        group(token_ids=[[1, 2], None], logprobs=[[-1.0], None]),
        "token_ids[0] has 2 tokens but logprobs[0] has 1: expected one each.",
    ),
    "token id": (group(completion_ids=[[1, -2], None]), "'completion_ids[0][1]' is a number (-2): expected a token id."),
    "no list of ids": (group(token_ids=[1, 2]), "'token_ids[0]' is a number (1): expected a list of numbers or null."),
    "finished": (group(finished=["yes", None]), "'finished[0]' is text ('yes'): expected true, false or null."),
    "finish reason": (
        group(finish_reason=["stop", "tired"]),
        "'finish_reason[1]' is 'tired': expected one of stop, eos, eos_token, tool_calls, function_call, length, max_tokens, "
        "abort, content_filter.",
    ),
    "unreadable cell": (
        group(rewards=Cell("[True, False]")),
        "'rewards' holds '[True, False]', which is not valid JSON: Expecting value: line 1 column 2 (char 1).\n"
        "  Lists in CSV cells are JSON (json.dumps), not Python's repr. JSONL or Parquet needs no such care.",
    ),
    "Python messages in a cell": (
        {"prompt": "a", "chosen": Cell("[{'role': 'assistant'}]"), "rejected": "c"},
        "'chosen' holds \"[{'role': 'assistant'}]\", which is not valid JSON: Expecting property name enclosed in double quotes: "
        "line 1 column 3 (char 2).\n"
        "  Lists in CSV cells are JSON (json.dumps), not Python's repr. JSONL or Parquet needs no such care.",
    ),
}


@pytest.mark.parametrize(("record", "message"), CASES.values(), ids=CASES)
def test_R20_message_names_place_column_and_types(record: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        list(parse_rows([(Place("train.jsonl", 812), record)]))
    assert str(caught.value) == f"train.jsonl:812: {message}"


@pytest.mark.parametrize(("label", "shown"), [(None, "null"), ("yes", "'yes'"), (2, "2"), (0.5, "0.5"), ("", "''"), ([], "[]")])
def test_R25_other_labels_are_refused(label: Any, shown: str) -> None:
    with pytest.raises(DataError) as caught:
        list(parse_rows([(Place("train.jsonl", 4), {"prompt": "a", "completion": "b", "label": label})]))
    assert str(caught.value) == (
        f"train.jsonl:4: 'label' is {shown}: expected true, false, 1 or 0.\n  {LABEL} A row without a verdict has to go."
    )


def test_R25_null_among_good_labels_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    labels = ["true", '"false"', "0", '"1"', "null"]
    path.write_text("".join(f'{{"prompt": "a", "completion": "b", "label": {label}}}\n' for label in labels))
    with pytest.raises(DataError, match=r"^labels\.jsonl:5: 'label' is null"):
        load_rows(path, "label")
    assert [row.feedback for row in load_rows(path, "label", limit=4)[0]] == [(1.0,), (0.0,), (0.0,), (1.0,)]


def test_one_kind_a_file_names_the_first_of_each() -> None:
    records = [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 2 + [{"prompt": "a", "completion": "b"}]
    with pytest.raises(DataError) as caught:
        load_rows(records, "pair")
    assert str(caught.value) == (
        "<memory>:3: row is a conversation without feedback (keys: prompt (text), completion (text)), but <memory>:1 is a "
        "preference pair.\n  A file holds rows of one kind: complete this row, or move it to another file."
    )


RECORDS: dict[Kind, dict[str, Any]] = {
    "pair": {"prompt": "a", "chosen": "b", "rejected": "c"},
    "label": {"prompt": "a", "completion": "b", "label": True},
    "group": {"prompt": "a", "completions": ["b"], "rewards": [1]},
    "chat": {"prompt": "a", "completion": "b"},
}
UNAMBIGUOUS = {(kind, kind) for kind in NAMES} | {("pair", "label"), ("pair", "chat"), ("label", "chat")}


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("given_kind", NAMES)
def test_kinds_convert_only_where_that_is_unambiguous(given_kind: Kind, kind: Kind) -> None:
    source = [RECORDS[given_kind]]
    if (given_kind, kind) in UNAMBIGUOUS:
        assert {row.kind for row in load_rows(source, kind)[0]} == {kind}
        return
    with pytest.raises(DataError) as caught:
        load_rows(source, kind)
    first = (
        f"<memory>:1: row is {NAMES[given_kind]} (keys: {', '.join(RECORDS[given_kind])}), but the objective needs {NAMES[kind]}."
    )
    assert str(caught.value).startswith(first)


def test_other_kind_names_the_accepted_form_and_the_objectives_that_fit() -> None:
    with pytest.raises(DataError) as caught:
        load_rows([RECORDS["label"]], "pair")
    assert str(caught.value) == (
        "<memory>:1: row is a labelled completion (keys: prompt, completion, label), but the objective needs a preference pair.\n"
        f"  {PAIR} Other names are mapped by rows.columns: {{expected: name in the file}}.\n"
        "  Rows like this one train with `--objective.name kto`."
    )


def test_labels_without_a_desirable_one_are_no_chat() -> None:
    with pytest.raises(DataError) as caught:
        load_rows([{**RECORDS["label"], "label": 0}] * 3, "chat")
    assert str(caught.value) == (
        "<memory>:1: none of the 3 rows is desirable, so nothing is left for sft.\n  Train with `--objective.name kto`."
    )


def test_mapped_column_has_to_exist() -> None:
    with pytest.raises(DataError) as caught:
        load_rows([RECORDS["pair"]], "pair", columns={"rejected": "rejectd"})
    assert str(caught.value) == (
        "<memory>:1: has no column 'rejectd' (keys: prompt, chosen, rejected).\n  rows.columns maps rejected to it. "
        "Did you mean 'rejected'?"
    )


def test_mapped_name_has_to_be_one_that_is_read() -> None:
    with pytest.raises(ConfigError) as caught:
        load_rows([RECORDS["pair"]], "pair", columns={"promt": "question"})
    assert str(caught.value) == (
        "rows.columns has 'promt', a name that is not read.\n  Did you mean 'prompt'? The form is {expected: name in the file}."
    )


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=4)
    | st.sampled_from(["user", "gpt"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "type", "text", "tool_calls"]), inner, max_size=3)
    ),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": VALUES | st.text(max_size=3)}
    ),
    max_size=4,
)
ANYTHING = VALUES | MESSAGES | st.text(max_size=4) | st.lists(st.text(max_size=3) | MESSAGES, max_size=3)


COLUMN = st.sampled_from([*COLUMNS, "tools", "x"])
GOOD = [*RECORDS.values(), {"messages": [USER, ANSWER]}, {"chosen": [USER, ANSWER], "rejected": [USER, ANSWER]}]
CHANGED = st.tuples(st.sampled_from(GOOD), st.dictionaries(COLUMN, ANYTHING, max_size=2)).map(lambda parts: parts[0] | parts[1])


@settings(max_examples=400, deadline=None)
@given(record=CHANGED | st.dictionaries(COLUMN, ANYTHING, max_size=6) | VALUES, kind=st.sampled_from(list(NAMES)))
def test_any_json_value_is_a_row_or_a_data_error(record: Any, kind: Kind) -> None:
    """What comes through can be written as UTF-8 and keeps the promises of `Row`."""
    try:
        rows = list(parse_rows([(Place("any.jsonl", 1), record)], prefer=kind))
    except DataError as error:
        if not str(error).startswith("any.jsonl:1: "):
            raise
        return
    (row,) = rows
    assert len(row.completions) == len(row.feedback) >= 1
    texts = [row.prompt, *(completion.text for completion in row.completions)]
    assert len({type(text) for text in texts}) == 1
    json.dumps(
        [text if isinstance(text, str) else [turn["content"] for turn in text] for text in texts], ensure_ascii=False
    ).encode()
    for text in texts[1:]:
        assert isinstance(text, str) or (text[0]["role"] == text[-1]["role"] == "assistant")
