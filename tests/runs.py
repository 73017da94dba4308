"""Runs in tests: rows to train on, what a run left behind, equality bit for bit, and a stop at a chosen step."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from humanline.loop import Loop

WORDS = ["so", "be it", "3+4=7", "no.", "a b c", "why", "1/2", "ok then", "yes, yes", "x"]


def write_rows(path: Path, kind: str, count: int = 14, seed: int = 0) -> str:
    """Rows of uneven lengths in the plainest shape of their kind."""
    rng = random.Random(seed)

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 4)))

    rows = []
    for number in range(count):
        prompt = f"{number}: {text()} "
        if kind == "pair":
            rows.append({"prompt": prompt, "chosen": text(), "rejected": text()})
        elif kind == "label":
            rows.append({"prompt": prompt, "completion": text(), "label": rng.random() < 0.5})
        elif kind == "group":
            rows.append(
                {"prompt": prompt, "completions": [text() for _ in range(3)], "rewards": [rng.random() for _ in range(3)]}
            )
        else:
            rows.append({"prompt": prompt, "completion": text()})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def lines(out: str | Path) -> list[dict]:
    """metrics.jsonl without what depends on the clock."""
    rows = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in ("seconds", "tokens_per_second")} for row in rows]


def weights(out: str | Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(Path(out) / "final").state_dict()


def assert_same_run(first: str | Path, second: str | Path) -> None:
    """Equal metrics and equal weights, bit for bit."""
    assert lines(first) == lines(second)
    ours, theirs = weights(first), weights(second)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


class Stop(Exception):
    """The test pulls the plug."""


def stop_before(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the process die at the beginning of a step."""
    real = Loop.step

    def fragile(self: Loop, t: int) -> dict:
        if t == step:
            raise Stop
        return real(self, t)

    monkeypatch.setattr(Loop, "step", fragile)
