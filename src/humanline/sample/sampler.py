"""The protocol between whoever needs completions (the verb, a training run) and whatever draws them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np

from humanline import __version__
from humanline.sample.config import SampleConfig


@dataclass(frozen=True)
class Sampled:
    """One completion. T tokens, the end-of-sequence token included where there is one."""

    token_ids: np.ndarray | None
    """int32 [T]; None = the server gave none"""
    logps: np.ndarray | None
    """float32 [T], nats, under `SampleConfig.transform`; a server's as `ServerConfig.logprobs` says; None = it gave none"""
    finished: bool
    """False: cut by the length limit"""
    text: str | None = None
    """as the server wrote it, without the end of sequence; None = it follows from `token_ids`"""


class Sampler(Protocol):
    """Draws completions. What is drawn depends on (prompt, number, seed, settings), not on batch mates or order."""

    def sample(
        self, prompts: Sequence[np.ndarray], *, numbers: Sequence[int], settings: SampleConfig
    ) -> Iterator[tuple[int, tuple[Sampled, ...]]]:
        """(index into `prompts`, its `settings.n` completions), in any order, each as soon as it is complete.

        prompts: int32 token ids, each not empty. numbers: of each prompt in its data, which choose its random streams.
        """
        ...

    def provenance(self, settings: SampleConfig) -> dict[str, Any]:
        """What drew the completions and what their log-probs mean, as JSON."""
        ...


def versions(*packages: str) -> dict[str, str]:
    """The entry `versions` of a provenance."""
    return {"humanline": __version__, **{package: version(package) for package in packages}}


def logprobs_meaning(transform: tuple[float, float] | None) -> dict[str, float] | None:
    """The entry `logprobs` of a provenance: {temperature, top_p} that they are taken under; None = there are none."""
    return None if transform is None else {"temperature": transform[0], "top_p": transform[1]}
