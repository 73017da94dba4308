"""Sampling in this process: the same set in any batch, log-probs that are the trainer's, the right distribution, ends and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel

from builders import VOCABULARY, tiny_gpt2, tiny_llama
from humanline.errors import ConfigError, ModelError
from humanline.models import disable_dropout
from humanline.sample.config import SampleConfig
from humanline.sample.draw import transformed
from humanline.sample.local import TransformersSampler, batches
from humanline.sample.mismatch import logp_mismatch
from humanline.sample.sampler import Sampled
from humanline.token_logps import TokenLogps

EOS = (2, 7)


def tiny_mistral() -> PreTrainedModel:
    """Two layers with a sliding window of 6 tokens, shorter than prompts and completions here."""
    torch.manual_seed(0)
    settings = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    return MistralForCausalLM(
        MistralConfig(
            **settings, num_key_value_heads=2, head_dim=8, sliding_window=6, initializer_range=0.2, max_position_embeddings=128
        )
    ).eval()


def quiet_gpt2() -> PreTrainedModel:
    model = tiny_gpt2(bos_token_id=1, eos_token_id=2)
    disable_dropout(model)
    return model


MODELS: list[Callable[[], PreTrainedModel]] = [tiny_llama, quiet_gpt2, tiny_mistral]


def prompts(count: int = 7, longest: int = 12) -> list[np.ndarray]:
    """Of uneven lengths, the first the shortest and the second the longest."""
    rng = np.random.default_rng(0)
    lengths = [1, longest, *rng.integers(2, longest, count - 2)]
    return [rng.integers(8, VOCABULARY, length).astype(np.int32) for length in lengths]


def drawn(
    model: PreTrainedModel, given: Sequence[np.ndarray], numbers: Sequence[int] | None = None, **settings: Any
) -> dict[int, tuple[Sampled, ...]]:
    """Completions by prompt number."""
    numbers = range(len(given)) if numbers is None else numbers
    config = SampleConfig(**({"n": 3, "max_new_tokens": 16} | settings))
    found = dict(TransformersSampler(model, EOS).sample(given, numbers=numbers, settings=config))
    assert sorted(found) == list(range(len(given)))
    return {numbers[index]: completions for index, completions in found.items()}


def ids(sampled: Sampled) -> list[int]:
    assert sampled.token_ids is not None and sampled.token_ids.dtype == np.int32
    return sampled.token_ids.tolist()


def same(first: dict[int, tuple[Sampled, ...]], second: dict[int, tuple[Sampled, ...]]) -> None:
    """Equal tokens and ends, log-probs to 1e-5."""
    assert first.keys() == second.keys()
    for number, completions in first.items():
        for one, other in zip(completions, second[number], strict=True):
            assert ids(one) == ids(other) and one.finished == other.finished
            np.testing.assert_allclose(one.logps, other.logps, atol=1e-5)


# The same set whatever the batch


@pytest.mark.parametrize("make", MODELS)
def test_R44_batch_size_changes_nothing(make: Callable[[], PreTrainedModel]) -> None:
    """One completion at a time, a prompt's completions split between batches, several prompts padded together, all at once."""
    model, given = make(), prompts()
    alone = drawn(model, given, batch_tokens=1)
    assert any(sampled.finished for group in alone.values() for sampled in group)
    assert any(not sampled.finished for group in alone.values() for sampled in group)
    for batch_tokens in (60, 200, 10_000):
        same(alone, drawn(model, given, batch_tokens=batch_tokens))


@pytest.mark.parametrize("make", MODELS)
def test_R44_order_and_batch_mates_change_nothing(make: Callable[[], PreTrainedModel]) -> None:
    model, given = make(), prompts()
    whole = drawn(model, given)
    order = [4, 1, 6, 0]
    part = drawn(model, [given[number] for number in order], order)
    same({number: whole[number] for number in order}, part)


def test_decoding_alone_gives_equal_bits_whatever_else_is_sampled() -> None:
    model, given = tiny_llama(), prompts()
    first = drawn(model, given, batch_tokens=1)
    second = drawn(model, given[3:5], [3, 4], batch_tokens=1)
    for number in (3, 4):
        for one, other in zip(first[number], second[number], strict=True):
            assert ids(one) == ids(other) and one.logps.tobytes() == other.logps.tobytes()


