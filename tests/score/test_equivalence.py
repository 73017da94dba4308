"""Equal and unequal answers, as mathematics."""

from __future__ import annotations

import pytest

from humanline.score.equivalence import Comparison, compare


def equal(gold: str, text: str, *, precision: int = 6, set_relations: bool = False) -> bool | None:
    return compare([gold], text, precision=precision, set_relations=set_relations).right


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        # bold, text commands, plain names
        ("73", "The answer is **73**."),
        ("73", "**73**"),
        ("13", r"so we get $\text{13}$"),
        ("13", r"The answer is \text{13}"),
        (r"\dfrac{\pi}{2}", "pi/2"),
        (r"\frac{\pi}{2}", r"\boxed{pi/2}"),
        (r"2\pi", "After some work:\nthe answer is 2pi."),
        (r"\frac{\sqrt{3}}{2}", r"\boxed{sqrt(3)/2}"),
        (r"\sqrt{1/n}", r"\boxed{\frac{1}{\sqrt{n}}}"),
        (r"\frac{1}{\sqrt n}", r"\boxed{\sqrt{1/n}}"),
        # gold answers without delimiters
        (r"\tfrac83", r"\boxed{\frac{8}{3}}"),
        ("10, 4, 2", r"\boxed{4, 2, 10}"),
        ("-2 + 7i", r"\boxed{7i - 2}"),
        (r"\$32,\!348", "The total is \\boxed{32348}"),
        ("-2,1", r"\boxed{-2, 1}"),
        ("1,22", "1.22"),
        (r"50\%", r"\boxed{0.5}"),
        (r"x \in [-2,7]", r"\boxed{[-2,7]}"),
        # words
        (r"\text{Evelyn}", r"It is \boxed{Evelyn}."),
        ("east", r"He goes \boxed{\text{East}}"),
        ("yes", "The answer is yes."),
        (r"\text{(C)}", r"\boxed{C}"),
    ],
)
def test_R34_what_people_call_equal_is_equal(gold: str, text: str) -> None:
    assert equal(gold, text) is True


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("east", r"\boxed{seat}"),
        ("no", "The answer is yes."),
        ("even", r"\boxed{odd}"),
        (r"|x|", r"\boxed{x}"),
        (r"\sqrt{x^2}", r"\boxed{x}"),
        (r"\sqrt{x}", r"\boxed{\sqrt{y}}"),
        (r"\sqrt{n + 1}", r"\boxed{\sqrt{n} + 1}"),
        ("10, 4, 2", "4, 12, 2"),
        ("5x - 7y + 11z + 4 = 0", r"\boxed{x + y - z + 2 = 0}"),
        ("73", "I have no idea."),
        ("73", ""),
    ],
)
def test_R34_what_is_not_equal_is_not(gold: str, text: str) -> None:
    assert equal(gold, text) is False


def test_R34_the_extracted_answer_is_shown() -> None:
    found = compare(["1/2"], r"First $\frac{1}{3}$, then $\boxed{\frac{2}{4}}$.", precision=6, set_relations=False)
    assert found == Comparison(True, r"\frac{2}{4}")
    assert compare(["1/2"], "nothing", precision=6, set_relations=False) == Comparison(False, "")


def test_any_of_several_gold_answers_is_right() -> None:
    assert compare(["1", "2"], r"\boxed{2}", precision=6, set_relations=False).right is True


def test_a_gold_answer_that_cannot_be_read_gives_no_verdict() -> None:
    assert compare(["$", ""], r"\boxed{2}", precision=6, set_relations=False).right is None


def test_precision_and_set_relations_are_options() -> None:
    matrix = r"$\begin{pmatrix}\frac{1}{3}\\ \frac{1}{5}\end{pmatrix}$"
    rounded = r"$\begin{pmatrix}0.33\\ 0.2\end{pmatrix}$"
    assert (equal(matrix, rounded, precision=2), equal(matrix, rounded)) == (True, False)
    assert equal("$(1,2)$", "$1 < x < 2$", set_relations=True) is True
    assert equal("$(1,2)$", "$1 < x < 2$") is False
