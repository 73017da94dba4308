"""The flags of `humanline compare`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from humanline.compare.study import Study
from humanline.compare.study_file import load_study


@dataclass(frozen=True)
class CompareConfig:
    """`humanline compare`."""

    study: str
    """YAML file of methods, seeds, measures and claims"""
    out: str | None = None
    """folder of the comparison; null = the study's `out`"""
    processes: int | None = None
    """runs at the same time; null = the study's `processes`"""

    def load(self) -> Study:
        """The study, with what flags change. Raises `ConfigError`."""
        flags = {name: value for name, value in (("out", self.out), ("processes", self.processes)) if value is not None}
        return dataclasses.replace(load_study(self.study), **flags)  # type: ignore[arg-type]
