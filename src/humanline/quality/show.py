"""What `humanline inspect` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from humanline.quality.contents import Distribution, Duplicates, Feedback, Lengths, Repeats, Truncation
from humanline.quality.gap import Gap
from humanline.quality.keep import Kept
from humanline.quality.likelihood import USUAL, WARN, Likelihood

DISTRIBUTION = ("", "mean", "std", "lowest", "25 %", "median", "75 %", "95 %", "highest")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, the first to the left."""
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return ["  " + "  ".join(map(_aligned, line, widths, range(len(widths)))) for line in lines]


def _aligned(cell: str, width: int, column: int) -> str:
    return f"{cell:>{width}}" if column else f"{cell:<{width}}"


def contents_lines(
    kind: str, rows: int, lengths: Lengths, truncation: Truncation, duplicates: Duplicates, feedback: Feedback
) -> Iterator[str]:
    """All that needs no model."""
    yield f"{rows} rows of kind {kind}, {rows - duplicates.prompts.number} different prompts, {lengths.completion.count} completions"
    yield "lengths in tokens, before anything is cut"
    parts = (("prompt", lengths.prompt), ("completion", lengths.completion), ("prompt + completion", lengths.total))
    yield from table(DISTRIBUTION, [_distribution(name, part, "{:.0f}") for name, part in parts])
    cut = truncation
    yield f"max_length {cut.max_length}: {cut.too_long} completions are too long" + (
        f"; drop leaves out {cut.drop_rows} rows and {cut.drop_completions} completions, truncate cuts {cut.cut_prompts} prompts and "
        f"{cut.cut_completions} completions by {cut.cut_tokens} tokens in all"
        if cut.too_long
        else ""
    )
    named = (("rows", duplicates.rows), ("prompts", duplicates.prompts), ("completions within a row", duplicates.completions))
    yield "equal to an earlier one: " + ", ".join(_repeats(name, part) for name, part in named)
    yield from _feedback_lines(kind, feedback)


def _feedback_lines(kind: str, feedback: Feedback) -> Iterator[str]:
    total = sum(feedback.classes.values())
    if kind == "label":
        yield "classes: " + ", ".join(f"{count} {name} ({count / total:.0%})" for name, count in feedback.classes.items())
    if feedback.reward is None:
        return
    groups = sum(feedback.group_sizes.values())
    sizes = ", ".join(f"{count} of {size}" for size, count in list(feedback.group_sizes.items())[:8])
    more = len(feedback.group_sizes) - 8
    yield f"group sizes: {sizes}{f' and {more} more sizes' if more > 0 else ''}"
    yield f"advantage 0: {feedback.zero_variance} of {groups} groups have equal rewards, {feedback.single} have fewer than two"
    yield "rewards" + (f", {feedback.unscored} completions have none" if feedback.unscored else "")
    yield from table(DISTRIBUTION, [_distribution("reward", feedback.reward, "{:.4g}")])
    if feedback.within_std is not None:
        yield f"standard deviation within a group: {feedback.within_std:.4g} on average"


def _distribution(name: str, part: Distribution, form: str) -> list[str]:
    mean_and_std = [f"{part.mean:.4g}", f"{part.std:.4g}"]
    return [name, *mean_and_std, *(form.format(value) for value in part.quantiles)]


def _repeats(name: str, part: Repeats) -> str:
    return f"{part.number} {name}" + (f" (first {part.place})" if part.place else "")


def likelihood_lines(kind: str, likelihood: Likelihood) -> Iterator[str]:
    """The quartiles, and a warning when many completions are unusual for the model."""
    word = {"pair": "chosen", "label": "desirable", "group": "reward"}.get(kind, "–")
    yield "mean token log-prob of completions under the model, nats"
    rows = [
        [
            f"quartile {number}" + (" (lowest)" if number == 1 else ""),
            f"{part.completions}",
            f"{part.logp:.3f}",
            f"{part.lowest:.3f}",
            f"{part.highest:.3f}",
            f"{part.tokens:.0f}",
            "–" if part.feedback is None else f"{part.feedback:.4g}" if kind == "group" else f"{part.feedback:.0%}",
        ]
        for number, part in enumerate(likelihood.quartiles, 1)
    ]
    yield from table(("", "completions", "mean", "from", "to", "tokens", word), rows)
    by_class = "".join(f", {name} {value:.3f}" for name, value in likelihood.by_class.items())
    yield f"all: {likelihood.mean:.3f}{by_class}" + (
        "" if likelihood.fresh_mean is None else f"; the model's own fresh samples: {likelihood.fresh_mean:.3f}"
    )
    if likelihood.usual is None or likelihood.unusual_share is None:
        yield "how usual that is for the model is unknown without fresh samples (--fresh 64)"
        return
    many, usual = likelihood.unusual_share > WARN, f"{likelihood.usual:.3f}"
    of_data, of_own = f"{likelihood.unusual_share:.0%} of the completions", f"{USUAL:.0%} of the model's own samples"
    yield f"{'warning: ' if many else ''}{of_data} lie below {usual} nats a token, as {of_own} do"
    if many:
        yield (
            f"  That part is unusual for this model and may teach less (docs/inspecting.md): `--keep-above {usual}` leaves out rows "
            "below it."
        )


def gap_lines(gap: Gap, unit: str) -> Iterator[str]:
    """unit: of outcomes."""
    yield f"perception gap over {gap.prompts} prompts, outcomes in {unit}, against the human weights over the model's own outcomes"
    rows = [
        [
            name,
            f"{part.completions}",
            f"{part.kl:.4f} ± " + ("–" if part.kl_error is None else f"{part.kl_error:.4f}"),
            f"{part.bound:.3f}",
            f"{part.utility_gap:.3f}",
            f"{part.lean:+.3f}",
        ]
        for name, part in (("this data", gap.data), ("fresh samples", gap.fresh), ("the model itself", gap.axis))
    ]
    yield from table(("", "completions", "KL(human‖·)", "bound δ", "utility gap", "lean"), rows)
    lean = gap.data.lean
    yield (
        "lean: the area between curve and diagonal; above 0 the data is worse than the model's own samples, as the model sees them"
        + (f". Here: {'worse' if lean > 0 else 'better'}" if abs(lean) > 0.05 else "")
    )


def kept_line(kept: Kept, path: str) -> str:
    """What was written."""
    records = f" ({kept.records} records)" if kept.records != kept.rows else ""
    return f"{path}: kept {kept.rows} of {kept.of} rows{records}, those of at least {kept.threshold:.3f} nats a token"
