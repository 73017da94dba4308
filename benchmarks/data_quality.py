"""Do the numbers of `humanline inspect` predict training? Measured on the embedded study, with GRPO offline + humanline.

    python benchmarks/data_quality.py OUT [--seeds 3] [--steps 96]

Data sets of equal size, each inspected and then trained on from the same start model by the demo's settings:

    quartile 1 … 4    768 groups × 8, the packaged groups by the mean token log-prob of their completions, lowest first
    within 1 … 4      3072 groups × 2, of each prompt's 8 completions the two of that rank; `within any`: the first two of the file
    own               768 groups × 8, the start model's own samples, as they come in the file
    cold, hot, uniform  the same prompts sampled anew from the start model at temperature ½, 2 and ∞
    noised            and from the start model with noise on its weights

Four minutes of one core. Prints mean ± standard deviation over seeds and writes OUT/results.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from humanline.embedded import assets
from humanline.embedded.evaluate import evaluate
from humanline.embedded.groups import RewardedGroup, read_groups
from humanline.embedded.methods import METHODS
from humanline.embedded.results import Spread
from humanline.embedded.sample import sample
from humanline.embedded.score import COMPLETION_LENGTH, to_ids, to_texts
from humanline.models import load_policy
from humanline.quality.config import InspectConfig, RowsConfig
from humanline.quality.run import inspect_data
from humanline.randomness import generator, key
from humanline.run import train
from humanline.token_logps import TokenLogps

GROUPS = 768
HELD_OUT = 750
FRESH = 256
"""prompts that are sampled for the perception gap"""
NOISE = 1.0
"""standard deviation of the noise on each weight matrix, in those of its entries"""


def mean_logps(model: PreTrainedModel, groups: list[RewardedGroup]) -> torch.Tensor:
    """Mean token log-prob of each completion, [groups, completions]."""
    prompt_GP = to_ids([group.prompt for group in groups])
    size, room = len(groups[0].completions), prompt_GP.shape[1]
    rows = []
    with torch.no_grad():
        module = TokenLogps(model)
        for group, prompt_P in zip(groups, prompt_GP, strict=True):
            token_BT = to_ids(group.completions)
            predict_BT = torch.arange(room - 1, room + token_BT.shape[1] - 1).expand_as(token_BT)
            ids_BS = torch.cat([prompt_P.expand(size, -1), token_BT], 1)
            rows.append(module(ids_BS, None, None, predict_BT, token_BT, torch.ones_like(token_BT, dtype=torch.bool)).mean(1))
    return torch.stack(rows)


def by_likelihood(model: PreTrainedModel, groups: list[RewardedGroup]) -> Iterator[tuple[str, list[RewardedGroup]]]:
    """Quartiles of whole groups, and of the completions of each prompt."""
    logp_GC = mean_logps(model, groups)
    order = logp_GC.mean(1).argsort(stable=True).tolist()
    for quartile in range(4):
        yield f"quartile {quartile + 1}", [groups[row] for row in sorted(order[quartile * GROUPS : (quartile + 1) * GROUPS])]
    rank_GC = logp_GC.argsort(dim=1, stable=True)
    for quartile in range(4):
        chosen = rank_GC[:, 2 * quartile : 2 * quartile + 2].tolist()
        yield f"within {quartile + 1}", [_part(group, numbers) for group, numbers in zip(groups, chosen, strict=True)]
    yield "within any", [_part(group, [0, 1]) for group in groups]
    yield "own", groups[:GROUPS]


def _part(group: RewardedGroup, numbers: list[int]) -> RewardedGroup:
    return RewardedGroup(
        group.prompt, tuple(group.completions[number] for number in numbers), tuple(group.rewards[number] for number in numbers)
    )


def samplers() -> Iterator[tuple[str, PreTrainedModel]]:
    """The start model, made worse or narrower."""
    for name, scale in (("cold", 2.0), ("hot", 0.5), ("uniform", 0.0)):
        model = load_policy(str(assets.MODEL))
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(scale)
        yield name, model
    model = load_policy(str(assets.MODEL))
    stream = torch.Generator().manual_seed(key(0, "data quality noise") % 2**63)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.add_(NOISE * parameter.std() * torch.randn(parameter.shape, generator=stream))
    yield "noised", model


def sampled(name: str, model: PreTrainedModel, groups: list[RewardedGroup]) -> list[RewardedGroup]:
    """The same prompts with completions and rewards of another sampler."""
    size = len(groups[0].completions)
    prompt_NP = to_ids([group.prompt for group in groups]).repeat_interleave(size, dim=0)
    completion_NT = sample(model, prompt_NP, length=COMPLETION_LENGTH, stream=generator(0, f"data quality {name}"))
    rewards, texts = assets.task().utility(prompt_NP, completion_NT).tolist(), to_texts(completion_NT)
    parts = [slice(start, start + size) for start in range(0, len(texts), size)]
    return [
        RewardedGroup(group.prompt, tuple(texts[part]), tuple(rewards[part])) for group, part in zip(groups, parts, strict=True)
    ]


def write(groups: list[RewardedGroup], path: Path) -> None:
    """As a file that `humanline train` and `humanline inspect` read."""
    rows = ({"prompt": group.prompt, "completions": group.completions, "rewards": group.rewards} for group in groups)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def trained(data: Path, out: Path, seed: int, steps: int) -> float:
    """Mean held-out utility after training; a run that is there already is not done again."""
    result = out / "utility.json"
    if result.is_file():
        return float(json.loads(result.read_text()))
    shutil.rmtree(out, ignore_errors=True)
    config = METHODS["grpo-humanline"].config(model=assets.MODEL, data=data, out=out, seed=seed, steps=steps)
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        train(config)
        policy = load_policy(str(out / "final"))
    utility = evaluate(policy, assets.task(), assets.held_out(HELD_OUT), seed=seed).utility
    result.write_text(json.dumps(utility))
    return utility


def inspected(data: Path) -> dict[str, Any]:
    """What `humanline inspect` says about a data set."""
    rows = RowsConfig(template="none", eos=False)
    config = InspectConfig(
        data=str(data), model=str(assets.MODEL), out=str(data.with_suffix("")), rows=rows, fresh=FRESH, device="cpu"
    )
    found = inspect_data(config, say=lambda _: None)
    assert found.gap is not None
    likely = {"logp": found.likelihood.mean, "unusual": found.likelihood.unusual_share, "fresh_kl": found.gap.fresh.kl}
    return likely | asdict(found.gap.data)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=96)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    packaged = read_groups(assets.GROUPS)
    sets = dict(by_likelihood(load_policy(str(assets.MODEL)), packaged))
    sets |= {name: sampled(name, model, packaged[:GROUPS]) for name, model in samplers()}
    results = {}
    for name, groups in sets.items():
        data = options.out / f"{name.replace(' ', '-')}.jsonl"
        write(groups, data)
        runs = [options.out / "runs" / f"{data.stem}-{seed}" for seed in range(options.seeds)]
        utilities = [trained(data, run, seed, options.steps) for seed, run in enumerate(runs)]
        reward = sum(sum(group.rewards) for group in groups) / sum(len(group.rewards) for group in groups)
        results[name] = {"utilities": utilities, "reward": reward}
        print(f"{name:<12} reward {reward:+.3f}  utility {Spread.of(utilities).show(3)}", flush=True)
    for name in results:
        results[name]["inspect"] = inspected(options.out / f"{name.replace(' ', '-')}.jsonl")
    (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
