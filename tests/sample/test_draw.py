"""Draws: the exact distribution, hand-computed transforms, streams that know no batch, and little harm from rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from humanline import randomness
from humanline.sample.draw import Streams, digits, draw, transformed


def uniform(rows: int, vocabulary: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((rows, digits(vocabulary))))


@pytest.mark.parametrize(("vocabulary", "expected"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (49152, 16), (151936, 18)])
def test_digits_reach_every_id_and_no_more(vocabulary: int, expected: int) -> None:
    assert digits(vocabulary) == expected


def test_frequencies_are_the_distribution() -> None:
    """N = 200 000 draws from 7 tokens: each frequency within five standard errors √(p(1−p)/N)."""
    count = 200_000
    logp = torch.tensor([0.5, -1.0, 2.0, 0.0, -6.0, 1.0, 0.3], dtype=torch.float64).log_softmax(-1)
    tokens = draw(logp.expand(count, 7), uniform(count, 7))
    share = torch.bincount(tokens, minlength=7) / count
    error = (logp.exp() * (1 - logp.exp()) / count).sqrt()
    assert ((share - logp.exp()).abs() < 5 * error).all()


def test_digits_decide_from_the_highest_on() -> None:
    """p = (0.1, 0.2, 0.3, 0.4): the first digit is 1 for u·1 ≥ 0.3, the second for u·0.3 ≥ 0.1 or u·0.7 ≥ 0.3."""
    logp = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).log().expand(4, 4)
    pairs = [[0.29, 0.33], [0.29, 0.34], [0.31, 0.42], [0.31, 0.43]]
    assert draw(logp, torch.tensor(pairs, dtype=torch.float64)).tolist() == [0, 1, 2, 3]


def test_a_token_without_mass_is_never_drawn() -> None:
    """At both ends of the interval of uniform numbers, wherever the only token with mass is, and beyond a vocabulary of 5."""
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    for only in range(5):
        logp = torch.full((2, 5), -math.inf, dtype=torch.float64)
        logp[:, only] = 0.0
        assert draw(logp, ends[:, None].expand(2, 3)).tolist() == [only, only]
    tokens = draw(torch.zeros(5, dtype=torch.float64).log_softmax(-1).expand(20_000, 5), uniform(20_000, 5))
    assert set(tokens.tolist()) == {0, 1, 2, 3, 4}


def test_temperature_and_nucleus_by_hand() -> None:
    """Logits ln(6, 3, 1) at temperature ½ are masses (36, 9, 1)/46. With top_p 0.9 two reach it: (36, 9)/45; with 0.78 one does."""
    logits = torch.tensor([[6.0, 3.0, 1.0]]).log()
    assert transformed(logits, 0.5, 1.0).exp().tolist()[0] == pytest.approx([36 / 46, 9 / 46, 1 / 46], abs=1e-6)
    assert transformed(logits, 0.5, 0.9).exp().tolist()[0] == pytest.approx([0.8, 0.2, 0.0], abs=1e-6)
    assert transformed(logits, 0.5, 0.78).exp().tolist()[0] == pytest.approx([1.0, 0.0, 0.0], abs=1e-6)
    assert transformed(logits, 1.0, 0.6).exp().tolist()[0] == pytest.approx([1.0, 0.0, 0.0], abs=1e-6)
    assert transformed(logits, 1.0, 0.61).exp().tolist()[0] == pytest.approx([2 / 3, 1 / 3, 0.0], abs=1e-6)


def test_the_smallest_nucleus_holds_the_most_likely_token() -> None:
    assert transformed(torch.tensor([[0.0, 3.0, 1.0]]), 1.0, 1e-9).exp().tolist() == [[0.0, 1.0, 0.0]]


def test_temperature_0_is_the_most_likely_token_with_certainty() -> None:
    assert transformed(torch.tensor([[0.0, 3.0, 1.0]]), 0.0, 1.0).tolist() == [[-math.inf, 0.0, -math.inf]]


def test_no_transform_is_the_log_softmax() -> None:
    logits = torch.randn(3, 11)
    assert torch.equal(transformed(logits, 1.0, 1.0), logits.double().log_softmax(-1))


def test_a_stream_knows_its_place_only() -> None:
    """Alone, among others, and after others have left: the same numbers, over more than one block."""
    alone = Streams(5, [(3, 1)], 50)
    expected = [alone.next()[0] for _ in range(70)]
    mates = Streams(5, [(0, 0), (3, 1), (7, 2)], 50)
    found = []
    for step in range(70):
        row = 1 if step < 40 else 0
        if step == 40:
            mates.keep([1, 2])
        found.append(mates.next()[row])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(expected, randomness.generator(5, "sample", 3, 1).random((70, 6)))


def test_streams_differ_by_seed_prompt_and_completion() -> None:
    first = [Streams(seed, [place], 50).next()[0, 0] for seed, place in [(5, (3, 1)), (6, (3, 1)), (5, (4, 1)), (5, (3, 2))]]
    assert len(set(first)) == 4


def test_R44_rounding_changes_few_draws_even_among_many_unlikely_tokens() -> None:
    """Noise of 1e-3 nats in 8192 logits changes about as large a share of draws; under an inverse CDF, which no draw here is, 5 %."""
    rows, vocabulary = 1000, 8192
    logits = torch.randn(rows, vocabulary, dtype=torch.float64)
    noisy = logits + 1e-3 * torch.randn_like(logits)
    numbers = uniform(rows, vocabulary)
    first, second = (draw(values.log_softmax(-1), numbers) for values in (logits, noisy))
    assert (first != second).double().mean() < 4e-3
    masses = [values.softmax(-1).cumsum(-1) for values in (logits, noisy)]
    by_cdf = [torch.searchsorted(mass, numbers[:, :1].contiguous()) for mass in masses]
    assert (by_cdf[0] != by_cdf[1]).double().mean() > 4e-2
