"""The perception gap: how far what a data set implies lies from how people perceive the model's own outcomes (METHOD §1).

An outcome z of a completion y to a prompt x, under the model π:

    with a reference model   z = log π(y|x) − log π_ref(y|x), nats, as in METHOD §1
    without                  z = l(y) − mean of l over the model's own fresh samples of the same prompt, nats per token,
                             l(y) = log π(y|x) / number of its tokens

Where π_ref is π itself the first is 0 for everything and says nothing. The second asks instead how usual a completion is for the model on
this prompt; it is no log-ratio, and a house definition. A mean over n − 1 fresh samples serves every completion: for a fresh one the
n − 1 others. So outcomes of data sampled from π itself are distributed exactly as those of the fresh samples.

Fresh samples at even places give the axis P(Z ≤ z) and the human weights; those at odd places are a sampler like any other, to hold the
data against.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from humanline import prospect, randomness
from humanline.errors import DataError
from humanline.quality.likelihood import Logp

BINS = 10
"""of equal mass of the model's own outcomes, over which distributions are compared"""
RESAMPLES = 200
"""of prompts, for standard errors"""


@dataclass(frozen=True)
class Outcomes:
    """z of the completions of each prompt, in nats or nats per token."""

    axis: tuple[np.ndarray, ...]
    """of fresh samples at even places"""
    fresh: tuple[np.ndarray, ...]
    """of fresh samples at odd places"""
    data: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Distance:
    """A sampler's completions against a person's weights over the model's own outcomes."""

    completions: int
    kl: float
    """KL(ω‖Q), nats, over `BINS` bins; Q with half a completion added to each, so that an empty bin is no infinity"""
    kl_error: float | None
    """its standard error: all is done anew for resampled prompts; None of one prompt, which tells nothing about others"""
    bound: float
    """δ of Proposition 3.4: |u(Z; ω) − u(Z; Q)| cannot exceed it"""
    utility_gap: float
    """|u(Z; ω) − u(Z; Q)| itself"""
    lean: float
    """P(its outcome < the model's own) + ½ P(equal) − ½, in [−½, ½]: the area between its curve and the diagonal. Above 0: worse than
    the model's own samples, as the model sees them; below 0: better"""


@dataclass(frozen=True)
class Gap:
    """Of the data and, to hold it against, of the model's own samples."""

    prompts: int
    data: Distance
    fresh: Distance
    """of fresh samples that did not make the axis"""
    axis: Distance
    """of those that did: what data of the model itself would have without the noise of sampling it"""
    curves: dict[str, prospect.Curve]
    """human, data, fresh samples"""


def relative(policy: Sequence[Sequence[Logp]], fresh: Sequence[Sequence[Logp]]) -> Outcomes:
    """Without a reference model. policy: of the data's completions, by prompt as `fresh` is."""
    mean = [np.array([logp.mean for logp in group]) for group in fresh]
    own = [_against_others(each) for each in mean]
    data = [np.array([logp.mean for logp in group]) - each[:-1].mean() for group, each in zip(policy, mean, strict=True)]
    return _outcomes(own, data)


def _against_others(mean_C: np.ndarray) -> np.ndarray:
    """Each minus the mean of all others."""
    return mean_C - (mean_C.sum() - mean_C) / (len(mean_C) - 1)


def ratios(
    policy: Sequence[Sequence[Logp]],
    reference: Sequence[Sequence[Logp]],
    fresh: Sequence[Sequence[Logp]],
    fresh_reference: Sequence[Sequence[Logp]],
) -> Outcomes:
    """With a reference model."""
    own, data = (
        [
            np.array([logp.total - other.total for logp, other in zip(group, others, strict=True)])
            for group, others in zip(logps, references, strict=True)
        ]
        for logps, references in ((fresh, fresh_reference), (policy, reference))
    )
    return _outcomes(own, data)


def _outcomes(own: list[np.ndarray], data: list[np.ndarray]) -> Outcomes:
    return Outcomes(tuple(each[0::2] for each in own), tuple(each[1::2] for each in own), tuple(data))


def perception_gap(outcomes: Outcomes, seed: int, human: prospect.Human | None = None) -> Gap:
    """human: null = the median person. Raises `DataError` when the model's own outcomes are all equal: there is no axis then."""
    human = human or prospect.Human()
    axis, fresh, data = (np.concatenate(part) for part in (outcomes.axis, outcomes.fresh, outcomes.data))
    if axis.min() == axis.max():
        raise DataError(
            f"all {len(axis)} outcomes of fresh samples are {axis[0]:g}: expected a model that can answer in more than one way. "
            "Leave the perception gap out with --fresh 0."
        )
    curves = {
        "human": prospect.human_curve(axis, human),
        "data": prospect.implied_capacity(axis, data),
        "fresh samples": prospect.implied_capacity(axis, fresh),
    }
    measured = [_distance(outcomes.axis, part, human, seed) for part in (outcomes.data, outcomes.fresh, outcomes.axis)]
    return Gap(len(outcomes.data), measured[0], measured[1], measured[2], curves)


def _distance(axis: Sequence[np.ndarray], sampler: Sequence[np.ndarray], human: prospect.Human, seed: int) -> Distance:
    """Of a sampler's outcomes; both by prompt."""
    own, z = np.concatenate(axis), np.concatenate(sampler)
    measured = _perception(own, z, human)
    stream = randomness.generator(seed, "inspect bootstrap")
    resampled = []
    for _ in range(RESAMPLES):
        drawn = stream.integers(len(axis), size=len(axis)).tolist()
        drawn_axis, drawn_z = (np.concatenate([by_prompt[prompt] for prompt in drawn]) for by_prompt in (axis, sampler))
        resampled.append(_perception(drawn_axis, drawn_z, human).kl)
    above, from_on = (len(own) - np.searchsorted(np.sort(own), z, side=side) for side in ("right", "left"))
    lean = float((above + from_on).mean() / (2 * len(own)) - 0.5)
    error = float(np.std(resampled)) if len(axis) > 1 else None
    return Distance(len(z), measured.kl, error, measured.bound, measured.gap, lean)


def _perception(axis: np.ndarray, z: np.ndarray, human: prospect.Human) -> prospect.Perception:
    """Proposition 3.4 over K bins of the axis: ω the human weights there, Q the share of a sampler's outcomes z."""
    edges = np.unique(np.quantile(axis, np.linspace(0, 1, BINS + 1)[1:-1], method="inverted_cdf"))
    edges = edges[edges > axis.min()]
    place, bins = np.searchsorted(edges, axis, side="right"), len(edges) + 1
    weight_K = np.bincount(place, prospect.decision_weights(axis, human), minlength=bins)
    outcome_K = np.array([np.median(axis[place == k]) for k in range(bins)])
    count_K = np.bincount(np.searchsorted(edges, z, side="right"), minlength=bins)
    return prospect.perception(outcome_K, weight_K, human, (count_K + 0.5) / (len(z) + 0.5 * bins))
