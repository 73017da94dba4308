"""Peak memory and time of humanline training against plain supervised training on the same batch: there is no second model.

    python benchmarks/memory.py [--model smollm2] [--steps 3]

Each method runs in a process of its own over the same random pairs; peak resident memory is read from the operating system.
Prints each process's numbers and the ratios to supervised training.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import ClassVar

METHODS = ("supervised", "dpo", "dpo-humanline")


def measure(method: str, model_name: str, steps: int) -> dict[str, float]:
    """Train a few steps in this process and report its peak."""
    import numpy as np
    import torch
    from jaxtyping import Float
    from torch import Tensor

    from humanline import models
    from humanline.config import OptimizerConfig, TrainConfig
    from humanline.data.feed import Feed, Rows
    from humanline.data.plan import Plan
    from humanline.data.rows import EncodedCompletion, EncodedGroup, Kind, Place
    from humanline.distributed import Workers
    from humanline.limit import Clip, Off
    from humanline.loop import Loop, adamw
    from humanline.objectives import DPO, Facts, Loss, Objective
    from humanline.reference import Reference
    from humanline.token_logps import TokenLogps

    @dataclass(frozen=True)
    class SupervisedPairs(Objective):
        """−Σ log π over both completions: what a pair costs without any reference."""

        kind: ClassVar[Kind] = "pair"
        reference: ClassVar[bool] = False

        def loss(self, ratio_BT: Float[Tensor, "B T"], facts: Facts) -> Loss:
            return Loss(-ratio_BT.sum(), {})

    torch.manual_seed(0)
    model = models.load_policy(model_name)
    rng = np.random.default_rng(0)

    def ids(length: int) -> np.ndarray:
        return rng.integers(10, model.config.vocab_size, length).astype(np.int32)

    def completion(feedback: float) -> EncodedCompletion:
        return EncodedCompletion(ids(64), np.ones(64, bool), feedback, None, True)

    groups = [EncodedGroup("pair", ids(192), (completion(1.0), completion(0.0)), Place("random", i)) for i in range(4)]
    objective = SupervisedPairs() if method == "supervised" else DPO()
    humanline = method == "dpo-humanline"
    sync_every = 1 if humanline else None
    config = TrainConfig(
        out="unused", device="cpu", batch_size=4, micro_batch_tokens=4 * 2 * 256, sync_every=sync_every,
        limit=Clip() if humanline else Off(), optimizer=OptimizerConfig(lr=1e-6),
    )  # fmt: skip
    workers = Workers(config)
    module = TokenLogps(model)
    module, optimizer = workers.prepare(module, adamw(module, config.optimizer))
    feed = Feed(Rows(groups, Plan(4, 4, 0, True), steps), config.micro_batch_tokens, False)
    loop = Loop(
        config, objective, module, optimizer, workers, feed, Reference(sync_every) if objective.reference else None, steps
    )
    if loop.reference:
        loop.sync(1, before=1)
    started = time.process_time()
    for t in range(1, steps + 1):
        loop.step(t)
    seconds = (time.process_time() - started) / steps
    return {"peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, "cpu_seconds_a_step": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--method", choices=METHODS, help="run one method in this process and print its numbers as JSON")
    options = parser.parse_args()
    if options.method:
        print(json.dumps(measure(options.method, options.model, options.steps)))
        return
    results = {}
    for method in METHODS:
        command = [sys.executable, __file__, "--model", options.model, "--steps", str(options.steps), "--method", method]
        results[method] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    base = results["supervised"]
    for method, numbers in results.items():
        ratios = "  ".join(f"{name} {value:.3f} ({value / base[name]:.3f}×)" for name, value in numbers.items())
        print(f"{method:<14} {ratios}")


if __name__ == "__main__":
    main()
