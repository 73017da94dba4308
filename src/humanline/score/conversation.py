"""An item as the turns of a conversation, and what a prompt puts into the model's mouth."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from humanline.data.render import MARKERS
from humanline.data.rows import Text
from humanline.data.turns import Turns, as_turns, is_assistant
from humanline.score.item import Item

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OPENED = re.compile(r"<think(?:ing)?>\s*\Z")


def turns_of_item(item: Item) -> Turns:
    """The whole conversation, the answer unaltered as its last turn; a plain prompt is the user's turn.

    An answer that continues an assistant turn of the prompt (a prefill) is one turn with it.
    """
    prompt = as_turns(item.prompt, "user")
    if prompt and is_assistant(prompt[-1]):
        return (*prompt[:-1], {**prompt[-1], "content": prompt[-1]["content"] + item.answer})
    return (*prompt, {"role": "assistant", "content": item.answer})


def split_prefill(prompt: Text) -> tuple[Text, str]:
    """(the prompt, its tail): an assistant turn at its end, or in plain text a `<think>` that it leaves open, is the answer's start."""
    if isinstance(prompt, str):
        opened = _OPENED.search(prompt)
        return (prompt[: opened.start()], opened[0]) if opened else (prompt, "")
    return (prompt[:-1], prompt[-1]["content"]) if prompt and is_assistant(prompt[-1]) else (prompt, "")


def generation_tail(tokenizer: PreTrainedTokenizerBase, prompt: Turns) -> str:
    """What the chat template's generation prompt says after the assistant's header: `<think>\\n` where it opens thoughts, mostly "".

    Found by rendering an answer with a mark at its start: what stands before the mark is header. Empty where the template renders
    answers otherwise than its generation prompt opens them.
    """
    turns = [dict(turn) for turn in prompt]
    answer = {"role": "assistant", "content": MARKERS[0]}
    opening = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    answered = tokenizer.apply_chat_template([*turns, answer], tokenize=False)
    assert isinstance(opening, str) and isinstance(answered, str)
    header, found, _ = answered.partition(MARKERS[0])
    return opening[len(header) :] if found and opening.startswith(header) else ""
