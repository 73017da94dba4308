"""What a sampler stored beside its completions: token ids, log-probs and what they mean, and whether each came to its own end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from humanline.data.record import Record, shown

DETAILS = ("token_ids", "completion_ids", "logprobs", "finished", "finish_reason")
"""the columns, one entry per completion each; all optional"""

FINISHED = {
    **dict.fromkeys(("stop", "eos", "eos_token", "tool_calls", "function_call"), True),
    **dict.fromkeys(("length", "max_tokens", "abort", "content_filter"), False),
}
"""finish reason of a sampler → whether the completion came to its own end"""


def sampled_details(record: Record, count: int) -> list[dict[str, Any]]:
    """What the sampler stored about each completion, as keyword arguments of `Completion`."""
    ids_column = record.first("token_ids", "completion_ids") or "token_ids"
    ids = per_completion(record, ids_column, count)
    logps = per_completion(record, "logprobs", count)
    details = []
    for index in range(count):
        token_ids = _numbers(record, f"{ids_column}[{index}]", ids[index], whole=True)
        logprobs = _numbers(record, f"logprobs[{index}]", logps[index], whole=False)
        if token_ids is not None and logprobs is not None and len(token_ids) != len(logprobs):
            raise record.error(
                f"{ids_column}[{index}] has {len(token_ids)} tokens but logprobs[{index}] has {len(logprobs)}: expected one each"
            )
        details.append({"token_ids": token_ids, "logps": logprobs, "finished": _finished(record, index, count)})
    return details


def prompt_ids(record: Record) -> tuple[int, ...] | None:
    """The ids that the completions were sampled from; None = not stored."""
    return _numbers(record, "prompt_ids", record.values.get("prompt_ids"), whole=True)


def logps_transform(record: Record) -> tuple[float, float]:
    """(temperature, top_p) that the row's log-probs are taken under: `sampler.logprobs`, as `humanline sample` writes it.

    Rows without it are taken to hold the policy's own log-probs, (1, 1).
    """
    sampler = record.values.get("sampler")
    meaning = sampler.get("logprobs") if isinstance(sampler, Mapping) else None
    if not isinstance(meaning, Mapping):
        return (1.0, 1.0)
    return (
        record.number("sampler.logprobs.temperature", meaning.get("temperature")),
        record.number("sampler.logprobs.top_p", meaning.get("top_p")),
    )


def per_completion(record: Record, name: str, count: int) -> list[Any]:
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
    finished = per_completion(record, "finished", count)[index]
    if finished is not None:
        if not isinstance(finished, bool):
            raise record.wrong(f"finished[{index}]", finished, "true, false or null")
        return finished
    reason = per_completion(record, "finish_reason", count)[index]
    if reason is None:
        return None
    if not isinstance(reason, str) or reason not in FINISHED:
        raise record.error(f"'finish_reason[{index}]' is {shown(reason)}: expected one of {', '.join(FINISHED)}")
    return FINISHED[reason]
