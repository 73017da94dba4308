"""What was unusual about the rows but usable: counted, never hidden."""

from __future__ import annotations

from dataclasses import dataclass, field

from humanline.data.rows import Place

PLACES_KEPT = 3


@dataclass(slots=True)
class Count:
    """How often something was seen, and where first."""

    rows: int = 0
    places: list[Place] = field(default_factory=list)
    """of the first rows, at most `PLACES_KEPT`"""


@dataclass(frozen=True)
class Notes:
    """Filled while rows are read; the trainer prints `lines()`."""

    counts: dict[str, Count] = field(default_factory=dict)

    def add(self, name: str, place: Place) -> None:
        """Count one more row under `name`."""
        count = self.counts.setdefault(name, Count())
        count.rows += 1
        if len(count.places) < PLACES_KEPT:
            count.places.append(place)

    def lines(self) -> list[str]:
        """One line per counter, e.g. `identical chosen and rejected: 2 rows (first train.jsonl:7)`."""
        return [
            f"{name}: {count.rows} row{'s' if count.rows > 1 else ''} (first {count.places[0]})"
            for name, count in self.counts.items()
        ]
