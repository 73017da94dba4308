"""A small micro-batch in float64 that suits every objective."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from humanline.objectives import Facts, Objective

LENGTHS = {"pair": [3, 2, 4, 1], "label": [3, 1, 4], "group": [3, 2, 4, 1, 2, 3], "chat": [3, 4]}
GROUPS = {"pair": [0, 0, 1, 1], "label": [0, 1, 2], "group": [0, 0, 0, 1, 1, 2], "chat": [0, 1]}
FEEDBACK = {"pair": [1, 0, 1, 0], "label": [1, 0, 1], "group": [0.2, 1.0, 0.5, -1.0, 2.0, 0.3], "chat": [1, 1]}

MakeFacts = Callable[..., Facts]


@pytest.fixture
def make_facts() -> MakeFacts:
    """Facts of the small micro-batch: `make_facts(objective, log_ratio_BT=…, kl=…)`."""

    def make(
        objective: Objective, log_ratio_BT: Tensor | None = None, kl: float = 0.0, dtype: torch.dtype = torch.float64
    ) -> Facts:
        lengths_B1 = torch.tensor(LENGTHS[objective.kind])[:, None]
        mask_BT = torch.arange(int(lengths_B1.max())) < lengths_B1
        return Facts(
            mask_BT,
            torch.tensor(GROUPS[objective.kind]),
            torch.tensor(FEEDBACK[objective.kind], dtype=dtype),
            torch.zeros(mask_BT.shape, dtype=dtype) if log_ratio_BT is None else log_ratio_BT,
            torch.tensor(kl, dtype=dtype),
        )

    return make
