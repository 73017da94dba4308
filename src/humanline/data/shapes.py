"""The shapes a record may have, and the row each becomes.

A record has one *answer shape*; the first that fits decides:

| shape | columns | kind |
|---|---|---|
| preference | `chosen` and `rejected` | pair |
| compared | `output_A`, `output_B`, `label` (1: A is better, 0: B is), as HALOs writes | pair |
| group | `completions` and `rewards` [`token_ids` or `completion_ids`, `logprobs`, `finished` or `finish_reason`] | group |
| labelled | `label` or `kto_tag`, with `completion` or `output` or the last assistant turn of `messages` | label |
| scored | `reward`, with `completion` or `output` or the last assistant turn of `messages`; gathered by prompt | group |
| chat | `completion` or `output`, or `messages` whole | chat |

and a prompt from the first of: `prompt`, `messages` / `conversations`, `instruction` (+ `input`); before it `history` and `system`.
Without any, or if the answers repeat it, the prompt is what the answers share (TRL's implicit prompt). Texts and message lists may be
mixed: one message list makes turns of all. A record with a label and a reward (HALOs) is a labelled one unless groups are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from humanline.data.notes import Notes
from humanline.data.record import EXAMPLES, Record, shown
from humanline.data.rows import Completion, Kind, Row, Text
from humanline.data.turns import Turns, is_assistant, shared_text, shared_turns, text_or_turns, up_to_last_answer

UNUSED = ("tools", "images", "videos", "audios")
"""columns of other trainers that would change the prompt; not supported, so their presence is noted"""
DROPPED_TURNS = "turns after the last assistant turn dropped"

CONVERSATION = ("messages", "conversations")
COMPLETION = ("completion", "output")
LABEL = ("label", "kto_tag")
LABELS = {"true": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "0": 0.0, "0.0": 0.0}

FINISHED = {
    **dict.fromkeys(("stop", "eos", "eos_token", "tool_calls", "function_call"), True),
    **dict.fromkeys(("length", "max_tokens", "abort", "content_filter"), False),
}
"""finish reason of a sampler → whether the completion came to its own end"""


class Shape(NamedTuple):
    """A named way to read a record."""

    name: str
    kind: Kind
    parse: Callable[[Record, Notes], Row]


class Texts(NamedTuple):
    """A prompt and its answers: all plain texts, or all turns; then each answer begins and ends with an assistant turn."""

    prompt: Text
    answers: tuple[Text, ...]


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
    advice = "Accepted, e.g.:\n    " + "\n    ".join(accepted) + "\n  Other names are mapped by rows.columns: {expected: name in the file}."
    raise record.error(f"row has no answer to train on ({record.found()})", advice)


def _preference(record: Record, notes: Notes) -> Row:
    answers = {}
    for name in ("chosen", "rejected"):
        if not record.has(name):
            raise record.missing(name, "pair", "pair")
        answers[name] = text_or_turns(record, name, record.values[name])
    return _row(record, "pair", _separate(record, answers, notes), (1.0, 0.0))


def _compared(record: Record, notes: Notes) -> Row:
    for name in ("output_A", "output_B", "label"):
        if not record.has(name):
            raise record.missing(name, "pair", "comparison")
    order = ("output_A", "output_B") if _label(record, "label") == 1.0 else ("output_B", "output_A")
    answers = {name: text_or_turns(record, name, record.values[name]) for name in order}
    return _row(record, "pair", _separate(record, answers, notes), (1.0, 0.0))


def _labelled(record: Record, notes: Notes) -> Row:
    label = _label(record, next(name for name in LABEL if name in record.values))
    return _row(record, "label", _answered(record, notes), (label,))


def _chat(record: Record, notes: Notes) -> Row:
    name = record.first(*CONVERSATION)
    if name is None or record.has(*COMPLETION):
        return _row(record, "chat", _answered(record, notes), (1.0,))
    turns = _conversation(record, name, notes)
    first = next(index for index, turn in enumerate(turns) if is_assistant(turn))
    return _row(record, "chat", _with_prompt(record, turns[:first], (turns[first:],)), (1.0,))


def _scored(record: Record, notes: Notes) -> Row:
    """A group of one; `schema` gathers those of one prompt."""
    reward = record.values["reward"]
    single = {name: [record.values[name]] for name in (*_DETAILS, "finished", "finish_reason") if record.has(name)}
    score = None if reward is None else record.number("reward", reward)
    return _row(record, "group", _answered(record, notes), (score,), Record(record.place, single))


def _group(record: Record, notes: Notes) -> Row:
    completions = record.items("completions")
    if not completions:
        raise record.error("'completions' is an empty list: expected at least one completion", f"Accepted: {EXAMPLES['group']}.")
    if not record.has("rewards"):
        raise record.missing("rewards", "group", "group")
    rewards = _per_completion(record, "rewards", len(completions))
    scores = tuple(None if reward is None else record.number(f"rewards[{index}]", reward) for index, reward in enumerate(rewards))
    answers = {f"completions[{index}]": text_or_turns(record, f"completions[{index}]", one) for index, one in enumerate(completions)}
    return _row(record, "group", _separate(record, answers, notes), scores, record)


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
    count = len(texts.answers)
    details = _details(sampled, count) if sampled is not None else [{}] * count
    completions = tuple(Completion(text, **detail) for text, detail in zip(texts.answers, details, strict=True))
    return Row(kind, texts.prompt, completions, feedback, record.place)


def _label(record: Record, name: str) -> float:
    """1 or 0. Spelled out, because the text "false" is true to Python."""
    value = record.values[name]
    if isinstance(value, str) and value.strip().lower() in LABELS:
        return LABELS[value.strip().lower()]
    if isinstance(value, (bool, int, float)) and value in (0, 1):
        return float(value)
    found = "null" if value is None else shown(value)
    raise record.error(f"'{name}' is {found}: expected true, false, 1 or 0", f"Accepted: {EXAMPLES['label']}. A row without a verdict has to go.")


def _conversation(record: Record, name: str, notes: Notes) -> Turns:
    """`messages` up to the last assistant turn."""
    record.items(name)
    turns = text_or_turns(record, name, record.values[name])
    assert isinstance(turns, tuple)
    return _trimmed(record, name, turns, notes)


def _trimmed(record: Record, name: str, turns: Turns, notes: Notes) -> Turns:
    trimmed = up_to_last_answer(turns)
    if not trimmed:
        roles = ", ".join(str(turn["role"]) for turn in turns[:5])
        raise record.error(f"'{name}' has no assistant turn (roles: {roles})", "The answer to train on is an assistant turn.")
    if len(trimmed) < len(turns):
        notes.add(DROPPED_TURNS, record.place)
    return trimmed


def _answered(record: Record, notes: Notes) -> Texts:
    """One answer: `completion` or `output` if there is one, else the last assistant turn of the conversation."""
    name = record.first(*COMPLETION)
    if name is not None:
        return _separate(record, {name: text_or_turns(record, name, record.values[name])}, notes)
    name = record.first(*CONVERSATION)
    assert name is not None
    turns = _conversation(record, name, notes)
    return _with_prompt(record, turns[:-1], (turns[-1:],))


def _prompt(record: Record) -> Text | None:
    """The prompt of its own columns, without `system`; None if there are none."""
    name = record.first(*CONVERSATION)
    if record.has("prompt"):
        prompt = text_or_turns(record, "prompt", record.values["prompt"])
    elif name is not None:
        record.items(name)
        prompt = text_or_turns(record, name, record.values[name])
        if is_assistant(prompt[-1]):
            raise record.error(f"'{name}' ends with an assistant turn: expected the user's turn that the answers reply to")
    elif record.has("instruction"):
        parts = [record.text(part) for part in ("instruction", "input") if record.has(part)]
        prompt = ({"role": "user", "content": "\n".join(part for part in parts if part)},)
    else:
        return None
    history = _history(record)
    return history + _as_turns(prompt, "user") if history else prompt


def _history(record: Record) -> Turns:
    """Earlier exchanges as LLaMA-Factory stores them: a list of [user text, assistant text]."""
    if not record.has("history"):
        return ()
    turns: list[Any] = []
    for index, exchange in enumerate(record.items("history")):
        if not isinstance(exchange, (list, tuple)) or len(exchange) != 2:
            raise record.wrong(f"history[{index}]", exchange, "a list of two texts, [user, assistant]")
        for side, role in enumerate(("user", "assistant")):
            turns.append({"role": role, "content": record.checked_text(f"history[{index}][{side}]", exchange[side])})
    return tuple(turns)


def _as_turns(text: Text, role: str) -> Turns:
    return ({"role": role, "content": text},) if isinstance(text, str) else text


def _separate(record: Record, named: dict[str, Text], notes: Notes) -> Texts:
    """Prompt and answers, whichever columns the prompt is in."""
    prompt = _prompt(record)
    if prompt is None and "prompt" in record.values:
        raise record.error(f"'prompt' is null ({record.found()})", "Leave the column out if the answers contain the prompt.")
    answers = [_trimmed(record, name, text, notes) if isinstance(text, tuple) else text for name, text in named.items()]
    conversations = [answer for answer in answers if isinstance(answer, tuple)]
    if len(conversations) == len(answers):
        if isinstance(prompt, tuple) and all(turns[: len(prompt)] == prompt and len(turns) > len(prompt) for turns in conversations):
            return _with_prompt(record, prompt, tuple(turns[len(prompt) :] for turns in conversations))
        open_ended = not isinstance(prompt, tuple) or not is_assistant(prompt[-1])
        if open_ended and not any(is_assistant(turns[0]) for turns in conversations):
            length = shared_turns(conversations)
            if length == 0:
                raise record.error(f"{' and '.join(named)} share no first turn, so there is no prompt", "Give a 'prompt' column.")
            return _with_prompt(record, conversations[0][:length], tuple(turns[length:] for turns in conversations))
    texts = [answer for answer in answers if isinstance(answer, str)]
    if prompt is None and len(texts) == len(answers) > 1:
        length = shared_text(texts)
        return _with_prompt(record, texts[0][:length], tuple(text[length:] for text in texts))
    if prompt is None:
        raise record.error(f"row has no prompt ({record.found()})", "Expected a column 'prompt', 'messages' or 'instruction'.")
    return _with_prompt(record, prompt, tuple(answers))


def _with_prompt(record: Record, prompt: Text, answers: tuple[Text, ...]) -> Texts:
    """One form for all: plain texts, or turns as soon as anything is turns. `system` goes first unless there is a system turn."""
    system = record.text("system") if record.has("system") else ""
    if not system and isinstance(prompt, str) and all(isinstance(answer, str) for answer in answers):
        return Texts(prompt, answers)
    turns = _as_turns(prompt, "user")
    if system and not (turns and turns[0]["role"] in ("system", "developer")):
        turns = ({"role": "system", "content": system}, *turns)
    if not turns:
        raise record.error("conversation starts with an assistant turn: expected a user or system turn first")
    completions = tuple(_as_turns(answer, "assistant") for answer in answers)
    for completion in completions:
        if not is_assistant(completion[0]):
            raise record.error(f"an answer starts with a {completion[0]['role']} turn: expected an assistant turn after the prompt")
    return Texts(turns, completions)


_DETAILS = ("token_ids", "completion_ids", "logprobs")


def _details(record: Record, count: int) -> list[dict[str, Any]]:
    """What the sampler stored about each completion, as keyword arguments of `Completion`."""
    ids_column = record.first("token_ids", "completion_ids") or "token_ids"
    ids = _per_completion(record, ids_column, count)
    logps = _per_completion(record, "logprobs", count)
    details = []
    for index in range(count):
        token_ids = _numbers(record, f"{ids_column}[{index}]", ids[index], whole=True)
        logprobs = _numbers(record, f"logprobs[{index}]", logps[index], whole=False)
        if token_ids is not None and logprobs is not None and len(token_ids) != len(logprobs):
            raise record.error(f"{ids_column}[{index}] has {len(token_ids)} tokens but logprobs[{index}] has {len(logprobs)}: expected one each")
        details.append({"token_ids": token_ids, "logps": logprobs, "finished": _finished(record, index, count)})
    return details


def _per_completion(record: Record, name: str, count: int) -> list[Any]:
    """A list with one entry per completion; all null if there is no such column."""
    if not record.has(name):
        return [None] * count
    values = record.items(name)
    if len(values) != count:
        raise record.error(f"'{name}' has {len(values)} entries for {count} completions: expected one each")
    return values


def _numbers(record: Record, name: str, values: Any, *, whole: bool) -> tuple[Any, ...] | None:
    if values is None:
        return None
    if not isinstance(values, (list, tuple)):
        raise record.wrong(name, values, "a list of numbers or null")
    if not whole:
        return tuple(record.number(f"{name}[{index}]", value) for index, value in enumerate(values))
    for index, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            raise record.wrong(f"{name}[{index}]", value, "a token id")
    return tuple(values)


def _finished(record: Record, index: int, count: int) -> bool | None:
    finished = _per_completion(record, "finished", count)[index]
    if finished is not None:
        if not isinstance(finished, bool):
            raise record.wrong(f"finished[{index}]", finished, "true, false or null")
        return finished
    reason = _per_completion(record, "finish_reason", count)[index]
    if reason is None:
        return None
    if not isinstance(reason, str) or reason not in FINISHED:
        raise record.error(f"'finish_reason[{index}]' is {shown(reason)}: expected one of {', '.join(FINISHED)}")
    return FINISHED[reason]
