"""Contests in tests: outputs of a model and its baseline, judges of known taste, and an evaluation of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from humanline.evaluate.config import LengthConfig, WinRateConfig
from humanline.evaluate.contest import WinRateResult, evaluate_win_rate
from humanline.score import Judge
from judge_server import Answer, JudgeServer, says

COUNT = 20
RAW_ONLY = LengthConfig(control=False)


def outputs(generator: str, count: int = COUNT, **changes: Any) -> list[dict[str, Any]]:
    """Lengths differ from one instruction to the next, as real ones do."""
    return [
        {
            "instruction": f"Question {n}?",
            "output": f"{generator} {'x' * (n * len(generator) % 7)}{n}",
            "generator": generator,
            **changes,
        }
        for n in range(count)
    ]


def written(path: Path, rows: Any) -> str:
    path.write_text(json.dumps(rows))
    return str(path)


def shown(body: dict[str, Any]) -> tuple[str, str]:
    """The answers A and B of a request."""
    first, second = re.findall(r'<answer name="[AB]">\n(.*)\n</answer>', body["messages"][0]["content"])
    return first, second


def prefers(letter: str) -> Answer:
    return says(json.dumps({"reason": "so", "better": letter}))


def fair(number: int, body: dict[str, Any]) -> Answer:
    """Prefers the model's output to even questions, the baseline's to odd ones, wherever they stand."""
    first, _ = shown(body)
    even = int(re.findall(r"\d+$", first)[0]) % 2 == 0
    return prefers("A" if first.startswith("model") == even else "B")


def config(folder: Path, server: JudgeServer | None = None, **changes: Any) -> WinRateConfig:
    """Ready outputs against a baseline, by a judge."""
    judge: dict[str, Any] = {"model": "stub", "backoff": 0.01, "retries": 0}
    settings: dict[str, Any] = {
        "outputs": str(folder / "model.json"),
        "baseline": str(folder / "base.json"),
        "out": str(folder / "out"),
        "scorer": Judge(base_url=server.url if server else "http://127.0.0.1:9/v1", **judge),
        "length": LengthConfig(resamples=5),
    }
    for name, generator in (("model.json", "model"), ("base.json", "base")):
        if not (folder / name).exists():
            written(folder / name, outputs(generator))
    return WinRateConfig(**settings | changes)


def evaluated(settings: WinRateConfig) -> tuple[WinRateResult, list[str]]:
    lines: list[str] = []
    return evaluate_win_rate(settings, lines.append), lines


def results(folder: Path, name: str = "results.json") -> Any:
    return json.loads((folder / "out" / name).read_text())
