"""From a row to the exact text that is tokenized: the chat template, applied once to the whole conversation.

Positions are character positions in the rendered text. Turns are *trained* when they are assistant turns of a completion.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from humanline.config import DataConfig
from humanline.data.rows import Place, Row
from humanline.data.turns import Turns, as_turns, is_assistant, up_to_last_answer
from humanline.errors import DataError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARKERS = "\ue000\ue001\uf8fe\uf8ff"
"""Private-use characters, one of which is put into a turn to see where the template renders it."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """One completion with its prompt as text."""

    text: str
    """the whole of it, cut after the end-of-turn token of the last turn where the template puts one"""
    ended: bool = False
    """`text` ends in an end-of-turn token that the template put"""
    cuts: tuple[int, ...] = ()
    """positions between several trained turns a, b, c: (end of a, start of b, end of b, start of c)"""
    altered: bool = False
    """the template left out or changed part of the last answer, e.g. its reasoning"""


@dataclass(frozen=True, slots=True)
class RenderedRow:
    """The texts of one row."""

    prompt: str
    """what all completions share, generation prompt included; a prefix of every `Rendered.text`"""
    wholes: tuple[Rendered | None, ...]
    """per completion; None where the sampler's token ids are used"""
    reopened: bool = False
    """the template renders an answer otherwise than its generation prompt opens it (`<think>`): `prompt` ends before that"""


def common_text(texts: Sequence[str]) -> str:
    """Longest common prefix, by bisection so that the comparisons run in C."""
    shared = texts[0]
    for text in texts[1:]:
        low, high = 0, min(len(shared), len(text))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if shared[low:middle] == text[low:middle] else (low, middle - 1)
        shared = shared[:low]
    return shared


