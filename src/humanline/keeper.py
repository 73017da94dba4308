"""Saving and restoring a run: everything its next step depends on (humanline.checkpoint has the files)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from humanline import checkpoint
from humanline.config import TrainConfig
from humanline.distributed import Workers
from humanline.errors import CheckpointError
from humanline.loop import Loop
from humanline.reference import load_numbers, save_numbers
from humanline.rundir import RunDirectory, differences, settings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Keeper:
    """Writes and reads the checkpoints of one run."""

    def __init__(
        self,
        config: TrainConfig,
        directory: RunDirectory,
        workers: Workers,
        loop: Loop,
        evaluation: Loop | None,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        names: list[str],
        keys: dict[str, str],
    ) -> None:
        """names: of the parameters in the order of the optimizer's groups. keys: content of the data by its part."""
        self.config, self.directory, self.workers, self.loop, self.evaluation = config, directory, workers, loop, evaluation
        self.model, self.tokenizer, self.names, self.keys = model, tokenizer, names, keys

    def save_model(self, folder: Path, weights: dict[str, Tensor]) -> None:
        self.model.save_pretrained(folder, state_dict=weights)
        self.tokenizer.save_pretrained(folder)

    @property
    def _fixed(self) -> bool:
        """The reference's numbers were all computed before step 1 and lie in the run directory."""
        return self.config.sync_every is None and self.config.sample_every is None

    def _weights(self) -> dict[str, Tensor]:
        return {name.removeprefix("model."): value for name, value in self.workers.state_dict(self.loop.module).items()}

    def save_final(self) -> None:
        weights = self._weights()
        if self.workers.main:
            with checkpoint.atomic_directory(self.directory.path / "final") as folder:
                self.save_model(folder, weights)
        self.workers.barrier()

    def save(self, t: int) -> Path:
        """A checkpoint after step t. Every process takes part in collecting, the main one writes."""
        reference = self.loop.reference
        state = {
            "of": self.loop.last,
            "data": self.keys["data"],
            "held_out": self.keys["held_out"],
            "settings": settings(self.config),
            "synced_before": reference.synced_before if reference else None,
            "versions": {name: version(name) for name in ("torch", "transformers", "accelerate")},
        }
        numbers = {}
        if reference and not self._fixed:
            numbers["reference.safetensors"] = self.workers.union(reference.numbers)
        if self.evaluation and self.evaluation.reference:
            numbers["eval-reference.safetensors"] = self.workers.union(self.evaluation.reference.numbers)
        weights = self._weights()

        def parts(folder: Path) -> None:
            self.save_model(folder, weights)
            for name, part in numbers.items():
                save_numbers(folder / name, part)

        if self.workers.main:
            optimizer = checkpoint.optimizer_tensors(self.loop.optimizer, self.names)
            checkpoint.save(self.directory.path, t, self.config.checkpoint.keep, parts=parts, optimizer=optimizer, state=state)
        self.workers.barrier()
        return checkpoint.path_of(self.directory.path, t)

    def restore(self, say: Callable[[str], None]) -> int:
        """Everything but the weights, which were loaded from the checkpoint already. Returns its step."""
        folder = self.directory.newest
        assert folder is not None
        state, optimizer = checkpoint.load(folder)
        earlier = f"Remove {folder} to resume from an earlier checkpoint."
        if state["data"] != self.keys["data"]:
            raise CheckpointError(
                f"{folder} was trained on other rows than {self.config.data} holds now. Restore the file, or start a new run."
            )
        if state["held_out"] != self.keys["held_out"]:
            raise CheckpointError(
                f"{folder} was evaluated on other rows than {self.config.eval.data or self.config.data} holds now. Restore the file, or "
                "start a new run."
            )
        if changed := differences(state["settings"], settings(self.config)):
            raise CheckpointError(
                f"{folder} was trained with other settings than {self.directory.path / 'config.yaml'} holds now:\n  "
                + "\n  ".join(changed)
                + "\n  Restore them there, or start a new run from the trained weights with --model and another --out."
            )
        if state["of"] != self.loop.last:
            raise CheckpointError(
                f"{folder} belongs to a run of {state['of']} steps, not {self.loop.last}. Start a new run from its weights."
            )
        checkpoint.restore_optimizer(self.loop.optimizer, self.names, optimizer, folder)
        if reference := self.loop.reference:
            gone = "The starting policy is gone by now: start a new run."
            home, way = (self.directory.path, gone) if self._fixed else (folder, earlier)
            reference.state = load_numbers(home / "reference.safetensors", way), state["synced_before"]
        if self.evaluation and self.evaluation.reference:
            self.evaluation.reference.numbers = load_numbers(folder / "eval-reference.safetensors", earlier)
        say(f"resuming {self.directory.path} after step {state['step']} of {self.loop.last}")
        return int(state["step"])
