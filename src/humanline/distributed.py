"""The only module that knows accelerate: devices, processes, and sums over both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import get_available_trackers
from accelerate.utils import ProjectConfiguration, broadcast_object_list, gather_object
from torch import Tensor, nn

from humanline.config import TrainConfig
from humanline.errors import ConfigError


class Workers:
    """The processes of a run, each with one device. With one process every method is the obvious local thing."""

    def __init__(self, config: TrainConfig) -> None:
        if absent := set(config.log.trackers) - {str(tracker) for tracker in get_available_trackers()}:
            tracker = min(absent)
            raise ConfigError(
                f"log.trackers has {tracker}, which is not installed. Run `pip install {tracker}`, or leave it out."
            )
        # A run must not inherit the mixed precision of an earlier one in the same Python process.
        AcceleratorState._reset_state(reset_partial_state=_device_changed(config.device))
        self.accelerator = Accelerator(
            cpu=config.device == "cpu",
            mixed_precision="bf16" if config.load.autocast == "bfloat16" else "no",
            log_with=list(config.log.trackers) or None,
            project_config=ProjectConfiguration(project_dir=config.out, logging_dir=config.out),
        )
        if config.device not in ("auto", self.device.type):
            raise ConfigError(
                f"device is {config.device}: this process got {self.device.type}. Use --device auto or one that is there."
            )

    @property
    def rank(self) -> int:
        return int(self.accelerator.process_index)

    @property
    def world(self) -> int:
        return int(self.accelerator.num_processes)

    @property
    def main(self) -> bool:
        return bool(self.accelerator.is_main_process)

    @property
    def device(self) -> torch.device:
        return self.accelerator.device

    def prepare(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Move, wrap for DDP/FSDP/DeepSpeed and for mixed precision."""
        module, optimizer = self.accelerator.prepare(module, optimizer)
        return module, optimizer

    def sum(self, values: Sequence[float | Tensor]) -> Tensor:
        """Element-wise sum over processes, float64 on the CPU (float32 on devices without it)."""
        wide = torch.float32 if self.device.type == "mps" else torch.float64
        local = torch.stack([torch.as_tensor(value, dtype=wide, device=self.device).detach() for value in values])
        return (self.accelerator.reduce(local, reduction="sum") if self.world > 1 else local).double().cpu()

    def merge(self, metrics: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, tuple[float, float]]:
        """Metrics as (sum, weight) over all processes; a process may lack some names."""
        names = list(metrics)
        flat = torch.stack([value.double().cpu() for name in names for value in metrics[name]]).tolist() if names else []
        local = {name: (flat[2 * i], flat[2 * i + 1]) for i, name in enumerate(names)}
        merged: dict[str, tuple[float, float]] = {}
        for part in gather_object([local]) if self.world > 1 else [local]:
            for name, (value, weight) in part.items():
                old = merged.get(name, (0.0, 0.0))
                merged[name] = (old[0] + value, old[1] + weight)
        return merged

    def most(self, value: int) -> int:
        """The largest of an integer over processes."""
        if self.world == 1:
            return value
        return int(self.accelerator.gather(torch.tensor([value], device=self.device)).max())

    def accumulate(self, module: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Gradients are exchanged in the last micro-batch of a step only."""
        return nullcontext() if last or self.world == 1 else self.accelerator.no_sync(module)

    def clip(self, parameters: Iterable[nn.Parameter], max_norm: float | None) -> Tensor:
        """Scale gradients to a global L2 norm of at most `max_norm`; returns the norm before."""
        return self.accelerator.clip_grad_norm_(list(parameters), float("inf") if max_norm is None else max_norm)

    def state_dict(self, module: nn.Module) -> dict[str, Tensor]:
        """Full weights of the wrapped module, on the main process."""
        return self.accelerator.get_state_dict(module)

    def union(self, numbers: dict[bytes, np.ndarray]) -> dict[bytes, np.ndarray]:
        """Reference log-probs of all processes together."""
        if self.world == 1:
            return numbers
        return {key: values for part in gather_object([numbers]) for key, values in part.items()}

    def from_main(self, work: Callable[[], list[Any]]) -> list[Any]:
        """What `work` gives on the main process, on every process."""
        if self.world == 1:
            return work()
        box = [work() if self.main else None]
        return broadcast_object_list(box, from_process=0)[0]

    def frozen(self, module: nn.Module) -> nn.Module:
        """A module that is never trained, on the device and with the mixed precision of the others."""
        return self.accelerator.prepare_model(module.requires_grad_(False), evaluation_mode=True)

    def barrier(self) -> None:
        """Wait for every process."""
        self.accelerator.wait_for_everyone()


def _device_changed(device: str) -> bool:
    """Accelerate keeps the device of its first use in a process; asking for another kind needs a fresh start."""
    from accelerate.state import PartialState

    if not PartialState._shared_state or device == "auto":
        return False
    return PartialState().device.type != device and PartialState().num_processes == 1