def test_more_completions_and_a_higher_limit_only_add() -> None:
    model, given = tiny_llama(), prompts()
    less, more = drawn(model, given, n=2, max_new_tokens=6), drawn(model, given, n=3, max_new_tokens=16)
    for number, completions in less.items():
        for one, other in zip(completions, more[number][:2], strict=True):
            assert ids(one) == ids(other)[:6]


def test_seed_and_number_choose_the_draws() -> None:
    model, given = tiny_llama(), prompts(2)
    first = ids(drawn(model, given[1:], [0])[0][0])
    assert ids(drawn(model, given[1:], [0])[0][0]) == first
    assert ids(drawn(model, given[1:], [1])[1][0]) != first
    assert ids(drawn(model, given[1:], [0], seed=1)[0][0]) != first


# Log-probs


@pytest.mark.parametrize("make", MODELS)
def test_R10_log_probs_are_the_trainers(make: Callable[[], PreTrainedModel]) -> None:
    """At temperature 1 without a nucleus: TokenLogps on the same tokens, whatever was padded while sampling."""
    model, given = make(), prompts()
    found = drawn(model, given)
    completions = [found[number] for number in range(len(given))]
    mismatch = logp_mismatch(TokenLogps(model), given, completions, micro_batch_tokens=100)
    assert mismatch.max < 1e-5 and mismatch.mean <= mismatch.max
    assert mismatch.tokens == sum(len(ids(sampled)) for group in completions for sampled in group)
    assert mismatch.metrics == {"sampler_logp_mean_difference": mismatch.mean, "sampler_logp_max_difference": mismatch.max}


@pytest.mark.parametrize(("temperature", "top_p"), [(0.6, 0.9), (1.7, 1.0), (1.0, 0.5)])
def test_R10_log_probs_under_a_transform_are_recomputed_under_the_same_one(temperature: float, top_p: float) -> None:
    model, given = tiny_llama(), prompts()
    module = TokenLogps(model)
    found = drawn(model, given, temperature=temperature, top_p=top_p)
    completions = [found[number] for number in range(len(given))]
    assert logp_mismatch(module, given, completions, transform=(temperature, top_p)).max < 1e-5
    assert logp_mismatch(module, given, completions).max > 0.1


def test_R10_the_policys_own_log_probs_can_be_kept_instead() -> None:
    """The same tokens are drawn, and their log-probs need no correction for temperature and nucleus."""
    model, given = tiny_llama(), prompts()
    as_drawn = drawn(model, given, temperature=0.6, top_p=0.9)
    own = drawn(model, given, temperature=0.6, top_p=0.9, logprobs="policy")
    completions = [own[number] for number in range(len(given))]
    assert all(ids(one) == ids(other) for number in own for one, other in zip(as_drawn[number], own[number], strict=True))
    assert logp_mismatch(TokenLogps(model), given, completions).max < 1e-5


def test_R10_a_changed_policy_shows_as_mismatch() -> None:
    """|log π' − log π| by hand on one token: adding 1 to the logit of token t changes its log-prob by 1 − ln(1 + p(e − 1))."""
    model = tiny_llama(tie_word_embeddings=False)
    (sampled,) = drawn(model, [np.array([9, 10], np.int32)], n=1, max_new_tokens=1)[0]
    token, p = ids(sampled)[0], float(np.exp(sampled.logps[0]))
    head = torch.nn.Linear(32, VOCABULARY, bias=True)
    head.weight.data = model.lm_head.weight.data
    head.bias.data = torch.zeros(VOCABULARY)
    head.bias.data[token] = 1.0
    model.lm_head = head
    mismatch = logp_mismatch(TokenLogps(model), [np.array([9, 10], np.int32)], [[sampled]])
    assert mismatch.max == pytest.approx(1 - np.log1p(p * (np.e - 1)), abs=1e-5)


def test_R10_completions_without_log_probs_take_no_part_in_the_comparison() -> None:
    nothing = Sampled(np.array([3], np.int32), None, finished=True)
    assert logp_mismatch(TokenLogps(tiny_llama()), [np.array([9], np.int32)], [[nothing]]).tokens == 0


