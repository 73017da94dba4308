"""A tokenizer as encoding needs it: many texts at once, exactly one beginning of sequence, and what can end a completion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from humanline.data.render import common_text
from humanline.data.rows import EncodedCompletion, EncodedGroup
from humanline.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Vocabulary:
    """`lead`: the ids that the tokenizer puts before a text (its BOS), perhaps none.

    `end_id` ends a completion that nothing else ends, None if there is no such token; any of `end_ids` counts as an end.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos_ids: tuple[int, ...] = ()) -> None:
        """`eos_ids`: further ids that end a completion, from the model's generation config."""
        self._tokenizer = tokenizer
        self.size = len(tokenizer)
        self.lead = _leading_ids(tokenizer)
        declared = [tokenizer.eos_token_id, *eos_ids]
        self.end_id = next((token for token in declared if token is not None), None)
        self.end_ids = frozenset(token for token in declared if token is not None)
        added = tokenizer.added_tokens_decoder
        self.unknown_text, self.unknown_id = _unknown(tokenizer)
        self.end_texts = tuple(str(added[token]) for token in added if added[token].special or token in self.end_ids)

    def ids(self, texts: Iterable[str]) -> dict[str, np.ndarray]:
        """Text → int32 ids with `lead` at the start exactly once, whether or not the text spells it out."""
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            return {}
        lists = self._tokenizer(
            distinct, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False
        )["input_ids"]
        led = (ids if self._starts(ids) else [*self.lead, *ids] for ids in lists)
        return {text: np.array(ids, np.int32) for text, ids in zip(distinct, led, strict=True)}

    def unknown(self, text: str, ids: np.ndarray) -> int:
        """How many of a text's `ids` are the unknown token, besides those that the text spells out, as a template may."""
        if self.unknown_id is None:
            return 0
        body = ids[len(self.lead) :] if self._starts(ids[: len(self.lead)].tolist()) else ids
        return max(0, int((body == self.unknown_id).sum()) - text.count(self.unknown_text))

    def covered(self, ids: np.ndarray, start: np.ndarray) -> int:
        """How many of a text's `ids` lie wholly within the part of it whose own ids are `start`.

        More than the two have in common where the tokenizer splits the end of a text otherwise ("\\n\\n", but "\\n", "\\nuser").
        """
        number = common = shared(ids, start)
        rest = self._decode(start[common:])
        while rest and number < len(ids) and rest.startswith(self._decode(ids[common : number + 1])):
            number += 1
        return number

    def head(self, prompt_ids: np.ndarray) -> int:
        """How many ids at the start of a prompt are its beginning-of-sequence token(s)."""
        if self.lead and self._starts(prompt_ids[: len(self.lead)].tolist()):
            return len(self.lead)
        return int(len(prompt_ids) > 0 and prompt_ids[0] == self._tokenizer.bos_token_id)

    def mark(self, group: EncodedGroup) -> str:
        """A row as text, the trained parts of its first completion between ⟦ and ⟧."""
        completion: EncodedCompletion = group.completions[0]
        ids = np.concatenate([group.prompt_ids, completion.ids])
        mask = np.concatenate([np.zeros(len(group.prompt_ids) + 1, bool), completion.mask, [False]])
        whole = self._decode(ids)
        pieces, done = [], 0
        for number, edge in enumerate(np.flatnonzero(mask[1:] != mask[:-1])):
            position = len(common_text([whole, self._decode(ids[:edge])]))
            pieces += [whole[done:position], "⟧" if number % 2 else "⟦"]
            done = position
        return "".join([*pieces, whole[done:]])

    def continuation(self, prompt_ids: np.ndarray, completion_ids: np.ndarray) -> str:
        """A completion as the text that it adds to its prompt's, without an end token at its end."""
        if len(completion_ids) and int(completion_ids[-1]) in self.end_ids:
            completion_ids = completion_ids[:-1]
        before, whole = self._decode(prompt_ids), self._decode(np.concatenate([prompt_ids, completion_ids]))
        return whole[len(before) :] if whole.startswith(before) else self._decode(completion_ids)

    def text_of(self, prompt_ids: np.ndarray) -> str:
        """A prompt as text that a tokenizer which adds `lead` itself turns back into it."""
        return self._decode(prompt_ids[len(self.lead) :] if self._starts(prompt_ids.tolist()) else prompt_ids)

    def _starts(self, ids: list[int]) -> bool:
        return tuple(ids[: len(self.lead)]) == self.lead

    def _decode(self, ids: np.ndarray) -> str:
        text = self._tokenizer.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


def shared(first: np.ndarray, second: np.ndarray) -> int:
    """Length of the longest common prefix."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length


def _unknown(tokenizer: PreTrainedTokenizerBase) -> tuple[str, int | None]:
    """The token that stands for what is not in the vocabulary: the tokenizer's own, else the one it declares; ("", None): none."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    token = getattr(model, "unk_token", None) or tokenizer.unk_token
    number = tokenizer.convert_tokens_to_ids(str(token)) if token else None
    return (str(token), number) if isinstance(number, int) else ("", None)


def _leading_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """What stands before the tokens of "a" once the tokenizer adds its special tokens."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    dressed = tokenizer("a")["input_ids"]
    for start in range(len(dressed) - len(bare) + 1):
        if dressed[start : start + len(bare)] == bare:
            return tuple(dressed[:start])
    raise ModelError(
        f"the tokenizer encodes 'a' as {bare}, but as {dressed} with its special tokens. Expected the same ids amid others.\n"
        "  Use the tokenizer that ships with the model."
    )
