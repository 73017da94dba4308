"""A user's function: how it is called, and what becomes of every value it may return."""

from __future__ import annotations

import math
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from humanline.errors import ConfigError
from humanline.score import Function, Item, Verdict
from humanline.score.function import FunctionScorer, as_verdict

TURNS = ({"role": "user", "content": "2 + 2?"},)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module of reward functions and gives the import path of one."""

    def write(code: str, name: str = "reward") -> str:
        (tmp_path / "my_rewards.py").write_text(textwrap.dedent(code))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
        return f"my_rewards:{name}"

    return write


def scorer(path: str, **settings: Any) -> FunctionScorer:
    return FunctionScorer(Function(path=path, **settings))


def group(*completions: str, prompt: Any = "2 + 2?", **columns: Any) -> list[Item]:
    return [Item(prompt, completion, row=columns) for completion in completions]


# How it is called


def test_once_per_completion(module: Any) -> None:
    path = module("def reward(prompt, completion, answer):\n    return float(completion == answer) + len(prompt) / 100\n")
    assert scorer(path).score([*group("4", "5", answer="4"), *group("7", prompt="3+4", answer="7")]) == [1.06, 0.06, 1.03]


def test_once_per_prompt(module: Any) -> None:
    path = module(
        """
        CALLS = []
        def reward(prompt, completions, answer):
            CALLS.append((prompt, completions, answer))
            return [completions.count(each) for each in completions]
        """
    )
    made = scorer(path)
    assert made.score([*group("4", "5", "4", answer="4"), *group("7", prompt="3+4", answer="7")]) == [2, 1, 2, 1]
    assert sys.modules["my_rewards"].CALLS == [("2 + 2?", ["4", "5", "4"], "4"), ("3+4", ["7"], "7")]


def test_in_the_form_of_trl(module: Any) -> None:
    path = module(
        """
        CALLS = []
        def reward(prompts, completions, answer, **kwargs):
            CALLS.append((prompts, completions, answer, kwargs))
            return [float(text == gold) for text, gold in zip(completions, answer)]
        """
    )
    assert scorer(path).score(group("4", "5", answer="4", level=2)) == [1.0, 0.0]
    kwargs = {"level": [2, 2], "prompt_tail": ["", ""], "finished": [None, None]}
    assert [(["2 + 2?"] * 2, ["4", "5"], ["4", "4"], kwargs)] == sys.modules["my_rewards"].CALLS


def test_trl_reads_conversational_completions_as_messages(module: Any) -> None:
    path = module("def reward(completions, **kwargs):\n    return [len(each[0]['content']) for each in completions]\n")
    assert scorer(path).score(group("four", prompt=TURNS)) == [4.0]


def test_R28_the_function_gets_what_the_prompt_prefilled(module: Any) -> None:
    path = module(
        "def reward(completion, prompt_tail, finished):\n    return float((prompt_tail + completion).count('<think>')) + finished\n"
    )
    items = [Item(TURNS, "2+2\n</think>\n4", "<think>\n", finished=True), Item(TURNS, "4", finished=False)]
    assert scorer(path).score(items) == [2.0, 0.0]


def test_the_same_prompt_with_another_column_is_another_call(module: Any) -> None:
    path = module("def reward(prompt, completions, answer):\n    return [float(each == answer) for each in completions]\n")
    assert scorer(path).score([*group("4", answer="4"), *group("4", answer="5")]) == [1.0, 0.0]


def test_a_function_may_not_change_what_others_see(module: Any) -> None:
    path = module(
        "def reward(prompt, completion):\n    prompt[0]['content'] = 'x'\n    prompt.append('y')\n    return len(prompt)\n"
    )
    assert scorer(path).score(group("a", "b", prompt=TURNS)) == [2.0, 2.0]
    assert TURNS == ({"role": "user", "content": "2 + 2?"},)


def test_a_file_will_do_and_its_code_is_among_the_facts(tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text("def reward(completion):\n    return 1\n")
    first = scorer(f"{file}:reward")
    assert (first.label, first.score([Item("", "x")])) == ("reward", [1.0])
    file.write_text("def reward(completion):\n    return 2  # edited\n")
    assert scorer(f"{file}:reward").facts() != first.facts()


# What it returns


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (1, Verdict(1.0)),
        (True, Verdict(1.0)),
        (False, Verdict(0.0)),
        (np.float32(0.5), Verdict(0.5)),
        (np.int64(2), Verdict(2.0)),
        (torch.tensor(0.25), Verdict(0.25)),
        (None, Verdict(None, "None")),
        (math.nan, Verdict(None, "NaN")),
        (np.float64("nan"), Verdict(None, "NaN")),
        (-math.inf, Verdict(None, "infinite")),
        (10**400, Verdict(None, "infinite")),
        ("1.0", Verdict(None, "not a number", "returned text ('1.0')")),
        ([1.0], Verdict(None, "not a number", "returned a list ([1.0])")),
        (torch.tensor([1.0]), Verdict(None, "not a number", "returned a list ([1.0])")),
        (1j, Verdict(None, "not a number", "returned a complex (1j)")),
    ],
)
def test_R26_only_a_finite_number_is_a_score(value: object, verdict: Verdict) -> None:
    assert as_verdict(value) == verdict


@pytest.mark.parametrize(
    ("returned", "why", "note"),
    [
        ("[1.0]", "wrong number of values", "returned 1 values for 2 completions"),
        ("[1.0] * 3", "wrong number of values", "returned 3 values for 2 completions"),
        ("0.5", "no list of values", "returned a number (0.5)"),
        ("None", "no list of values", "returned null (None)"),
        ("'ab'", "no list of values", "returned text ('ab')"),
        ("{0: 1.0, 1: 2.0}", "no list of values", "returned an object ({0: 1.0, 1: 2.0})"),
    ],
)
def test_R26_a_list_of_another_length_scores_nothing(module: Any, returned: str, why: str, note: str) -> None:
    path = module(f"def reward(completions, **kwargs):\n    return {returned}\n")
    assert scorer(path).verdicts(group("4", "5")) == [Verdict(None, why, note)] * 2


def test_R26_arrays_and_tensors_are_lists(module: Any) -> None:
    path = module("import numpy, torch\ndef reward(completions):\n    return numpy.array([1.0, numpy.nan])\n")
    assert scorer(path).verdicts(group("4", "5")) == [Verdict(1.0), Verdict(None, "NaN")]


def test_R26_an_exception_concerns_its_own_call(module: Any) -> None:
    path = module("def reward(completion):\n    return 1 / len(completion)\n")
    good, bad, other = scorer(path).verdicts(group("four", "", "4"))
    assert (good.score, bad.score, other.score) == (0.25, None, 1.0)
    assert (bad.why, bad.note) == ("raised", "ZeroDivisionError: division by zero (my_rewards.py:2)")
    assert isinstance(bad.error, ZeroDivisionError)


def test_R26_an_exception_for_one_prompt_leaves_the_others(module: Any) -> None:
    path = module("def reward(prompts, completions):\n    return [1 / len(prompt) for prompt in prompts]\n")
    verdicts = scorer(path).verdicts([*group("a", "b", prompt=""), *group("c", prompt="four")])
    assert [verdict.score for verdict in verdicts] == [None, None, 0.25]


def test_a_column_that_the_function_needs_and_the_row_lacks(module: Any) -> None:
    path = module("def reward(completion, answer, level=1):\n    return level\n")
    verdicts = scorer(path).verdicts([*group("4", target="4"), *group("4", answer="4")])
    assert verdicts == [Verdict(None, "no such column", "my_rewards:reward needs 'answer' (columns: target)"), Verdict(1.0)]


# What cannot be a reward function


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def reward(text):\n    return 1\n", r"has the parameters text: expected one named completion or completions"),
        ("def reward(completion, completions):\n    return 1\n", r"expected one named completion or completions"),
        ("def reward(completion, /):\n    return 1\n", r"parameter 'completion' is positional only"),
        ("async def reward(completion):\n    return 1\n", r"is an async function: expected a plain one"),
        ("reward = 3\n", r"is a number: expected a function"),
        ("def rewards(completion):\n    return 1\n", r"my_rewards\.py defines no 'reward'\. Did you mean 'rewards'\?"),
        ("import no_such_module\n", r"cannot be imported: No module named 'no_such_module'\. Is its folder on PYTHONPATH\?"),
    ],
)
def test_what_is_no_reward_function_is_refused_before_anything_is_scored(module: Any, code: str, message: str) -> None:
    path = module(code)
    with pytest.raises(ConfigError, match=message):
        Function(path=path).build()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", r"scorer\.path is '': expected 'package\.module:function'"),
        ("module", r"scorer\.path is 'module': expected 'package\.module:function'"),
        ("nowhere.py:reward", r"there is no file /.*nowhere\.py\."),
    ],
)
def test_a_path_that_leads_nowhere(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Function(path=path).build()
