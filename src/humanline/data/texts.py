"""The prompt of a row and its answers, apart from each other and in one form.

The prompt comes from the first of `prompt`, `messages` / `conversations`, `instruction` (+ `input`); before it go `history` and
`system`. Where the answers are whole conversations, which repeat the prompt's turns or bring their own, the prompt is what they
share (TRL's implicit prompt); for a pair of plain texts without any prompt column it is their common start. Texts and message
lists may be mixed: one message list makes turns of all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from humanline.data.notes import Notes
from humanline.data.record import Record
from humanline.data.rows import Text
from humanline.data.turns import (
    Turns,
    as_turns,
    is_assistant,
    shared_text,
    shared_turns,
    text_or_turns,
    turns_of,
    up_to_last_answer,
)

CONVERSATION = ("messages", "conversations")
COMPLETION = ("completion", "output")


class Texts(NamedTuple):
    """A prompt and its answers: all plain texts, or all turns; then each answer begins and ends with an assistant turn."""

    prompt: Text
    answers: tuple[Text, ...]


def answered(record: Record, notes: Notes) -> Texts:
    """One answer: `completion` or `output` if there is one, else the last assistant turn of the conversation."""
    name = record.first(*COMPLETION)
    if name is not None:
        return separate(record, {name: text_or_turns(record, name, record.values[name])}, notes)
    name = record.first(*CONVERSATION)
    assert name is not None, "shape_of asks for one of the columns"
    turns = conversation(record, name, notes)
    return with_prompt(record, turns[:-1], (turns[-1:],))


def conversation(record: Record, name: str, notes: Notes) -> Turns:
    """The column `name` up to its last assistant turn."""
    return _trimmed(record, name, turns_of(record, name, record.items(name)), notes)


def separate(record: Record, named: dict[str, Text], notes: Notes, *, implicit: bool = False) -> Texts:
    """Prompt and answers, whichever columns the prompt is in. named: the answers as they stand in the file.

    implicit: plain texts without a prompt column share their prompt.
    """
    prompt = _prompt(record)
    answers = [_trimmed(record, name, text, notes) if isinstance(text, tuple) else text for name, text in named.items()]
    texts = [answer for answer in answers if isinstance(answer, str)]
    shared = 0
    if not texts:
        shared = _shared_turns(record, prompt, [answer for answer in answers if isinstance(answer, tuple)])
    elif prompt is None and implicit and len(texts) == len(answers) and "prompt" not in record.values:
        shared = shared_text(texts)
        if shared:
            notes.add("no prompt column: the common start of chosen and rejected taken as prompt", record.place)
    if shared:
        return with_prompt(record, answers[0][:shared], tuple(answer[shared:] for answer in answers))
    if prompt is None:
        advice = (
            "Expected a column 'prompt', 'messages' or 'instruction'; another name is mapped by rows.columns: {prompt: question}."
        )
        raise record.error(f"row has no prompt ({record.found()})", advice)
    return with_prompt(record, prompt, tuple(answers))


def prompt_alone(record: Record, notes: Notes) -> Text:
    """The prompt of a row of any shape, as it would be trained on: plain text, or turns.

    Turns that end with an answer lose it, unless they are the column `prompt`, whose last turn the completions then continue.
    """
    answers = next((pair for pair in (("chosen", "rejected"), ("output_A", "output_B")) if record.has(*pair)), ())
    named = {name: text_or_turns(record, name, record.values[name]) for name in answers if record.has(name)}
    if named:
        return separate(record, named, notes, implicit=True).prompt
    name = record.first(*CONVERSATION)
    if name is None or record.has("prompt"):
        return separate(record, {"completion": ""}, notes).prompt
    turns = turns_of(record, name, record.items(name))
    prompt = turns
    while prompt and is_assistant(prompt[-1]):
        prompt = prompt[:-1]
    if len(prompt) < len(turns):
        notes.add(f"answer at the end of '{name}' left out of the prompt", record.place)
    return with_prompt(record, _history(record) + prompt, ()).prompt


def _shared_turns(record: Record, prompt: Text | None, answers: list[Turns]) -> int:
    """How many turns at the start of all answers are their prompt."""
    if isinstance(prompt, tuple) and all(turns[: len(prompt)] == prompt and len(turns) > len(prompt) for turns in answers):
        return len(prompt)
    continued = isinstance(prompt, tuple) and is_assistant(prompt[-1])
    if continued or any(is_assistant(turns[0]) for turns in answers):
        return 0
    shared = shared_turns(answers)
    if not shared:
        raise record.error(
            "the answers are conversations that share no first turn, so there is no prompt", "Give a 'prompt' column."
        )
    return shared


def with_prompt(record: Record, prompt: Text, answers: tuple[Text, ...], *, unprompted: bool = False) -> Texts:
    """One form for all: plain texts, or turns as soon as anything is turns. `system` goes first unless there is a system turn.

    unprompted: no turn at all before the answer is fine, as in conversations that the assistant opens.
    """
    system = record.text("system") if record.has("system") else ""
    if not system and isinstance(prompt, str) and all(isinstance(answer, str) for answer in answers):
        return Texts(prompt, answers)
    turns = as_turns(prompt, "user")
    if system and not (turns and turns[0]["role"] in ("system", "developer")):
        turns = ({"role": "system", "content": system}, *turns)
    if not turns and not unprompted:
        raise record.error("nothing comes before the answer: expected a user or system turn first")
    completions = tuple(as_turns(answer, "assistant") for answer in answers)
    for completion in completions:
        if not is_assistant(completion[0]):
            raise record.error(
                f"an answer starts with a {completion[0]['role']} turn: expected an assistant turn after the prompt"
            )
    return Texts(turns, completions)


def _trimmed(record: Record, name: str, turns: Turns, notes: Notes) -> Turns:
    """Without the turns that nobody answered, which cannot be trained on."""
    trimmed = up_to_last_answer(turns)
    if not trimmed:
        roles = ", ".join(str(turn["role"]) for turn in turns[:5])
        raise record.error(f"'{name}' has no assistant turn (roles: {roles})", "The answer to train on is an assistant turn.")
    if len(trimmed) < len(turns):
        notes.add("turns after the last assistant turn dropped", record.place)
    return trimmed


def _prompt(record: Record) -> Text | None:
    """The prompt of its own columns, without `system`; None if there are none."""
    prompt: Text
    if record.has("prompt"):
        prompt = text_or_turns(record, "prompt", record.values["prompt"])
    elif name := record.first(*CONVERSATION):
        prompt = turns = turns_of(record, name, record.items(name))
        if is_assistant(turns[-1]):
            raise record.error(f"'{name}' ends with an assistant turn: expected the user's turn that the answers reply to")
    elif record.has("instruction"):
        parts = [record.text(part) for part in ("instruction", "input") if record.has(part)]
        prompt = ({"role": "user", "content": "\n".join(part for part in parts if part)},)
    else:
        return None
    history = _history(record)
    return history + as_turns(prompt, "user") if history else prompt


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