# The distribution


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.8)])
def test_frequencies_of_two_steps_are_the_models(temperature: float, top_p: float) -> None:
    """4000 completions of two tokens: the first token, and the second after the commonest first, within five standard errors."""
    model = tiny_llama()
    prompt = np.array([9, 20, 31], np.int32)
    settings = SampleConfig(n=4000, max_new_tokens=2, temperature=temperature, top_p=top_p, batch_tokens=5000)
    ((_, completions),) = TransformersSampler(model, ()).sample([prompt], numbers=[0], settings=settings)
    tokens = np.array([ids(sampled) for sampled in completions])

    def close(observed: np.ndarray, context: list[int]) -> None:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([context])).logits[:, -1]
        p = transformed(logits, temperature, top_p).exp()[0].numpy()
        share = np.bincount(observed, minlength=VOCABULARY) / len(observed)
        assert (np.abs(share - p) <= 5 * np.sqrt(p * (1 - p) / len(observed))).all()

    close(tokens[:, 0], prompt.tolist())
    common = np.bincount(tokens[:, 0]).argmax()
    close(tokens[tokens[:, 0] == common, 1], [*prompt.tolist(), int(common)])


def test_ids_that_the_tokenizer_lacks_are_never_drawn() -> None:
    """A model of 50 ids with a tokenizer of 30: draws are among the 30; log-probs at (1, 1) are the policy's own, which the trainer
    computes over all 50, and under another temperature those among the 30."""
    model = tiny_llama()
    prompt = np.array([9, 20, 21], np.int32)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt.tolist()])).logits[0, -1]
    for temperature, logp in ((1.0, logits.log_softmax(-1)), (0.5, (logits[:30] / 0.5).log_softmax(-1))):
        settings = SampleConfig(n=500, max_new_tokens=1, temperature=temperature)
        ((_, completions),) = TransformersSampler(model, EOS, vocabulary=30).sample([prompt], numbers=[0], settings=settings)
        for sampled in completions:
            assert ids(sampled)[0] < 30
            assert sampled.logps[0] == pytest.approx(float(logp[ids(sampled)[0]]), abs=1e-5)


def test_temperature_0_follows_the_most_likely_token() -> None:
    """Against a plain loop of whole forward passes."""
    model = quiet_gpt2()
    context = [9, 20, 31]
    with torch.no_grad():
        for _ in range(8):
            context.append(int(model(input_ids=torch.tensor([context])).logits[0, -1].argmax()))
    settings = SampleConfig(n=1, max_new_tokens=8, temperature=0.0)
    ((_, (sampled,)),) = TransformersSampler(model, ()).sample([np.array([9, 20, 31], np.int32)], numbers=[0], settings=settings)
    assert ids(sampled) == context[3:]
    assert sampled.logps.tolist() == [0.0] * 8


# Ends and limits


def test_R19_any_declared_end_ends_a_completion_and_belongs_to_it() -> None:
    found = drawn(tiny_llama(), prompts(), n=8, max_new_tokens=40)
    ends = set()
    for sampled in (sampled for group in found.values() for sampled in group):
        assert not set(ids(sampled)[:-1]) & set(EOS)
        assert len(ids(sampled)) == len(sampled.logps)
        assert sampled.finished == (ids(sampled)[-1] in EOS)
        assert sampled.finished or len(ids(sampled)) == 40
        ends.add(ids(sampled)[-1])
    assert set(EOS) <= ends


def test_an_end_on_the_last_token_allowed_is_an_end() -> None:
    model, given = tiny_llama(), prompts()
    longer = drawn(model, given)
    number, completion, length = next(
        (number, completion, len(ids(sampled)))
        for number, group in longer.items()
        for completion, sampled in enumerate(group)
        if sampled.finished
    )
    assert drawn(model, given, max_new_tokens=length)[number][completion].finished


