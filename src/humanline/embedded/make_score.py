"""Makes the packaged files of task "score": `python -m humanline.embedded.make_score`. Half a minute on one core.

    the task (seed 6: the first whose start utility is near the 0.14 of the study it repeats; no method had run on it)
      → 38 400 texts of the chain → SFT of a new 109k-parameter Llama, 300 steps × 128 rows → model/
      → 3072 prompts × 8 completions at T = 1, with their utility               → groups.parquet
      → 1500 other prompts, each with one completion of the start model         → held_out.parquet

The same machine, versions and seed give the same bytes; what they were is in manifest.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from humanline.config import CheckpointConfig, DataConfig, LogConfig, OptimizerConfig, TrainConfig
from humanline.embedded import assets
from humanline.embedded.sample import sample
from humanline.embedded.score import COMPLETION_LENGTH, PROMPT_LENGTH, SYMBOLS, ScoreTask, to_texts
from humanline.objectives import SFT
from humanline.randomness import generator, key

TASK_SEED = 6
TRAIN_PROMPTS, HELD_OUT_PROMPTS, COMPLETIONS = 3072, 1500, 8
SFT_STEPS, SFT_ROWS, SFT_LR = 300, 128, 3e-3


def new_tokenizer() -> PreTrainedTokenizerFast:
    """One token per symbol, id = place in the alphabet; no special tokens, no template. Other characters are an error."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(SYMBOLS)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def new_model(seed: int) -> LlamaForCausalLM:
    """An untrained Llama of 109 120 parameters."""
    torch.manual_seed(key(seed, "score model") % 2**63)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(SYMBOLS),
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=32,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """In the files that every release of transformers reads: release 5 writes a class name that older ones do not know."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(settings | {"tokenizer_class": "PreTrainedTokenizerFast"}, indent=2) + "\n", encoding="utf-8")


def train_start(task: ScoreTask, work: Path) -> Path:
    """The start model: supervised training on texts of the chain with this package's own trainer. Returns its directory."""
    from humanline.run import train

    save_tokenizer(new_tokenizer(), work / "new")
    new_model(TASK_SEED).save_pretrained(work / "new")
    texts = to_texts(
        task.draw_texts(generator(TASK_SEED, "score texts"), SFT_STEPS * SFT_ROWS, PROMPT_LENGTH + COMPLETION_LENGTH)
    )
    rows = [{"prompt": text[:PROMPT_LENGTH], "completion": text[PROMPT_LENGTH:]} for text in texts]
    (work / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    train(
        TrainConfig(
            model=str(work / "new"),
            data=str(work / "texts.jsonl"),
            out=str(work / "run"),
            objective=SFT(),
            steps=SFT_STEPS,
            batch_size=SFT_ROWS,
            seed=TASK_SEED,
            device="cpu",
            rows=DataConfig(template="none", eos=False, shuffle=False),
            optimizer=OptimizerConfig(lr=SFT_LR, betas=(0.9, 0.99), schedule="linear", warmup=30),
            checkpoint=CheckpointConfig(every=None),
            log=LogConfig(every=50, report=False),
        )
    )
    return work / "run" / "final"


def draw_prompts(task: ScoreTask) -> tuple[Tensor, Tensor]:
    """Training and held-out prompts, all different from each other."""
    wanted = TRAIN_PROMPTS + HELD_OUT_PROMPTS
    drawn = task.draw_texts(generator(TASK_SEED, "score prompts"), 4 * wanted, PROMPT_LENGTH)
    unique = torch.tensor(list(dict.fromkeys(map(tuple, drawn.tolist())))[:wanted])
    assert len(unique) == wanted, "too few different prompts"
    return unique[:TRAIN_PROMPTS], unique[TRAIN_PROMPTS:]


def write_groups(task: ScoreTask, model: PreTrainedModel, prompt_NP: Tensor, path: Path) -> Tensor:
    """Sample, reward and write the data set; returns the rewards."""
    repeated = prompt_NP.repeat_interleave(COMPLETIONS, dim=0)
    completion = sample(model, repeated, length=COMPLETION_LENGTH, stream=generator(TASK_SEED, "score groups"))
    reward = task.utility(repeated, completion).float()
    texts = to_texts(completion)
    starts = range(0, len(texts), COMPLETIONS)
    columns = {
        "prompt": to_texts(prompt_NP),
        "completions": [texts[start : start + COMPLETIONS] for start in starts],
        "rewards": reward.view(-1, COMPLETIONS).numpy().tolist(),
    }
    write_table(columns, path)
    return reward


def write_held_out(task: ScoreTask, model: PreTrainedModel, prompt_NP: Tensor, path: Path) -> Tensor:
    """One completion of the start model for every held-out prompt; returns their rewards."""
    completion = sample(model, prompt_NP, length=COMPLETION_LENGTH, stream=generator(TASK_SEED, "score held out"))
    reward = task.utility(prompt_NP, completion)
    write_table({"prompt": to_texts(prompt_NP), "completion": to_texts(completion), "reward": reward.tolist()}, path)
    return reward


def write_table(columns: dict[str, list[Any]], path: Path) -> None:
    """Parquet, compressed as far as it goes. Rewards of groups keep float32, which is what training uses."""
    import pyarrow as pa
    import pyarrow.parquet

    types = {"rewards": pa.list_(pa.float32()), "reward": pa.float64(), "completions": pa.list_(pa.string())}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in columns])
    pyarrow.parquet.write_table(pa.table(columns, schema=schema), path, compression="zstd", compression_level=19)


def describe(folder: Path, model: PreTrainedModel, rewards: Tensor, held_out: Tensor) -> dict[str, Any]:
    """The manifest: what was made, from what, and the checksum of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in ("manifest.json", "README.md"))
    return {
        "format": "humanline-embedded-1",
        "task_seed": TASK_SEED,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "sft": {"steps": SFT_STEPS, "rows_per_step": SFT_ROWS, "lr": SFT_LR},
        "groups": {"prompts": TRAIN_PROMPTS, "completions": COMPLETIONS, "mean_utility": rewards.double().mean().item()},
        "held_out": {"prompts": HELD_OUT_PROMPTS, "start_utility": held_out.mean().item()},
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers", "numpy", "pyarrow")},
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} thread",
        "files": {
            path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": assets.checksum(path)} for path in files
        },
    }


def make(folder: Path) -> dict[str, Any]:
    """Write every file into `folder` and return the manifest."""
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    task = ScoreTask.draw(TASK_SEED)
    save_file({name: getattr(task, name) for name in ("bigram_VV", "affinity_VV", "chain_VV")}, folder / "task.safetensors")
    with tempfile.TemporaryDirectory() as work:
        model = AutoModelForCausalLM.from_pretrained(train_start(task, Path(work)), dtype=torch.float32)
    shutil.rmtree(folder / "model", ignore_errors=True)
    model.save_pretrained(folder / "model")
    save_tokenizer(new_tokenizer(), folder / "model")
    train_prompts, held_out_prompts = draw_prompts(task)
    rewards = write_groups(task, model, train_prompts, folder / "groups.parquet")
    held_out = write_held_out(task, model, held_out_prompts, folder / "held_out.parquet")
    manifest = describe(folder, model, rewards, held_out)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return manifest


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=assets.ROOT, help="folder to write to; the packaged files by default")
    options = parser.parse_args()
    manifest = make(options.out)
    size, utility = sum(facts["bytes"] for facts in manifest["files"].values()), manifest["held_out"]["start_utility"]
    print(f"{options.out}: {len(manifest['files'])} files, {size / 1e6:.2f} MB, start utility {utility:.3f}")


if __name__ == "__main__":
    main()
