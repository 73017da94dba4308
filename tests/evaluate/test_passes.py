"""pass@k and best-of-n, against counting by hand."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humanline.errors import ConfigError, DataError
from humanline.evaluate import best_of_n, pass_at_k, pass_rate

COUNTS = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(4, 2, 1, 1 / 2), (4, 2, 2, 5 / 6), (4, 1, 4, 1.0), (4, 0, 3, 0.0), (5, 3, 3, 1.0), (10, 1, 5, 1 / 2), (8, 1, 2, 1 / 4)],
)
def test_pass_at_k_by_hand(n: int, c: int, k: int, expected: float) -> None:
    """E.g. 4 completions, 2 right, k = 2: of 6 pairs one has no right answer, so 5/6."""
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-15)


@given(COUNTS)
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(counts: tuple[int, int, int]) -> None:
    n, c, k = counts
    subsets = list(itertools.combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-14)


@given(COUNTS)
def test_pass_at_k_grows_with_k_and_starts_at_the_share_of_right_answers(counts: tuple[int, int, int]) -> None:
    n, c, _ = counts
    rates = [pass_at_k(n, c, k) for k in range(1, n + 1)]
    assert rates[0] == pytest.approx(c / n, abs=1e-15)
    assert rates == sorted(rates)


def test_pass_at_k_is_exact_for_large_counts() -> None:
    """1 − C(9000, 100)/C(10000, 100) = 1 − Π (9000 − i)/(10000 − i)."""
    product = math.exp(math.fsum(math.log((9000 - i) / (10000 - i)) for i in range(100)))
    assert pass_at_k(10000, 1000, 100) == pytest.approx(1 - product, abs=1e-14)


def test_R36_pass_at_1_is_the_mean_over_samples_with_errors_clustered_by_problem() -> None:
    """Shares 1, 1/2, 0, 1/2: mean 1/2, variance (1/4 + 0 + 1/4 + 0)/3 = 1/6, standard error √(1/6)/2."""
    found = pass_rate([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0], [0, 1]])
    assert found.value.mean == 0.5
    assert found.value.standard_error == pytest.approx(math.sqrt(1 / 6) / 2, abs=1e-15)
    assert found.value.clusters == 4


def test_R36_copies_of_a_sample_make_nothing_surer() -> None:
    """Clustering by problem: four times the samples, all equal within a problem, leave the error as it was."""
    once, often = pass_rate([[1], [0], [1]]), pass_rate([[1] * 4, [0] * 4, [1] * 4])
    assert once == often


@given(
    st.lists(st.lists(st.sampled_from([0, 1]), min_size=3, max_size=5), min_size=2, max_size=6), st.randoms(use_true_random=False)
)
def test_order_of_problems_and_of_completions_changes_no_bit(problems: list[list[int]], random: object) -> None:
    shuffled = [list(each) for each in problems]
    for each in (shuffled, *shuffled):
        random.shuffle(each)  # type: ignore[attr-defined]
    assert pass_rate(shuffled, 2) == pass_rate(problems, 2)


def test_no_verdict_is_not_wrong() -> None:
    """A completion without verdict takes no part; a problem with fewer than k verdicts is left out and counted."""
    assert pass_rate([[1, None, None], [0, 1, None]]) == pass_rate([[1], [0, 1]])
    found = pass_rate([[1, None, None], [0, 1, None]], 2)
    assert (found.value.mean, found.value.clusters, found.left_out) == (1.0, 1, 1)


def test_best_of_n_by_hand() -> None:
    """Best scores at a right answer, at a wrong one, at one of each (half), at a missing verdict (left out), nowhere (left out)."""
    problems = [[1, 0], [1, 0], [1, 0, 0], [None, 1], [1, 1]]
    scores = [[0.9, 0.1], [0.1, 0.9], [0.5, 0.5, 0.4], [0.9, 0.1], [None, None]]
    found = best_of_n(problems, scores)
    assert found.value.mean == pytest.approx((1 + 0 + 0.5) / 3, abs=1e-15)
    assert found.left_out == 2


@pytest.mark.parametrize("k", [0, 5])
def test_k_must_be_possible(k: int) -> None:
    with pytest.raises(ConfigError, match=f"^k is {k} for 4 completions: expected a whole number from 1 to 4"):
        pass_at_k(4, 2, k)


def test_bad_input_is_named() -> None:
    with pytest.raises(DataError, match=r"^5 of 4 completions are right: expected a count from 0 to 4\.$"):
        pass_at_k(4, 5, 1)
    with pytest.raises(DataError, match=r"^a verdict is 0\.5: expected 1 for right, 0 for wrong, or null\."):
        pass_rate([[0.5]])
    with pytest.raises(DataError, match=r"^pass@3: none of 2 problems has 3 completions with a verdict\.$"):
        pass_rate([[1, 1], [0]], 3)
    with pytest.raises(DataError, match=r"^1 problems and 1 lists of scores: expected a score, or null, for each completion"):
        best_of_n([[1, 0]], [[0.5]])
    with pytest.raises(DataError, match=r"^best-of-n: none of 1 problems has a verdict on its best completion\.$"):
        best_of_n([[None]], [[0.5]])
