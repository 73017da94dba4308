"""Task score: the utility on hand-computed cases, the chain, and inverse-CDF sampling."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from humanline.embedded.score import COMPLETION_LENGTH, SYMBOLS, ScoreTask, inverse_cdf, to_ids, to_texts
from humanline.randomness import generator

A, B, C = 0, 1, 2


def small_task() -> ScoreTask:
    """W[a, b] = 2, W[b, a] = −1, W[b, c] = 6; A[a, c] = 3, A[b, a] = 0.5; everything else 0; the chain is uniform."""
    size = len(SYMBOLS)
    bigram_VV, affinity_VV = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
    bigram_VV[A, B], bigram_VV[B, A], bigram_VV[B, C] = 2.0, -1.0, 6.0
    affinity_VV[A, C], affinity_VV[B, A] = 3.0, 0.5
    return ScoreTask(bigram_VV, affinity_VV, torch.full((size, size), 1 / size, dtype=torch.float64))


@pytest.mark.parametrize(
    ("prompt", "completion", "expected"),
    [
        # bigrams ab ba ab bc: (2 − 1 + 2 + 6)/4 = 9/4. affinity, prompt (a, b) × (a, b, a, b, c): A[a,c] + 2 A[b,a] = 4 over 10.
        # 3 of 4 bigrams are distinct.
        ("ab", "ababc", (9 / 4 + 4 / 10) * 3 / 4),
        # one bigram aa four times, worth 0: affinity b × a 0.5 in all 5 of 5 places, 1 of 4 distinct.
        ("b", "aaaaa", (0 + 0.5) * 1 / 4),
        # all four distinct, ab bc ca ac: (2 + 6)/4; affinity a × c, two of five: 6/5.
        ("a", "abcac", (8 / 4 + 6 / 5) * 1.0),
        # nothing scores
        ("d", "efghi", 0.0),
    ],
)
def test_utility_by_hand(prompt: str, completion: str, expected: float) -> None:
    assert small_task().utility(to_ids([prompt]), to_ids([completion])).item() == pytest.approx(expected, abs=1e-15)


def test_utility_is_vectorised_row_by_row_in_float64() -> None:
    task = ScoreTask.draw(3)
    prompt_NP = task.draw_texts(generator(0, "prompts"), 50, 4)
    completion_NT = task.draw_texts(generator(0, "completions"), 50, COMPLETION_LENGTH)
    together_N = task.utility(prompt_NP, completion_NT)
    alone_N = torch.cat([task.utility(prompt_NP[i : i + 1], completion_NT[i : i + 1]) for i in range(50)])
    assert together_N.dtype == torch.float64
    torch.testing.assert_close(together_N, alone_N, rtol=0, atol=1e-15)


def test_utility_agrees_with_plain_python() -> None:
    task = ScoreTask.draw(4)
    prompt, completion = "abca", "abcabcqqrhia"
    ids = [SYMBOLS.index(symbol) for symbol in completion]
    bigrams = list(itertools.pairwise(ids))
    mean_bigram = sum(float(task.bigram_VV[a, b]) for a, b in bigrams) / 11
    mean_affinity = sum(float(task.affinity_VV[SYMBOLS.index(x), y]) for x in prompt for y in ids) / 48
    expected = (mean_bigram + mean_affinity) * len(set(bigrams)) / 11
    assert len(set(bigrams)) < 11
    assert task.utility(to_ids([prompt]), to_ids([completion])).item() == pytest.approx(expected, abs=1e-14)


def test_inverse_cdf_at_the_edges() -> None:
    """F = (0.25, 0.25, 0.75, 1): symbol 1 has no mass and is never drawn; the largest float below 1 gives the last."""
    probability_NV = torch.tensor([[0.25, 0.0, 0.5, 0.25]], dtype=torch.float64).expand(6, -1)
    uniform_N = torch.tensor([0.0, 0.2499999, 0.25, 0.7499999, 0.75, np.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert inverse_cdf(probability_NV, uniform_N).tolist() == [0, 0, 2, 2, 3, 3]


def test_inverse_cdf_does_not_leave_the_alphabet_when_rounding_eats_the_last_mass() -> None:
    probability_NV = torch.full((1, 18), 1 / 18, dtype=torch.float64) * (1 - 1e-12)
    assert inverse_cdf(probability_NV, torch.tensor([np.nextafter(1.0, 0.0)], dtype=torch.float64)).item() == 17


def test_chain_texts_follow_the_chain() -> None:
    """Every transition's share is within 5 standard errors of its probability."""
    task = ScoreTask.draw(1)
    texts = task.draw_texts(generator(5, "texts"), 40_000, 3)
    before, after = texts[:, 1], texts[:, 2]
    for symbol in (0, 7, 17):
        followers = after[before == symbol]
        share_V = torch.bincount(followers, minlength=len(SYMBOLS)) / len(followers)
        expected_V = task.chain_VV[symbol]
        error_V = (expected_V * (1 - expected_V) / len(followers)).sqrt()
        assert ((share_V - expected_V).abs() < 5 * error_V).all()


def test_texts_and_ids_are_inverses_and_other_symbols_are_refused() -> None:
    texts = ["abcd", "rqpo"]
    assert to_texts(to_ids(texts)) == texts
    with pytest.raises(ValueError, match=r"^'abcz' is no text of task score: expected only the symbols a … r\.$"):
        to_ids(["abcd", "abcz"])


def test_a_task_is_a_function_of_its_seed() -> None:
    one, same, other = ScoreTask.draw(1), ScoreTask.draw(1), ScoreTask.draw(2)
    assert torch.equal(one.bigram_VV, same.bigram_VV) and not torch.equal(one.bigram_VV, other.bigram_VV)
    torch.testing.assert_close(one.chain_VV.sum(-1), torch.ones(len(SYMBOLS), dtype=torch.float64))
    assert one.affinity_VV.std() == pytest.approx(0.7, abs=0.1)
