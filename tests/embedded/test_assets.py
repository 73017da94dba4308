"""The packaged files: small, undamaged, consistent with each other and with the code that made them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from humanline.embedded import assets, make_score
from humanline.embedded.groups import read_groups
from humanline.embedded.score import SYMBOLS, ScoreTask, to_ids
from humanline.errors import DataError
from humanline.randomness import generator


def test_checksums_and_size() -> None:
    recorded = assets.verify()
    assert set(recorded["files"]) == {
        path.relative_to(assets.ROOT).as_posix()
        for path in assets.ROOT.rglob("*")
        if path.is_file() and path.name not in ("manifest.json", "README.md")
    }
    sizes = {name: (assets.ROOT / name).stat().st_size for name in recorded["files"]}
    assert sizes == {name: facts["bytes"] for name, facts in recorded["files"].items()}
    assert sum(sizes.values()) < 1_500_000


@pytest.mark.parametrize("damage", [b"x", None])
def test_a_damaged_or_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None) -> None:
    for name in ("manifest.json", *assets.manifest()["files"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((assets.ROOT / name).read_bytes())
    monkeypatch.setattr(assets, "ROOT", tmp_path)
    monkeypatch.setattr(assets, "MANIFEST", tmp_path / "manifest.json")
    assets.verify()
    (tmp_path / "groups.parquet").unlink()
    if damage:
        (tmp_path / "groups.parquet").write_bytes(damage)
    with pytest.raises(DataError, match=r"groups\.parquet: packaged file is damaged .*\n  Reinstall humanline"):
        assets.verify()


def test_the_tokenizer_has_one_token_per_symbol_and_nothing_special() -> None:
    tokenizer = AutoTokenizer.from_pretrained(assets.MODEL)
    assert tokenizer(SYMBOLS)["input_ids"] == list(range(18)) and tokenizer.decode([2, 0, 17]) == "car"
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.chat_template) == (None, None, None, None)


def test_rewards_are_the_utility_of_the_stored_texts() -> None:
    task, groups = assets.task(), read_groups(assets.GROUPS)
    prompt_NP = to_ids([group.prompt for group in groups for _ in group.completions])
    completion_NT = to_ids([completion for group in groups for completion in group.completions])
    stored_N = torch.tensor([reward for group in groups for reward in group.rewards], dtype=torch.float64)
    assert (len(groups), completion_NT.shape) == (3072, (24576, 12))
    torch.testing.assert_close(stored_N, task.utility(prompt_NP, completion_NT), rtol=0, atol=2e-7)
    held_out = assets.held_out()
    torch.testing.assert_close(held_out.utility_N, task.utility(held_out.prompt_NP, held_out.completion_NT), rtol=0, atol=1e-12)
    assert assets.start_utility() == pytest.approx(held_out.utility_N.mean().item(), abs=1e-12)
    assert assets.start_utility(7) == pytest.approx(held_out.utility_N[:7].mean().item(), abs=1e-12)


def test_held_out_prompts_are_not_trained_on() -> None:
    trained = [group.prompt for group in read_groups(assets.GROUPS)]
    held_out = ["".join(SYMBOLS[i] for i in row) for row in assets.held_out().prompt_NP.tolist()]
    assert len(held_out) == 1500 and len({*trained, *held_out}) == len(trained) + len(held_out)


def test_the_maker_still_draws_the_packaged_task_and_prompts() -> None:
    drawn, packaged = ScoreTask.draw(make_score.TASK_SEED), assets.task()
    for name in ("bigram_VV", "affinity_VV", "chain_VV"):
        torch.testing.assert_close(getattr(drawn, name), getattr(packaged, name), rtol=0, atol=1e-12)
    train_prompts, held_out_prompts = make_score.draw_prompts(drawn)
    assert torch.equal(train_prompts, to_ids([group.prompt for group in read_groups(assets.GROUPS)]))
    assert torch.equal(held_out_prompts, assets.held_out().prompt_NP)


def test_the_start_model_has_learnt_the_chain() -> None:
    """Mean KL(chain ‖ model) of the next symbol over texts of the chain: below 0.05 nats; untrained, it is above 0.3."""
    task = assets.task()
    text_NT = task.draw_texts(generator(0, "texts"), 200, 16)
    expected_NTV = task.chain_VV[text_NT[:, 4:]]

    def divergence(model: torch.nn.Module) -> float:
        with torch.no_grad():
            log_model_NTV = model(text_NT).logits[:, 4:].double().log_softmax(-1)
        return (expected_NTV * (expected_NTV.log() - log_model_NTV)).sum(-1).mean().item()

    assert divergence(AutoModelForCausalLM.from_pretrained(assets.MODEL, dtype=torch.float32)) < 0.05
    assert divergence(make_score.new_model(0).eval()) > 0.3
