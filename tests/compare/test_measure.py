"""What is measured of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from humanline.compare.measure import MeasuringFunction, newest
from humanline.errors import ConfigError, DataError

FUNCTIONS = """
import math
import numpy, torch

def good(run_dir):
    return {"files": len(list(run_dir.iterdir())), "half": numpy.float32(0.5), "two": torch.tensor(2)}

def nothing(run_dir):
    return {}

def number(run_dir):
    return 3.0

def nan(run_dir):
    return {"score": math.nan}

def text(run_dir):
    return {"score": "0.5"}

def fact(run_dir):
    return {"seconds": 1.0}

def two(run_dir, other):
    return {}

constant = 3
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "measures.py").write_text(FUNCTIONS)
    return tmp_path / "measures.py"


def test_numbers_of_any_kind_become_floats(path: Path, tmp_path: Path) -> None:
    found = MeasuringFunction.of(f"{path}:good").call(tmp_path)
    assert found == {"files": 1.0, "half": 0.5, "two": 2.0} and {type(value) for value in found.values()} == {float}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "returned {}: expected {metric: number} with at least one metric."),
        ("number", "returned 3.0: expected {metric: number}"),
        ("nan", "score is nan: expected a finite number."),
        ("text", "score is '0.5': expected a finite number."),
        ("fact", "returned a metric named 'seconds': expected text, and none of method, seed"),
    ],
)
def test_anything_else_is_an_error(path: Path, tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(DataError) as error:
        MeasuringFunction.of(f"{path}:{name}").call(tmp_path)
    assert str(error.value).startswith(f"{path}:{name}") and message in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two", "cannot be called with a run directory (missing a required argument: 'other'): expected def f(run_dir)."),
        ("goood", "defines no 'goood'. Did you mean 'good'?"),
        ("constant", "is a number: expected a function."),
    ],
)
def test_a_function_that_cannot_measure_is_found_before_anything_runs(path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        MeasuringFunction.of(f"{path}:{name}")
    assert str(error.value).startswith(f"measure '{path}:{name}'") and str(error.value).endswith(message)


def test_a_function_that_is_edited_meanwhile_does_not_measure(path: Path, tmp_path: Path) -> None:
    function = MeasuringFunction.of(f"{path}:good")
    path.write_text(FUNCTIONS.replace("0.5", "0.6"))
    with pytest.raises(DataError, match=r"measures.py:good was edited while the comparison ran. Run it again"):
        function.call(tmp_path)


def test_the_newest_value_of_each_metric_and_its_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 1, "loss": 0.5, "rollout_reward": 0.1}\n{"step": 2, "loss": 0.4, "eval_loss": null}\n{"step": 3, "loss": 0.3}\n'
    )
    assert newest(path, ("loss", "rollout_reward")) == ({"loss": 0.3, "rollout_reward": 0.1}, {"loss": 3, "rollout_reward": 1})
    with pytest.raises(DataError, match=r"metrics.jsonl has no eval_los. Did you mean 'eval_loss'\? Expected one of step, loss"):
        newest(path, ("eval_los",))
    with pytest.raises(DataError, match=r"has no finite eval_loss: in step 2 it was infinite or NaN. The run has diverged."):
        newest(path, ("eval_loss",))
