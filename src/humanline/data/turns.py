"""Conversations: messages of any dialect as {"role", "content"} turns, and where the prompt ends.

Role names of ShareGPT and LLaMA-Factory become the standard ones: a `function_call` is what the assistant said, an `observation`
what a tool answered.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from humanline.data.record import Record, shown
from humanline.data.rows import Message, Text

ROLES = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool")},
    **dict.fromkeys(("gpt", "chatgpt", "bot", "model", "function_call"), "assistant"),
    **dict.fromkeys(("observation", "function", "function_response", "tool_response", "ipython"), "tool"),
    "human": "user",
}
"""role in the file → role of the turn"""

Turns = tuple[Message, ...]


def text_or_turns(record: Record, name: str, value: Any) -> Text:
    """Text as it is; one message or a list of them as turns."""
    if isinstance(value, str):
        return record.checked_text(name, value)
    if isinstance(value, Mapping):
        return (_turn(record, name, value),)
    if not isinstance(value, (list, tuple)):
        raise record.wrong(name, value, "text or a list of messages")
    return turns_of(record, name, value)


def turns_of(record: Record, name: str, value: Sequence[Any]) -> Turns:
    """A list of messages as turns."""
    if not value:
        raise record.error(f"'{name}' is an empty list: expected at least one message")
    return tuple(_turn(record, f"{name}[{index}]", message) for index, message in enumerate(value))


def _turn(record: Record, name: str, message: Any) -> Message:
    if not isinstance(message, Mapping):
        raise record.wrong(name, message, 'a message, e.g. {"role": "user", "content": "2 + 2?"}')
    role_key, content_key = ("from", "value") if "from" in message and "role" not in message else ("role", "content")
    role = message.get(role_key)
    if not isinstance(role, str) or role.lower() not in ROLES:
        near = difflib.get_close_matches(role.lower(), ROLES, n=1) if isinstance(role, str) else []
        hint = f"Did you mean {near[0]!r}?" if near else 'A message is e.g. {"role": "user", "content": "2 + 2?"}.'
        raise record.error(f"'{name}' has {role_key} {shown(role)}: expected system, user, assistant or tool", hint)
    rest = {str(key): value for key, value in message.items() if key not in (role_key, content_key) and value is not None}
    content = message.get(content_key)
    if content is None and rest.get("tool_calls"):
        content = ""
    return {"role": ROLES[role.lower()], "content": _content(record, f"{name}.{content_key}", content), **rest}


def _content(record: Record, name: str, content: Any) -> str:
    """Text, or a list of text parts joined; a part of another type (an image) is refused."""
    if not isinstance(content, (list, tuple)):
        return record.checked_text(name, content)
    texts = []
    for index, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type", "text") != "text":
            raise record.wrong(f"{name}[{index}]", part, 'a text part, e.g. {"type": "text", "text": "2 + 2?"}')
        texts.append(record.checked_text(f"{name}[{index}].text", part.get("text")))
    return "".join(texts)


def as_turns(text: Text, role: str) -> Turns:
    """A text as one turn; turns as they are."""
    return ({"role": role, "content": text},) if isinstance(text, str) else text


def is_assistant(turn: Message) -> bool:
    """Whether the model said it."""
    return bool(turn["role"] == "assistant")


def up_to_last_answer(turns: Turns) -> Turns:
    """Without the turns after the last assistant one; () if there is none."""
    last = max((index for index, turn in enumerate(turns) if is_assistant(turn)), default=-1)
    return turns[: last + 1]


def shared_turns(conversations: Sequence[Turns]) -> int:
    """Length of the prompt that conversations share: their longest common start that leaves each one an answer to begin with.

    A single conversation keeps its last turn as the answer. 0: no such start.
    """
    length = 0
    while length < min(map(len, conversations)) - 1 and all(turns[length] == conversations[0][length] for turns in conversations):
        length += 1
    while length > 0 and not all(is_assistant(turns[length]) for turns in conversations):
        length -= 1
    return length


def shared_text(texts: Sequence[str]) -> int:
    """Length of the prompt that texts share; 0: none.

    Up to the last "\\n\\nAssistant:" of their common start if there is one (the form of Anthropic's HH data), else back to the
    last white space, so that no word is cut: before a space, as it belongs to the next word's token, after a line break.
    """
    first, last = min(texts), max(texts)  # in order: what these two share, all share
    common = next((index for index, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    marker = "\n\nAssistant:"
    found = first.rfind(marker, 0, common)
    if found >= 0:
        return found + len(marker)
    while common and not first[common - 1].isspace():
        common -= 1
    return common - 1 if common and first[common - 1] == " " else common
