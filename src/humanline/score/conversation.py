"""An item as the turns of a conversation: what a reward model or a judge reads."""

from __future__ import annotations

from humanline.data.turns import Turns, as_turns, is_assistant
from humanline.score.item import Item


def turns_of_item(item: Item) -> Turns:
    """The whole conversation, the answer unaltered as its last turn; a plain prompt is the user's turn.

    An answer that continues an assistant turn of the prompt (a prefill) is one turn with it.
    """
    prompt = as_turns(item.prompt, "user")
    if prompt and is_assistant(prompt[-1]):
        return (*prompt[:-1], {**prompt[-1], "content": prompt[-1]["content"] + item.completion})
    return (*prompt, {"role": "assistant", "content": item.answer})
