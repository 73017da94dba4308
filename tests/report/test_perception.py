"""perception.json: what may stand in it, what is drawn of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from humanline.errors import DataError
from humanline.prospect import Curve, human_curve, implied_capacity
from humanline.report.perception import POINTS, NamedCurve, capacity_chart, distance, read_perception, write_perception


def test_curves_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    outcomes = np.random.default_rng(0).normal(size=50)
    curves = {"human": human_curve(outcomes), "offline": implied_capacity(outcomes, outcomes - 1)}
    read = read_perception(write_perception(tmp_path, curves, {"offline": (0.25, 1.5)}))
    assert [curve.name for curve in read.curves] == ["human", "offline"]
    for curve in read.curves:
        assert np.array_equal(curve.objective, curves[curve.name].objective) and np.array_equal(
            curve.perceived, curves[curve.name].perceived
        )
    assert [(curve.kl, curve.bound) for curve in read.curves] == [(None, None), (0.25, 1.5)]


def test_distance_from_the_human_curve_by_hand() -> None:
    """Human through (0.5, 0.25), offline through (0.25, 0.75): at 0.25 they are 0.75 − 0.125 = 0.625 apart, at 0.5 only 0.8333 − 0.25."""
    human = NamedCurve(name="human", objective=[0, 0.5, 1], perceived=[0, 0.25, 1])
    offline = NamedCurve(name="offline", objective=[0, 0.25, 1], perceived=[0, 0.75, 1])
    assert distance(offline, human) == distance(human, offline) == (0.625, 0.25)


def test_the_figure_keeps_both_ends_of_a_long_curve(tmp_path: Path) -> None:
    long = Curve(np.linspace(0, 1, 5001), np.linspace(0, 1, 5001) ** 2)
    chart = capacity_chart(read_perception(write_perception(tmp_path, {"offline": long})), "run")
    trace = chart.traces[1]
    assert len(trace["x"]) == POINTS and (trace["x"][0], trace["x"][-1], trace["y"][-1]) == (0, 1, 1)
    assert np.allclose(np.square(trace["x"]), trace["y"], atol=1e-5)
    assert chart.table.rows == (("offline", "5001", "–", "–", "–", "–"),), "no human curve to be held against"


CURVE = {"name": "human", "objective": [0.0, 1.0], "perceived": [0.0, 1.0]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "perception.json: the document: Invalid JSON"),
        (json.dumps({"format": "humanline-perception-1", "curves": []}), "perception.json: curves: List should have at least 1 item"),
        (json.dumps({"format": "other", "curves": [CURVE]}), "perception.json: format: Input should be 'humanline-perception-1'"),
        (json.dumps({"curves": [CURVE | {"colour": "red"}]}), "perception.json: curves.0.colour: Extra inputs are not permitted"),
        (json.dumps({"curves": [CURVE | {"objective": [0.0, 1.5]}]}), "curves.0.objective.1: Input should be less than or equal to 1"),
        (json.dumps({"curves": [CURVE | {"objective": [0.0, 0.5, 1.0]}]}), "3 objective and 2 perceived shares: expected as many"),
        (json.dumps({"curves": [CURVE | {"perceived": [1.0, 0.0]}]}), "shares fall along the curve: expected cumulative ones"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "perception.json").write_text(content)
    with pytest.raises(DataError) as error:
        read_perception(tmp_path / "perception.json")
    assert message in str(error.value) and "docs/reporting.md" in str(error.value)
