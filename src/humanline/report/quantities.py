"""What the metrics of a run are called, in which unit, and which of them share a figure. A metric that is not listed gets its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

HELD_OUT = "eval_"
"""prefix of metrics on held-out rows"""
LOSS_IS_NOT_PROGRESS = (
    "Not a measure of progress: GRPO's loss is near 0 whenever the policy is near its reference, and a reference that follows the "
    "policy keeps DPO's near ln 2 while the model improves. Only for objectives without a reference (sft, simpo) does lower mean better."
)


@dataclass(frozen=True)
class Panel:
    """One figure: metrics that share an axis."""

    title: str
    unit: str
    metrics: tuple[tuple[str, str], ...]
    """(metric, its word in the legend; "" for a metric alone)"""
    note: str = ""
    share: bool = False
    """values lie in [0, 1] and are shown in per cent"""


def _alone(metric: str, title: str, unit: str, note: str = "", *, share: bool = False) -> Panel:
    return Panel(title, unit, ((metric, ""),), note, share)


LEARNING = (
    _alone("reward", "Reward", "score", "Mean score of the completions trained on; of offline data it describes the file."),
    _alone(
        "reward_accuracy",
        "Reward accuracy",
        "share of pairs",
        "Chosen above rejected in implicit reward; a tie is a half.",
        share=True,
    ),
    _alone("reward_margin", "Reward margin", "implicit reward", "Implicit reward of the chosen minus that of the rejected."),
    Panel("Reward of a pair", "implicit reward", (("reward_chosen", "chosen"), ("reward_rejected", "rejected"))),
    Panel("Reward of a row", "implicit reward", (("reward_desirable", "desirable"), ("reward_undesirable", "undesirable"))),
    _alone("logp", "Log-probability", "nats per token", "Mean log-prob of the completions trained on."),
    _alone("loss", "Loss (not progress)", "loss", LOSS_IS_NOT_PROGRESS),
)
FRESH = (
    _alone(
        "rollout_reward", "Reward of fresh samples", "score", "Mean score of what the policy wrote when the window was sampled."
    ),
    _alone("rollout_truncated", "Fresh samples cut at the token limit", "share of completions", share=True),
    _alone("rollout_length", "Length of fresh samples", "tokens"),
    _alone("rollout_unscored", "Fresh samples without a score", "completions of a window"),
)
PERCEPTION = (
    Panel(
        "Share stopped by the limiter",
        "share of completion tokens",
        (("clipped_low", "low"), ("clipped_high", "high")),
        "Tokens whose log-ratio the limiter clipped or rejected: fallen too far below the reference (low), risen too far above (high).",
        share=True,
    ),
    Panel(
        "Share stopped by GRPO's own clip",
        "share of completion tokens",
        (("ppo_clipped_low", "low"), ("ppo_clipped_high", "high")),
        share=True,
    ),
    _alone("reference_age", "Reference age", "optimizer steps", "Steps since the policy that the reference is."),
    _alone("kl", "KL to the reference", "nats per token", "The k3 estimate, from log-ratios before any limiter."),
    _alone("kl_mismatched", "KTO's K", "nats per completion", "Mean perceived log-ratio of mismatched pairs, not below 0."),
    _alone("log_ratio_std", "Spread of log-ratios", "nats", "Standard deviation over completion tokens, before the limiter."),
    _alone("log_ratio_mean", "Mean log-ratio", "nats", "Over completion tokens, before the limiter."),
)
FEEDBACK = (
    _alone(
        "frac_zero_std_groups",
        "Groups of equal rewards",
        "share of groups",
        "Their advantage is 0: nothing to learn.",
        share=True,
    ),
    _alone("desirable_share", "Desirable rows", "share of rows", share=True),
)
OPTIMIZER = (
    _alone("grad_norm", "Gradient norm", "L2 norm", "Before clipping."),
    _alone("lr", "Learning rate", "learning rate"),
)
PACE = (
    _alone("tokens_per_second", "Pace", "tokens per second", "Prompt and completion tokens of the step over its wall-clock."),
    _alone("seconds", "Time of a step", "seconds"),
    Panel("Tokens of a step", "tokens", (("tokens", "prompt and completion"), ("completion_tokens", "completion"))),
)
SECTIONS: dict[str, tuple[Panel, ...]] = {
    "Fresh samples": FRESH,
    "Training rows": LEARNING,
    "Perception": PERCEPTION,
    "Feedback": FEEDBACK,
    "Optimizer": OPTIMIZER,
    "Pace": PACE,
}
HELD_OUT_PANELS = tuple(
    replace(
        panel,
        title=f"{panel.title}, held-out",
        metrics=tuple((HELD_OUT + metric, word) for metric, word in panel.metrics),
        note="",
    )
    for panel in (*LEARNING[:-1], _alone("loss", "Loss", "loss"), *PERCEPTION)
)
FIXED_WHEN_HELD_OUT = frozenset(HELD_OUT + metric for metric in ("tokens", "completion_tokens", "clipped_low", "clipped_high"))
"""the same at every evaluation: the same rows, without a limiter"""
PROGRESS = ("reward", "reward_accuracy", "reward_margin", "reward_desirable", "reward_undesirable", "logp")
"""metrics that stand in the table at the top"""

_TITLES = {
    **{
        metric: f"{panel.title.lower()} {word}".strip()
        for panels in SECTIONS.values()
        for panel in panels
        for metric, word in panel.metrics
    },
    "kl": "KL to the reference",
    "kl_mismatched": "KTO's K",
    "reward_chosen": "reward of the chosen",
    "reward_rejected": "reward of the rejected",
    "reward_desirable": "reward of desirable rows",
    "reward_undesirable": "reward of undesirable rows",
    "loss": "loss",
    "cpu_seconds": "CPU seconds",
    "seconds": "seconds",
}


def title(metric: str) -> str:
    """`eval_reward_accuracy` → `held-out reward accuracy`; an unknown metric by its own name."""
    if metric.startswith(HELD_OUT):
        return f"held-out {title(metric.removeprefix(HELD_OUT))}"
    return _TITLES.get(metric, metric.replace("_", " "))


def panels(metrics: Iterable[str]) -> dict[str, tuple[Panel, ...]]:
    """{section: figures} for the metrics that there are. None is left out but those that cannot change."""
    present = [metric for metric in metrics if metric not in FIXED_WHEN_HELD_OUT]
    sections = {"Held-out rows": HELD_OUT_PANELS, **SECTIONS}
    listed = {metric for all_panels in sections.values() for panel in all_panels for metric, _ in panel.metrics}
    others = [Panel(title(metric).capitalize(), metric, ((metric, ""),)) for metric in present if metric not in listed]
    chosen = {
        section: tuple(panel for panel in all_panels if any(metric in present for metric, _ in panel.metrics))
        for section, all_panels in (sections | {"Other metrics": tuple(others)}).items()
    }
    return {section: found for section, found in chosen.items() if found}
