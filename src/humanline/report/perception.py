"""RUN/perception.json: capacity curves, on the axes of `humanline.prospect.Curve`.

    {"format": "humanline-perception-1",
     "curves": [{"name": "human", "objective": [0.0, …, 1.0], "perceived": [0.0, …, 1.0]},
                {"name": "offline", "objective": […], "perceived": […], "kl": 0.21, "bound": 1.3}, …]}

`objective` ascends from 0 to 1 and `perceived` never falls; `kl` (nats) and `bound` (δ of Proposition 3.4) may be left out. Names are
free; a curve named `human` is what the others are held against.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from humanline.errors import DataError
from humanline.report.elements import Axis, Chart, Table, numbers, show

POINTS = 400
"""of a curve, at most, in a figure; curves never fall, so what lies between two points lies between their values"""
Share = Annotated[float, Field(ge=0, le=1 + 1e-9)]


class NamedCurve(BaseModel):
    """One line of the figure."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    name: Annotated[str, Field(min_length=1)]
    objective: Annotated[list[Share], Field(min_length=2)]
    perceived: Annotated[list[Share], Field(min_length=2)]
    kl: float | None = None
    """KL(ω‖Q), nats"""
    bound: float | None = None
    """δ of Proposition 3.4"""

    @model_validator(mode="after")
    def _rising(self) -> NamedCurve:
        if len(self.objective) != len(self.perceived):
            raise ValueError(f"{len(self.objective)} objective and {len(self.perceived)} perceived shares: expected as many")
        for axis in (self.objective, self.perceived):
            if any(later < earlier - 1e-9 for earlier, later in pairwise(axis)):
                raise ValueError("shares fall along the curve: expected cumulative ones")
        return self


class Perception(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(extra="forbid", strict=True)
    format: Literal["humanline-perception-1"] = "humanline-perception-1"
    curves: Annotated[list[NamedCurve], Field(min_length=1)]


class Distance(NamedTuple):
    """Largest vertical distance between two curves, and where."""

    value: float
    at: float


def write_perception(
    run: Path, curves: Mapping[str, tuple[object, object]], measures: Mapping[str, tuple[float, float]] | None = None
) -> Path:
    """Write RUN/perception.json from `prospect.Curve`s by name, and by name (kl, bound) where they were measured."""
    named = []
    for name, (objective, perceived) in curves.items():
        kl, bound = (measures or {}).get(name, (None, None))
        shares = [np.asarray(axis, float).tolist() for axis in (objective, perceived)]
        named.append(NamedCurve(name=name, objective=shares[0], perceived=shares[1], kl=kl, bound=bound))
    path, partial = run / "perception.json", run / ".perception.json.partial"
    partial.write_text(Perception(curves=named).model_dump_json() + "\n", encoding="utf-8")
    os.replace(partial, path)
    return path


def read_perception(path: Path) -> Perception:
    """Raises `DataError` that names what is wrong and where."""
    try:
        return Perception.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the document"
        raise DataError(
            f'{path}: {place}: {first["msg"]}. Expected {{"format": "humanline-perception-1", "curves": […]}}; see docs/reporting.md.'
        ) from error


def distance(curve: NamedCurve, other: NamedCurve) -> Distance:
    """max |difference| at the points of either curve."""
    at = np.union1d(curve.objective, other.objective)
    gap = np.abs(np.interp(at, curve.objective, curve.perceived) - np.interp(at, other.objective, other.perceived))
    return Distance(float(gap.max()), float(at[gap.argmax()]))


def capacity_chart(perception: Perception, of: str) -> Chart:
    """All curves over the diagonal, which is objective perception."""
    traces = [
        {"name": "objective", "line": "guide", "series": -1, "dash": 2, "x": [0, 1], "y": [0, 1]},
        *(_trace(curve, number) for number, curve in enumerate(perception.curves)),
    ]
    human = next((curve for curve in perception.curves if curve.name == "human"), None)
    rows = []
    for curve in perception.curves:
        away = distance(curve, human) if human and curve is not human else None
        rows.append(
            (
                curve.name,
                str(len(curve.objective)),
                show(away.value, 3) if away else "–",
                show(away.at, 2) if away else "–",
                show(curve.kl, 3),
                show(curve.bound, 3),
            )
        )
    columns = ("curve", "points", "largest distance from human", "at objective mass", "KL, nats", "bound δ (Prop. 3.4)")
    title = f"Capacity curves: {of}"
    return Chart(
        title,
        "unit-square",
        Axis("objective cumulative mass P(Z ≤ z)"),
        Axis("perceived cumulative mass"),
        tuple(traces),
        Table(title, columns, tuple(rows)),
        "The policy's own samples give the diagonal. A sampler worse than the policy lies above it, a better one below.",
    )


def _trace(curve: NamedCurve, number: int) -> dict[str, object]:
    kept = np.unique(np.linspace(0, len(curve.objective) - 1, min(POINTS, len(curve.objective))).round().astype(int))
    x, y = (numbers(np.asarray(axis)[kept]) for axis in (curve.objective, curve.perceived))
    return {"name": curve.name, "line": "only", "series": number, "dash": 1 if curve.name == "human" else 0, "x": x, "y": y}
