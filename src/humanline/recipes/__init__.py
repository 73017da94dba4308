"""The packaged recipes: YAML files beside this one. Listing them needs nothing but the standard library."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> tuple[str, ...]:
    """What `humanline train` takes as RECIPE besides a path, in alphabetical order."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def path(name: str) -> Path:
    """The file of a packaged recipe."""
    return FOLDER / f"{name}.yaml"


def summary(name: str) -> str:
    """Its first line, a comment that says what it does."""
    with path(name).open(encoding="utf-8") as lines:
        return lines.readline().lstrip("# ").rstrip()