def test_a_prompt_is_computed_once_and_what_has_ended_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward passes see each prompt once, then one token of each sequence that goes on."""
    model, given = tiny_llama(), prompts()
    shapes = []
    forward = model.forward
    monkeypatch.setattr(
        model, "forward", lambda *args, **inputs: shapes.append(inputs["input_ids"].shape) or forward(*args, **inputs)
    )
    sampler = TransformersSampler(tiny_llama(), EOS)
    sampler.model = model
    settings = SampleConfig(n=3, max_new_tokens=16)
    found = dict(sampler.sample(given, numbers=range(7), settings=settings))
    lengths = [len(ids(sampled)) for group in found.values() for sampled in group]
    going_on = [sum(length > step for length in lengths) for step in range(1, max(lengths))]
    assert shapes == [(7, 12), *((rows, 1) for rows in going_on)]
    assert going_on[-1] < going_on[0]


def test_progress_is_told_of_every_token() -> None:
    seen: list[int] = []
    sampler = TransformersSampler(tiny_llama(), EOS, watch=seen.append)
    found = dict(sampler.sample(prompts(), numbers=range(7), settings=SampleConfig(n=2, max_new_tokens=9)))
    assert sum(seen) == sum(len(ids(sampled)) for group in found.values() for sampled in group)


def test_batches_are_sorted_by_length_and_keep_their_budget() -> None:
    given = prompts(20)
    made = list(batches(given, SampleConfig(n=3, max_new_tokens=10, batch_tokens=100)))
    slots = [slot for batch in made for slot in batch]
    assert sorted(slots) == [(index, completion) for index in range(20) for completion in range(3)]
    lengths = [len(given[index]) for index, _ in slots]
    assert lengths == sorted(lengths, reverse=True)
    assert all(len(batch) * (len(given[batch[0][0]]) + 10) <= 100 for batch in made)
    assert {len(batch) for batch in batches(given, SampleConfig(n=3, max_new_tokens=10, batch_tokens=1))} == {1}


def test_more_than_the_models_positions_is_an_error() -> None:
    with pytest.raises(ModelError) as raised:
        drawn(tiny_llama(), prompts(), max_new_tokens=117)
    assert str(raised.value) == (
        "the longest prompt has 12 tokens and max_new_tokens is 117, but the model has 128 positions. "
        "Lower max_new_tokens, or the length of prompts."
    )


def test_a_model_in_training_stays_in_training_and_draws_without_dropout() -> None:
    """Also when the caller stops early."""
    model = tiny_gpt2(bos_token_id=1, eos_token_id=2)
    quiet = drawn(quiet_gpt2(), prompts())
    model.train()
    same(quiet, drawn(model, prompts()))
    assert model.training
    stream = TransformersSampler(model, EOS).sample(prompts(), numbers=range(7), settings=SampleConfig(n=1, max_new_tokens=4))
    next(stream)
    assert not model.training
    stream.close()
    assert model.training


def test_no_prompts_give_no_completions() -> None:
    assert drawn(tiny_llama(), []) == {}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_an_adapter_is_sampled_with_its_weights() -> None:
    """LoRA: the same set as from the model with the adapter merged in."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(tiny_llama(), peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    adapted = drawn(model, prompts())
    same(adapted, drawn(model.merge_and_unload(), prompts()))
    assert [ids(one) for one in adapted[1]] != [ids(one) for one in drawn(tiny_llama(), prompts())[1]]


def test_bfloat16_autocast_is_that_of_training() -> None:
    model, given = tiny_llama(), prompts()
    settings = SampleConfig(n=2, max_new_tokens=8)
    found = dict(TransformersSampler(model, EOS, autocast="bfloat16").sample(given, numbers=range(7), settings=settings))
    completions = [found[index] for index in range(7)]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = logp_mismatch(TokenLogps(model), given, completions)
    assert mixed.mean < 0.02 and logp_mismatch(TokenLogps(model), given, completions).max > 1e-4


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"n": 0}, "sample.n is 0: expected a whole number from 1 on."),
        ({"max_new_tokens": 0}, "sample.max_new_tokens is 0: expected a whole number from 1 on."),
        ({"batch_tokens": 0}, "sample.batch_tokens is 0: expected a whole number from 1 on."),
        ({"temperature": -0.5}, "sample.temperature is -0.5: expected a number from 0 on, e.g. 1.0."),
        ({"temperature": float("inf")}, "sample.temperature is inf: expected a number from 0 on, e.g. 1.0."),
        ({"top_p": 0.0}, "sample.top_p is 0.0: expected a share in (0, 1], 1 for all tokens."),
        ({"top_p": 1.5}, "sample.top_p is 1.5: expected a share in (0, 1], 1 for all tokens."),
        ({"seed": -1}, "sample.seed is -1: expected a whole number in [0, 2^63)."),
        ({"temperature": 0.0}, "sample.n is 8: expected 1 at temperature 0, where all completions of a prompt would be equal."),
    ],
)
def test_ranges(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        SampleConfig(**settings)
    assert str(raised.value) == expected
