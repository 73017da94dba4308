"""Mean token log-probs: against the model's own logits, whatever the batching; quartiles by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from builders import completion, groups, tiny_llama
from humanline.config import ModelConfig
from humanline.data.rows import EncodedGroup, Place
from humanline.errors import DataError
from humanline.quality.likelihood import Logp, likelihood, score
from humanline.token_logps import TokenLogps


def silent(_: str) -> None:
    """Nobody listens."""


def test_scores_are_the_sums_of_the_models_own_log_probs() -> None:
    model, data = tiny_llama(), groups("group", 5, size=3)
    scored = score(TokenLogps(model), data, ModelConfig(), 64, silent, "scoring")
    for group, logps in zip(data, scored, strict=True):
        for each, found in zip(group.completions, logps, strict=True):
            ids = torch.from_numpy(np.concatenate([group.prompt_ids, each.ids])).long()
            with torch.no_grad():
                logp_SV = model(ids[None]).logits[0].double().log_softmax(-1)
            start = len(group.prompt_ids)
            expected = logp_SV[start - 1 : -1].gather(1, ids[start:, None]).sum().item()
            assert found.total == pytest.approx(expected, abs=1e-4) and found.tokens == len(each.ids)
            assert found.mean == pytest.approx(expected / len(each.ids), abs=1e-5)


def test_R6_batching_changes_no_score() -> None:
    module, data = TokenLogps(tiny_llama()), groups("group", 6)
    alone, together = (score(module, data, ModelConfig(), budget, silent, "scoring") for budget in (1, 100_000))
    flat = [np.array([each.total for group in scored for each in group]) for scored in (alone, together)]
    np.testing.assert_allclose(*flat, atol=1e-4)


def test_only_trained_tokens_count() -> None:
    module, data = TokenLogps(tiny_llama()), groups("chat", 1, longest=6)
    each = data[0].completions[0]
    mask = np.arange(len(each.ids)) % 2 == 0
    masked = EncodedGroup("chat", data[0].prompt_ids, (dataclasses.replace(each, mask=mask),), data[0].place)
    [[all_tokens]] = score(module, data, ModelConfig(), 64, silent, "scoring")
    [[some]] = score(module, [masked], ModelConfig(), 64, silent, "scoring")
    assert some.tokens == mask.sum() and some.total > all_tokens.total


def test_a_score_that_is_not_finite_names_its_row() -> None:
    model, data = tiny_llama(), groups("group", 3)
    module = TokenLogps(model)
    with torch.no_grad():
        model.get_input_embeddings().weight[int(data[1].prompt_ids[0])] = torch.inf
    with pytest.raises(
        DataError, match=r"^rows\.jsonl:\d: completion \d has log-prob nan under the model: expected a finite number"
    ):
        score(module, data, ModelConfig(), 64, silent, "scoring")


def _labelled(values: list[float]) -> tuple[list[EncodedGroup], list[list[Logp]]]:
    """Completions of `values` nats a token, desirable where the place is even."""
    data = [
        EncodedGroup(
            "label", np.array([3], np.int32), (completion([4] * (row + 1), float(row % 2 == 0)),), Place("rows", row + 1)
        )
        for row in range(len(values))
    ]
    return data, [[Logp(value * (row + 1), row + 1)] for row, value in enumerate(values)]


def test_quartiles_by_hand() -> None:
    data, logps = _labelled([-1.0, -5.0, -2.0, -6.0, -3.0, -7.0, -4.0, -8.0])
    found = likelihood(data, logps, None)
    assert [(part.lowest, part.highest, part.completions) for part in found.quartiles] == [
        (-8.0, -7.0, 2), (-6.0, -5.0, 2), (-4.0, -3.0, 2), (-2.0, -1.0, 2),
    ]  # fmt: skip
    assert [part.feedback for part in found.quartiles] == [0.0, 0.0, 1.0, 1.0]
    assert found.quartiles[0].tokens == 7.0 and found.mean == -4.5
    assert found.by_class == {"desirable": -2.5, "undesirable": -6.5}
    assert found.usual is found.unusual_share is found.fresh_mean is None


def test_the_unusual_share_counts_what_lies_below_5_percent_of_the_models_own_samples() -> None:
    data, logps = _labelled([-1.0, -5.0, -2.0, -6.0])
    fresh = [[Logp(-4.0 * 3, 3) for _ in range(10)] for _ in range(10)]
    found = likelihood(data, logps, fresh)
    assert (found.usual, found.unusual_share, found.fresh_mean) == (-4.0, 0.5, -4.0)
    assert likelihood(data, logps, logps).unusual_share == 0.25


def test_fewer_than_four_completions_make_fewer_quarters() -> None:
    assert len(likelihood(*_labelled([-1.0, -2.0]), None).quartiles) == 2
