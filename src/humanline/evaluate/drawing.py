"""Completions for an evaluation, drawn by `humanline.sample` from a file of prompts that is kept beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from humanline.errors import CheckpointError
from humanline.evaluate.config import AnswersConfig, WinRateConfig
from humanline.sample.config import PromptConfig, SampleRunConfig

DRAWING = ("data", "model", "backend", "device", "sample", "load", "server", "engine")
"""settings that only completions drawn here have"""


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """JSON lines; a reader sees the old file or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}. Choose another --out.") from error


def draw(config: AnswersConfig | WinRateConfig, prompts: Path, samples: Path, say: Callable[[str], None]) -> None:
    """Fill `samples` with the completions of `prompts`, or what is missing of them.

    A prompt that does not fit into the model is an error: an evaluation on the others would be another one.
    """
    if samples.exists():
        say(f"{samples} is complete")
        return
    from humanline.sample.run import sample

    sample(
        SampleRunConfig(
            data=str(prompts),
            model=config.model,
            out=str(samples),
            backend=config.backend,
            resume=config.resume,
            device=config.device,
            sample=config.sample,
            rows=PromptConfig(template=config.rows.template, too_long="error"),
            load=config.load,
            server=config.server,
            engine=config.engine,
        ),
        say,
    )
