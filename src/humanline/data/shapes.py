"""The shapes a record may have, and the row each becomes.

A record has one *answer shape*; the first that fits decides:

| shape | columns | kind |
|---|---|---|
| preference | `chosen` and `rejected` | pair |
| compared | `output_A`, `output_B`, `label` (1: A is better, 0: B is), as HALOs writes | pair |
| group | `completions` and `rewards` [`token_ids` or `completion_ids`, `prompt_ids`, `logprobs`, `finished` or `finish_reason`] | group |
| labelled | `label` or `kto_tag`, with `completion` or `output` or the last assistant turn of `messages` | label |
| scored | `reward`, with `completion` or `output` or the last assistant turn of `messages`; gathered by prompt | group |
| chat | `completion` or `output`, or `messages` whole | chat |

A record with a label and a reward, as HALOs writes, is a labelled one unless groups are asked for. `texts` finds the prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from humanline.data.notes import Notes
from humanline.data.record import EXAMPLES, Record, shown
from humanline.data.rows import Completion, Kind, Row
from humanline.data.sampled import DETAILS, logps_transform, per_completion, prompt_ids, sampled_details
from humanline.data.texts import COMPLETION, CONVERSATION, Texts, answered, conversation, separate, with_prompt
from humanline.data.turns import is_assistant, text_or_turns

UNUSED = ("tools", "images", "videos", "audios")
"""columns of other trainers that would change the prompt; not supported, so their presence is noted"""

FLOAT32_MAX = (2 - 2**-23) * 2.0**127
LABEL = ("label", "kto_tag")
LABELS = {"true": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "0": 0.0, "0.0": 0.0}


class Shape(NamedTuple):
    """A named way to read a record."""

    name: str
    kind: Kind
    parse: Callable[[Record, Notes], Row]


def shape_of(record: Record, prefer: Kind | None) -> Shape:
    """The shape of a record; `DataError` if none fits."""
    if record.has("chosen", "rejected"):
        return PREFERENCE
    if record.has("output_A", "output_B"):
        return COMPARED
    if record.has("completions"):
        return GROUP
    if record.has(*COMPLETION, *CONVERSATION):
        has_reward = "reward" in record.values
        if any(name in record.values for name in LABEL) and not (has_reward and prefer == "group"):
            return LABELLED
        return SCORED if has_reward else CHAT
    accepted = [EXAMPLES[prefer]] if prefer else list(EXAMPLES.values())
    advice = (
        "Accepted, e.g.:\n    "
        + "\n    ".join(accepted)
        + "\n  Other names are mapped by rows.columns: {expected: name in the file}."
    )
    raise record.error(f"row has no answer to train on ({record.found()})", advice)


def _preference(record: Record, notes: Notes) -> Row:
    answers = {}
    for name in ("chosen", "rejected"):
        if not record.has(name):
            raise record.missing(name, "pair", "pair")
        answers[name] = text_or_turns(record, name, record.values[name])
    return _row(record, "pair", separate(record, answers, notes, implicit=True), (1.0, 0.0))


def _compared(record: Record, notes: Notes) -> Row:
    for name in ("output_A", "output_B", "label"):
        if not record.has(name):
            raise record.missing(name, "pair", "comparison")
    order = ("output_A", "output_B") if _label(record, "label") == 1.0 else ("output_B", "output_A")
    answers = {name: text_or_turns(record, name, record.values[name]) for name in order}
    return _row(record, "pair", separate(record, answers, notes, implicit=True), (1.0, 0.0))


def _labelled(record: Record, notes: Notes) -> Row:
    label = _label(record, next(name for name in LABEL if name in record.values))
    return _row(record, "label", answered(record, notes), (label,))


def _chat(record: Record, notes: Notes) -> Row:
    name = record.first(*CONVERSATION)
    if name is None or record.has(*COMPLETION):
        return _row(record, "chat", answered(record, notes), (1.0,))
    turns = conversation(record, name, notes)
    first = next(index for index, turn in enumerate(turns) if is_assistant(turn))
    return _row(record, "chat", with_prompt(record, turns[:first], (turns[first:],), unprompted=True), (1.0,))


def _scored(record: Record, notes: Notes) -> Row:
    """A group of one; `schema` gathers those of one prompt."""
    single = {name: [record.values[name]] for name in DETAILS if record.has(name)}
    return _row(
        record,
        "group",
        answered(record, notes),
        (_reward(record, "reward", record.values["reward"]),),
        Record(record.place, single),
    )


def _reward(record: Record, name: str, value: Any) -> float | None:
    """None: there is no score, which is a state of its own. NaN is a mistake."""
    if value is None:
        return None
    number = record.number(name, value, "a finite number, or null for no score")
    if abs(number) > FLOAT32_MAX:
        raise record.error(f"'{name}' is {number:g}: expected a number that float32 can hold, up to {FLOAT32_MAX:.3g}")
    return number


def _group(record: Record, notes: Notes) -> Row:
    completions = record.items("completions")
    if not completions:
        raise record.error("'completions' is an empty list: expected at least one completion", f"Accepted: {EXAMPLES['group']}.")
    if not record.has("rewards"):
        raise record.missing("rewards", "group", "group")
    rewards = per_completion(record, "rewards", len(completions))
    scores = tuple(_reward(record, f"rewards[{index}]", reward) for index, reward in enumerate(rewards))
    answers = {
        f"completions[{index}]": text_or_turns(record, f"completions[{index}]", one) for index, one in enumerate(completions)
    }
    return _row(record, "group", separate(record, answers, notes), scores, record)


PREFERENCE = Shape("preference", "pair", _preference)
COMPARED = Shape("compared", "pair", _compared)
GROUP = Shape("group", "group", _group)
LABELLED = Shape("labelled", "label", _labelled)
SCORED = Shape("scored", "group", _scored)
CHAT = Shape("chat", "chat", _chat)


def note_unused(record: Record, notes: Notes) -> None:
    """Count columns that other trainers put into the prompt and this one does not."""
    for name in UNUSED:
        if record.values.get(name):
            notes.add(f"column '{name}' not used", record.place)


def _row(record: Record, kind: Kind, texts: Texts, feedback: tuple[float | None, ...], sampled: Record | None = None) -> Row:
    if sampled is None:
        return Row(kind, texts.prompt, tuple(Completion(text) for text in texts.answers), feedback, record.place)
    transform = logps_transform(record)
    completions = tuple(
        Completion(text, transform=transform, **detail)
        for text, detail in zip(texts.answers, sampled_details(sampled, len(texts.answers)), strict=True)
    )
    return Row(kind, texts.prompt, completions, feedback, record.place, prompt_ids(record))


def _label(record: Record, name: str) -> float:
    """1 or 0. Spelled out, because the text "false" is true to Python."""
    value = record.values[name]
    if isinstance(value, str) and value.strip().lower() in LABELS:
        return LABELS[value.strip().lower()]
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return float(value)
    found = "null" if value is None else shown(value)
    raise record.error(
        f"'{name}' is {found}: expected true, false, 1 or 0", f"Accepted: {EXAMPLES['label']}. A row without a verdict has to go."
    )
