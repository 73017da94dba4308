"""From a row to the exact text that is tokenized: the chat template, applied once to the whole conversation.

Positions are character positions in the rendered text. Turns are *trained* when they are assistant turns of a completion.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from humanline.config import DataConfig
from humanline.data.rows import Completion, Message, Place, Row, Text
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
    """the template left out or changed part of the answer, e.g. its reasoning"""


@dataclass(frozen=True, slots=True)
class RenderedRow:
    """The texts of one row."""

    prompt: str
    """what all completions share, generation prompt included; a prefix of every `Rendered.text`"""
    wholes: tuple[Rendered | None, ...]
    """per completion; None where the sampler's token ids are used"""
    reopened: bool = False
    """the template renders an answer otherwise than its generation prompt opens it (a `<think>` prefill), so `prompt` ends before that"""


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
        longest_first = sorted(end_texts, key=len, reverse=True)
        self._end_after = re.compile(rf"\s*(?:{'|'.join(map(re.escape, longest_first))})" if end_texts else r"(?!)")

    def __call__(self, row: Row) -> RenderedRow:
        """Raises `DataError` for turns that the template refuses, `ModelError` when there is no template."""
        messages = not all(isinstance(text, str) for text in (row.prompt, *(completion.text for completion in row.completions)))
        if not messages and self._config.template != "chat":
            assert isinstance(row.prompt, str)
            joined = (None if each.token_ids is not None else Rendered(f"{row.prompt}{each.text}") for each in row.completions)
            return RenderedRow(row.prompt, tuple(joined))
        if self._config.template == "none":
            raise DataError(
                f"{row.place}: rows.template is none, but the row holds messages. Expected plain strings.\n"
                "  Use `--rows.template auto` to apply the chat template, or give prompt and completions as strings."
            )
        if not self._tokenizer.chat_template:
            raise ModelError(
                f"{row.place}: this row needs a chat template, and the tokenizer has none.\n"
                "  Save a chat_template.jinja with the model, or give prompt and completions as strings with `--rows.template none`."
            )
        prompt = _turns(row.prompt, "user")
        answers = [None if each.token_ids is not None else _turns(each.text, "assistant") for each in row.completions]
        if row.kind == "chat" and answers[0] is not None:
            prompt, answers = self._split_chat(row.place, prompt + answers[0])
        return self._conversation(row, prompt, answers)

    def _split_chat(self, place: Place, turns: list[Message]) -> tuple[list[Message], list[list[Message] | None]]:
        """Before and from the first (`train_on: all`) or the last assistant turn; what follows the last one has no influence."""
        trained = [number for number, turn in enumerate(turns) if turn["role"] == "assistant"]
        if not trained:
            roles = ", ".join(str(turn["role"]) for turn in turns)
            raise DataError(f"{place}: the conversation has no assistant turn to train on (roles: {roles}).\n  Leave it out of the data.")
        start = trained[-1] if self._config.train_on == "last" else trained[0]
        return turns[:start], [turns[start : trained[-1] + 1]]

    def _conversation(self, row: Row, prompt: list[Message], answers: Sequence[list[Message] | None]) -> RenderedRow:
        prefill = row.kind != "chat" and bool(prompt) and prompt[-1]["role"] == "assistant"
        opening = self._apply(row.place, prompt, opened=prefill, prompting=not prefill) if prompt else None
        first, offset = (len(prompt) - 1, len(_content(row.place, prompt[-1]))) if prefill else (len(prompt), 0)
        wholes: list[Rendered | None] = []
        shared: list[str] = [] if opening is None else [opening]
        for answer, completion in zip(answers, row.completions, strict=True):
            if answer is None:
                wholes.append(None)
                continue
            turns = _join(row.place, prompt, answer, prefill=prefill)
            whole = self._whole(row.place, turns, first, completion)
            wholes.append(whole)
            if opening is None or not whole.text.startswith(opening):
                shared.append(whole.text[: self._locate(row.place, turns, first, offset, whole.text)])
        if None in wholes and (opening is None or len(shared) > 1):
            raise DataError(
                f"{row.place}: a completion with token_ids has no usable prompt: "
                + ("it has no turns." if opening is None else "the template does not render the other answers after its generation prompt.")
                + "\n  Give token_ids for all completions of the row or for none, and at least one prompt turn."
            )
        return RenderedRow(common_text(shared), tuple(wholes), reopened=opening is not None and len(shared) > 1)

    def _whole(self, place: Place, turns: list[Message], first: int, completion: Completion) -> Rendered:
        """Render all turns; `first` is the number of the first trained one."""
        opened = completion.finished is False
        text, ended = self._close(self._apply(place, turns, opened=opened))
        trained = [number for number in range(first, len(turns)) if turns[number]["role"] == "assistant"]
        cuts: list[int] = []
        for before, number in zip(trained, trained[1:], strict=False):
            cuts += [self._turn_end(place, turns, before, text), self._turn_start(place, turns, number, text)]
        assert cuts == sorted(cuts), f"{place}: turns out of order at {cuts}"
        return Rendered(text, ended and not opened, tuple(cuts), altered=not _contains(text, turns[-1].get("content")))

    def _close(self, text: str) -> tuple[str, bool]:
        """Without the white space that follows an end-of-turn token, and whether there is such a token."""
        stripped = text.rstrip()
        return (stripped, True) if stripped.endswith(self._end_texts) else (text, False)

    def _turn_start(self, place: Place, turns: list[Message], number: int, text: str) -> int:
        """Where a later assistant turn starts: after the generation prompt if it is rendered so, else at its content."""
        opening = self._apply(place, turns[:number], prompting=True)
        return len(opening) if text.startswith(opening) else self._locate(place, turns, number, 0, text)

    def _turn_end(self, place: Place, turns: list[Message], number: int, text: str) -> int:
        """Where an earlier assistant turn ends, its end-of-turn token included."""
        until, _ = self._close(self._apply(place, turns[: number + 1]))
        if text.startswith(until):
            return len(until)
        if turns[number].get("tool_calls"):
            raise DataError(
                f"{place}: turn {number + 1} cannot be found in the rendered conversation: the template renders its tool calls differently "
                "when other turns follow.\n  Use `--rows.train-on last`, or split the conversation."
            )
        end = self._locate(place, turns, number, len(_content(place, turns[number])), text)
        closed = self._end_after.match(text, end)
        return closed.end() if closed else end

    def _locate(self, place: Place, turns: list[Message], number: int, offset: int, text: str) -> int:
        """Position in `text` of a character of one turn: where a rendering with a marker put there begins to differ."""
        marker = next(marker for marker in MARKERS if marker not in text)
        content = _content(place, turns[number])
        marked = {**turns[number], "content": content[:offset] + marker + content[offset:]}
        other = self._apply(place, [*turns[:number], marked, *turns[number + 1 :]])
        if marker not in other:
            raise DataError(
                f"{place}: the chat template does not render the content of turn {number + 1} ({turns[number]['role']}).\n"
                "  Expected a template that shows every answer. Leave the row out, or use another template."
            )
        return len(common_text([text, other]))

    def _apply(self, place: Place, turns: Sequence[Message], *, opened: bool = False, prompting: bool = False) -> str:
        """The template's text; `opened` leaves the last turn without its end, `prompting` adds the generation prompt."""
        try:
            rendered = self._tokenizer.apply_chat_template(
                list(turns), tokenize=False, add_generation_prompt=prompting, continue_final_message=opened
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            roles = ", ".join(str(turn.get("role")) for turn in turns)
            reason = str(error).strip().splitlines()
            raise DataError(
                f"{place}: the chat template cannot render the turns {roles}: {reason[0] if reason else type(error).__name__}\n"
                "  Reorder, merge or drop turns so that the template accepts them, or use another template."
            ) from error
        assert isinstance(rendered, str)
        return rendered


def _turns(text: Text, role: str) -> list[Message]:
    return [{"role": role, "content": text}] if isinstance(text, str) else list(text)


def _content(place: Place, turn: Message) -> str:
    content = turn.get("content") or ""
    if not isinstance(content, str):
        raise DataError(f"{place}: the content of an {turn['role']} turn is a {type(content).__name__}. Expected a string.")
    return content


def _join(place: Place, prompt: list[Message], answer: list[Message], *, prefill: bool) -> list[Message]:
    """Prompt and answer as one conversation; with `prefill` the answer's first turn continues the prompt's last one."""
    last = max((number for number, turn in enumerate(answer) if turn["role"] == "assistant"), default=-1)
    if last < 0 or answer[0]["role"] != "assistant":
        raise DataError(
            f"{place}: a completion starts with a turn of role {answer[0]['role'] if answer else None!r}. Expected an assistant turn.\n"
            "  Move the turns before the first answer into the prompt."
        )
    answer = answer[: last + 1]
    if not prefill:
        return prompt + answer
    joined = {**answer[0], "content": _content(place, prompt[-1]) + _content(place, answer[0])}
    return [*prompt[:-1], joined, *answer[1:]]


def _contains(text: str, content: object) -> bool:
    """Whether all of an answer was rendered, white space aside."""
    if not isinstance(content, str) or content.strip() in text:
        return True
    return "".join(content.split()) in "".join(text.split())
