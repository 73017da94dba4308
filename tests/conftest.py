"""What all tests share: shapes checked at run time, one thread, fixed seeds, tiny models, real data where it lies."""

from __future__ import annotations

import os
from pathlib import Path

# Nothing may be fetched, and parallel tokenizers or many threads only add noise on small machines.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from jaxtyping import install_import_hook

# Before anything imports these modules: annotations such as Float[Tensor, "B T"] are then checked at every call.
install_import_hook(
    ["humanline.limit", "humanline.objectives", "humanline.token_logps", "humanline.embedded.score", "humanline.sample.draw"],
    "beartype.beartype",
)

import hypothesis
import pytest

pytest.register_assert_rewrite("runs", "contests", "judging", "comparison")

import torch

# The same examples every time, and no time limit for one: a busy machine must not fail a test.
hypothesis.settings.register_profile("humanline", deadline=None, derandomize=True)
hypothesis.settings.load_profile("humanline")


@pytest.fixture(autouse=True)
def _deterministic() -> None:
    """Every test starts from the same state, whatever ran before it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def real_data() -> Path:
    """The folder of real feedback files; its tests are skipped where it is not named."""
    folder = os.environ.get("HUMANLINE_REAL_DATA")
    if not folder:
        pytest.skip("HUMANLINE_REAL_DATA does not name a folder of real feedback files")
    assert Path(folder).is_dir(), f"HUMANLINE_REAL_DATA is {folder!r}, which is no folder"
    return Path(folder)