class Renderer:
    """Renders rows with a tokenizer's chat template, or joins plain strings, as `config.template` says."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, config: DataConfig, *, end_texts: tuple[str, ...]) -> None:
        """`end_texts`: the special tokens that can close a turn, as text."""
        self._tokenizer = tokenizer
        self._config = config
        self._end_texts = end_texts
        self._end_after = re.compile(rf"\s*(?:{'|'.join(map(re.escape, end_texts))})" if end_texts else "")

    def __call__(self, row: Row) -> RenderedRow:
        """Raises `DataError` for turns that the template refuses, `ModelError` when there is no template."""
        plain = all(isinstance(text, str) for text in (row.prompt, *(completion.text for completion in row.completions)))
        if plain and self._config.template != "chat":
            joined = (None if each.token_ids is not None else Rendered(f"{row.prompt}{each.text}") for each in row.completions)
            return RenderedRow(f"{row.prompt}", tuple(joined))
        if self._config.template == "none":
            raise DataError(
                f"{row.place}: rows.template is none, but the row holds messages. Expected plain strings.\n"
                "  Use `--rows.template auto` to apply the chat template, or give prompt and completions as strings."
            )
        if not self._tokenizer.chat_template:
            raise ModelError(
                f"{row.place}: this row needs a chat template, and the tokenizer has none.\n"
                "  Save a chat_template.jinja with the model, or give plain strings with `--rows.template none`."
            )
        prompt = as_turns(row.prompt, "user")
        answers = [None if each.token_ids is not None else as_turns(each.text, "assistant") for each in row.completions]
        if row.kind == "chat" and answers[0] is not None:
            prompt, answer = self._split_chat(row.place, prompt + answers[0])
            return self._conversations(row, prompt, [answer])
        return self._conversations(row, prompt, answers)

    def _split_chat(self, place: Place, turns: Turns) -> tuple[Turns, Turns]:
        """Before and from the first (`train_on: all`) or the last assistant turn."""
        trained = [number for number, turn in enumerate(turns) if is_assistant(turn)]
        if not trained:
            roles = ", ".join(str(turn["role"]) for turn in turns)
            raise DataError(f"{place}: no assistant turn to train on (roles: {roles}).\n  Take the row out of the data.")
        start = trained[-1] if self._config.train_on == "last" else trained[0]
        return turns[:start], turns[start:]

    def _conversations(self, row: Row, prompt: Turns, answers: Sequence[Turns | None]) -> RenderedRow:
        """Render the prompt alone, then each answer with it."""
        prefilled = row.kind != "chat" and bool(prompt) and is_assistant(prompt[-1])
        opening = self._apply(row.place, prompt, opened=prefilled, prompting=not prefilled) if prompt else None
        first, offset = (len(prompt) - 1, len(prompt[-1]["content"])) if prefilled else (len(prompt), 0)
        wholes: list[Rendered | None] = []
        starts: list[str | None] = []
        for answer, completion in zip(answers, row.completions, strict=True):
            if answer is None:
                wholes.append(None)
                starts.append(opening)
                continue
            turns = _join(row.place, prompt, answer, prefilled=prefilled)
            whole = self._whole(row.place, turns, first, opened=completion.finished is False)
            wholes.append(whole)
            starts.append(whole.text[: self._start(row.place, turns, first, whole.text, opening, offset)])
        reopened = any(start != opening for start in starts)
        if None in wholes and (opening is None or reopened):
            why = "it has no turns" if opening is None else "the template does not open the other answers with it"
            raise DataError(
                f"{row.place}: completions with token_ids have no prompt of their own: {why}.\n"
                "  Give token_ids for all completions of the row or for none, and at least one prompt turn."
            )
        known = [start for start in starts if start is not None]
        return RenderedRow(common_text(known), tuple(wholes), reopened=opening is not None and reopened)

    def _whole(self, place: Place, turns: Turns, first: int, *, opened: bool) -> Rendered:
        """Render all turns; `first` is the number of the first trained one. `opened`: the last was cut, so nothing ends it."""
        rendered = self._apply(place, turns, opened=opened)
        text, ended = (rendered, False) if opened else self._close(rendered)
        trained = [number for number in range(first, len(turns)) if is_assistant(turns[number])]
        cuts: list[int] = []
        for before, number in pairwise(trained):
            opening = self._apply(place, turns[:number], prompting=True)
            cuts += [self._end(place, turns, before, text), self._start(place, turns, number, text, opening)]
        assert cuts == sorted(cuts), f"{place}: turns out of order at {cuts}"
        return Rendered(text, ended, tuple(cuts), altered=not _contains(text, turns[-1]["content"]))

    def _close(self, text: str) -> tuple[str, bool]:
        """Without the white space that follows an end-of-turn token, and whether there is such a token."""
        stripped = text.rstrip()
        return (stripped, True) if stripped.endswith(self._end_texts) else (text, False)

    def _start(self, place: Place, turns: Turns, number: int, text: str, opening: str | None, offset: int = 0) -> int:
        """Where the model takes over in an assistant turn of `text`: where it leaves the generation prompt `opening`.

        Where the template renders even the turns before otherwise, now that others follow, or nothing comes before: at character
        `offset` of the turn.
        """
        if opening is not None:
            if text.startswith(opening):
                return len(opening)
            if number and not offset and text.startswith(self._close(self._apply(place, turns[:number]))[0]):
                return len(common_text([opening, text]))
        return self._locate(place, turns, number, offset, text)

    def _end(self, place: Place, turns: Turns, number: int, text: str) -> int:
        """Where an earlier assistant turn ends, its end-of-turn token included."""
        until, _ = self._close(self._apply(place, turns[: number + 1]))
        if text.startswith(until):
            return len(until)
        if turns[number].get("tool_calls"):
            raise DataError(
                f"{place}: turn {number + 1} cannot be found in the rendered conversation: the template renders its tool calls "
                "otherwise when turns follow.\n  Use `--rows.train-on last`, or split the conversation."
            )
        end = self._locate(place, turns, number, len(turns[number]["content"]), text)
        closed = self._end_after.match(text, end)
        return closed.end() if closed else end

    def _locate(self, place: Place, turns: Turns, number: int, offset: int, text: str) -> int:
        """Position in `text` of a character of one turn: where a rendering with a marker put there begins to differ."""
        marker = next(marker for marker in MARKERS if marker not in text)
        content = turns[number]["content"]
        marked = {**turns[number], "content": content[:offset] + marker + content[offset:]}
        other = self._apply(place, (*turns[:number], marked, *turns[number + 1 :]))
        if marker not in other:
            raise DataError(
                f"{place}: the chat template does not render the content of turn {number + 1} ({turns[number]['role']}).\n"
                "  Expected a template that shows every answer. Take the row out, or use another template."
            )
        return len(common_text([text, other]))

    def _apply(self, place: Place, turns: Turns, *, opened: bool = False, prompting: bool = False) -> str:
        """The template's text; `opened` leaves the last turn without its end, `prompting` adds the generation prompt."""
        messages = [dict(turn) for turn in turns]
        try:
            rendered = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=prompting, continue_final_message=opened
            )
        except Exception as error:  # a template is a program: it may raise anything
            roles = ", ".join(str(turn["role"]) for turn in turns)
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(
                f"{place}: the chat template cannot render the turns {roles}: {reason}\n"
                "  Reorder, merge or drop turns so that the template accepts them, or use another template."
            ) from error
        assert isinstance(rendered, str)
        return rendered


def _join(place: Place, prompt: Turns, answer: Turns, *, prefilled: bool) -> Turns:
    """Prompt and answer as one conversation; `prefilled`: the answer's first turn continues the prompt's last one.

    What follows the last assistant turn has no influence and is left out.
    """
    if not answer or not is_assistant(answer[0]):
        roles = ", ".join(str(turn["role"]) for turn in answer)
        raise DataError(
            f"{place}: a completion has the turns ({roles}). Expected an assistant turn first.\n"
            "  Move the turns before the first answer into the prompt."
        )
    answer = up_to_last_answer(answer)
    if not prefilled:
        return prompt + answer
    joined = {**answer[0], "content": prompt[-1]["content"] + answer[0]["content"]}
    return (*prompt[:-1], joined, *answer[1:])


def _contains(text: str, content: str) -> bool:
    """Whether all of an answer was rendered, white space aside."""
    return content.strip() in text or "".join(content.split()) in "".join(text.split())
