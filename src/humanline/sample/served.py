"""The policy of a training run, sampled by a server: its weights are handed over by path before each window.

Windows are sparse, so writing the weights to disk costs little beside the sampling.
"""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from humanline.errors import ServerError
from humanline.sample.remote import OpenAISampler
from humanline.sample.sampler import Sampled
from humanline.sample.settings import SampleConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from humanline.config import RolloutConfig


class ServedPolicy:
    """A `Sampler` that first gives the server the weights of the moment."""

    def __init__(
        self,
        settings: RolloutConfig,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: Sequence[int],
        folder: Path,
    ) -> None:
        """folder: where the weights are written for the server, which must see the same path."""
        self._settings, self._model, self._tokenizer, self._eos_ids = settings, model, tokenizer, tuple(eos_ids)
        self._folder = folder
        self._handed = 0

    def sample(
        self, prompts: Sequence[np.ndarray], *, numbers: Sequence[int], settings: SampleConfig
    ) -> Iterator[tuple[int, tuple[Sampled, ...]]]:
        """See `Sampler`."""
        weights = self._hand_over()
        server = self._settings.server
        named = replace(server, model=str(weights)) if self._settings.handover == "name" else server
        sampler = OpenAISampler(named, self._tokenizer, self._eos_ids)
        try:
            yield from sampler.sample(prompts, numbers=numbers, settings=settings)
        finally:
            sampler.close()

    def provenance(self, settings: SampleConfig) -> dict[str, Any]:
        """The server and how it got the policy."""
        return {"backend": "openai", "server": self._settings.server.url, "handover": self._settings.handover}

    def _hand_over(self) -> Path:
        """Write the weights beside the rollouts, tell the server, and remove the ones before."""
        before = self._path(self._handed)
        self._handed += 1
        weights = self._path(self._handed)
        self._model.save_pretrained(weights)
        self._tokenizer.save_pretrained(weights)
        if self._settings.handover == "sglang":
            _post(self._settings.server.url.removesuffix("/v1") + "/update_weights_from_disk", {"model_path": str(weights)})
        shutil.rmtree(before, ignore_errors=True)
        return weights

    def _path(self, number: int) -> Path:
        return self._folder.resolve() / f"policy-{number:06d}"


def _post(url: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as reply:
            answer = json.loads(reply.read() or b"{}")
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise ServerError(
            f"{url} did not take the policy's weights: {error}. Is the server up, and does it see the run directory?"
        ) from error
    if isinstance(answer, dict) and answer.get("success") is False:
        raise ServerError(f"{url} refused the policy's weights: {answer.get('message', 'no reason given')}.")
