"""Tokenizers built in code, one for each way in which they differ where encoding has to be exact."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

SENTENCES = [
    "The ducks lay sixteen eggs per day, and she eats three for breakfast.",
    "How much in dollars does she make every day at the market? She makes 18 dollars.",
    "Question: what is 2 + 2?\nAnswer: 4\n\nQuestion: what is 3 + 4?\nAnswer: 7",
    "user\nHello, hello there.\nassistant\nHello! How are you?\n\n\n  def f(x):\n    return x",
    "[INST] Be brief. [/INST] Yes, sir: (I)[N]{S}T / why? [/INST]",
    "Line one.\n\nLine two.\nLine three.  Two spaces.",
] * 4

CHATML = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Inserts a system prompt of its own, as Qwen2.5's and SmolLM2's do, and a line break behind each end-of-turn token."""

THINKING = CHATML.replace("message.content +", "message.content.split('</think>')[-1].lstrip('\n') +").replace(
    "'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>\n'"
)
"""Opens `<think>` in the generation prompt and leaves the thoughts of answers out, as QwQ's does."""

LAST_THOUGHT = CHATML.replace(
    "message.content +", "('<think>\n\n</think>\n\n' if loop.last and message.role == 'assistant' else '') + message.content +"
)
"""Shows an empty thought in the last answer only, as Qwen3's does: no prefix of a conversation is rendered like its start."""

INSTRUCTIONS = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}{% set turns = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}{{ bos_token }}"
    "{% for message in turns %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate.') }}{% endif %}"
    "{% if message.role == 'user' %}{{ '[INST] ' + (system if message == turns | selectattr('role', 'equalto', 'user')"
    " | list | last else '') + message.content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + message.content.strip() + eos_token }}{% endif %}{% endfor %}"
)
"""Renders BOS itself, ignores the generation prompt, strips, moves the system prompt to the last question, as Mistral's do."""

PLAIN_ROLES = (
    "{% for message in messages %}{{ message.role + ': ' + message.content + '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
"""No special token at all."""


def _train(tokenizer: Tokenizer, trainer: trainers.Trainer) -> str:
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return str(tokenizer.to_str())


@functools.cache
def _byte_level(specials: tuple[str, ...]) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _train(
        tokenizer,
        trainers.BpeTrainer(vocab_size=420, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False),
    )


@functools.cache
def _metaspace() -> str:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=220, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    state = _train(tokenizer, trainer)
    tokenizer = Tokenizer.from_str(state)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return str(tokenizer.to_str())


@functools.cache
def _wordpiece() -> str:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=220, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False)
    state = _train(tokenizer, trainer)
    tokenizer = Tokenizer.from_str(state)
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return str(tokenizer.to_str())


def _wrap(state: str, template: str | None = None, **tokens: str) -> PreTrainedTokenizerBase:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(state), **tokens)
    tokenizer.chat_template = template
    return tokenizer


def chatml(template: str | None = CHATML) -> PreTrainedTokenizerBase:
    """Byte-level BPE, no BOS, EOS `<|im_end|>`, pad another token."""
    state = _byte_level(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    return _wrap(state, template, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def pad_is_eos() -> PreTrainedTokenizerBase:
    """As `chatml`, with one token for both."""
    state = _byte_level(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    return _wrap(state, CHATML, eos_token="<|im_end|>", pad_token="<|im_end|>")


def end_of_text() -> PreTrainedTokenizerBase:
    """As `chatml`, but the declared EOS is not what the template ends turns with, as in Llama 3's base models."""
    state = _byte_level(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    return _wrap(state, CHATML, eos_token="<|endoftext|>")


def bare() -> PreTrainedTokenizerBase:
    """Byte-level BPE without BOS, EOS, pad or chat template."""
    return _wrap(_byte_level(()))


def instructions() -> PreTrainedTokenizerBase:
    """SentencePiece style: words start with ▁; tokenizer and template both put BOS `<s>`; EOS is `</s>`."""
    return _wrap(_metaspace(), INSTRUCTIONS, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def wordpiece() -> PreTrainedTokenizerBase:
    """Lower-casing WordPiece that puts [CLS] before and [SEP] behind, and has no template."""
    return _wrap(
        _wordpiece(), None, cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", pad_token="[PAD]", eos_token="[SEP]"
    )


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
    "chatml": chatml,
    "pad_is_eos": pad_is_eos,
    "end_of_text": end_of_text,
    "bare": bare,
    "instructions": instructions,
    "wordpiece": wordpiece,
}
