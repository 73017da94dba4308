"""The reference is numbers, not a model: token log-probs under the policy as it was at the last sync.

At step t with t % k == 0, before the update, the policy itself scores the batches of steps t+1 … t+k; training only looks the
numbers up. The same happens before step 1. A reference that never moves (k = ∞) is one scoring pass over the data. METHOD §3.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from humanline.data.batch import MicroBatch, collate
from humanline.errors import CheckpointError

FORMAT = "humanline-logps-1"
Numbers = dict[bytes, np.ndarray]
"""content address of a sequence → float32 log-probs of its completion tokens, nats, 0 where not trained"""
Score = Callable[[list[MicroBatch]], list[Tensor]]
"""logp_BT of each micro-batch under the current weights, no gradient, on any device"""


class Reference:
    """Token log-probs of the reference policy for the steps up to the next sync."""

    def __init__(self, sync_every: int | None) -> None:
        self.sync_every = sync_every
        self.numbers: Numbers = {}
        self.synced_before = 1
        """the reference holds the weights that the policy had before this step's update"""

    @property
    def state(self) -> tuple[Numbers, int]:
        """All that the next step depends on."""
        return self.numbers, self.synced_before

    @state.setter
    def state(self, state: tuple[Numbers, int]) -> None:
        self.numbers, self.synced_before = state

    def due(self, t: int) -> bool:
        """Whether the reference is re-set at step t, before its update."""
        return self.sync_every is not None and t % self.sync_every == 0

    def window(self, first: int, horizon: int) -> range:
        """Steps from `first` on that the reference of step `first` serves, as far as data is known: up to the next sync."""
        if self.sync_every is None:
            return range(first, horizon + 1)
        return range(first, min(-(-first // self.sync_every) * self.sync_every, horizon) + 1)

    def sync(self, steps: Iterable[list[MicroBatch]], score: Score, *, before: int, keep: bool = False) -> None:
        """Take the current policy, which has not done the update of step `before` yet, as the reference.

        Scores the steps' micro-batches, and forgets the old numbers unless `keep`.
        """
        fresh: Numbers = dict(self.numbers) if keep else {}
        for micro_batches in steps:
            missing = [part for micro_batch in micro_batches if (part := _without(micro_batch, fresh))]
            for part, logp_BT in zip(missing, score(missing), strict=True):
                fresh.update(_rows(part, logp_BT))
        self.numbers = fresh
        self.synced_before = before

    def age(self, t: int) -> int:
        """Updates between the reference and the policy at step t."""
        return t - self.synced_before

    def logps(self, micro_batch: MicroBatch) -> Tensor:
        """ref_logp_BT, float32 on the CPU; 0 on padding."""
        ref_BT = np.zeros(tuple(micro_batch.mask_BT.shape), np.float32)
        for b, sequence in enumerate(micro_batch.sequences):
            values = self.numbers.get(sequence.key)
            if values is None:
                raise CheckpointError(
                    f"data row {sequence.row + 1} has no reference log-probs: they were computed for other rows or another order of "
                    "them. Restore the data and settings that the run was started with, or start a new run."
                )
            ref_BT[b, : len(values)] = values
        return torch.from_numpy(ref_BT)


def _without(micro_batch: MicroBatch, known: Numbers) -> MicroBatch | None:
    """The bundles that have a sequence without numbers: usually all, and then the very batch that will be trained on."""
    missing = [bundle for bundle in micro_batch.bundles if any(sequence.key not in known for sequence in bundle)]
    if len(missing) == len(micro_batch.bundles):
        return micro_batch
    return collate(missing) if missing else None


def _rows(micro_batch: MicroBatch, logp_BT: Tensor) -> Iterator[tuple[bytes, np.ndarray]]:
    values_BT = logp_BT.detach().float().cpu().numpy()
    for b, sequence in enumerate(micro_batch.sequences):
        yield sequence.key, values_BT[b, : len(sequence.completion.ids)].copy()


def save_numbers(path: Path, numbers: Numbers) -> None:
    """Write to a safetensors file, atomically."""
    keys = list(numbers)
    tensors = {
        "keys": np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), 32).copy(),
        "lengths": np.array([len(numbers[key]) for key in keys], np.int64),
        "logps": np.concatenate([numbers[key] for key in keys]) if keys else np.zeros(0, np.float32),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(tensors, partial, metadata={"format": FORMAT})
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def load_numbers(path: Path, move: str = "Delete the file to have them computed again.") -> Numbers:
    """What `save_numbers` wrote. A missing or damaged file is a `CheckpointError` that ends with what to do, `move`."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            keys, lengths, logps = (file.get_tensor(name) for name in ("keys", "lengths", "logps"))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: reference log-probs cannot be read ({error}). {move}") from error
    if metadata.get("format") != FORMAT or lengths.sum() != len(logps) or keys.shape != (len(lengths), 32):
        raise CheckpointError(f"{path}: not a file of reference log-probs. {move}")
    pieces = np.split(logps, np.cumsum(lengths)[:-1]) if len(lengths) else []
    return {key.tobytes(): piece for key, piece in zip(keys, pieces, strict=True)}
