"""log π_θ(y_t | x, y_<t) in float32, the vocabulary in chunks.

B sequences · S positions · T completion tokens · N trained tokens · H hidden size · V vocabulary.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from humanline.errors import ModelError

logger = logging.getLogger(__name__)

CHUNK_ELEMENTS = 2**25
"""float32 logits held at a time (128 MiB): a larger step is computed in chunks and recomputed in backward"""
CHECK_TOLERANCE = 2e-3
"""nats; how far backbone + head may lie from the model's own forward in the start-up check (bfloat16 weights included)"""


class TokenLogps(nn.Module):
    """The module that is wrapped for data-parallel or sharded training: its `forward` is the whole path to log-probs.

    Backbone and output head are called as submodules, so that prompt and padding positions get no `[tokens, vocabulary]` tensor.
    Whether that equals the model's own forward (logit scaling, soft caps and the like) is checked once on random tokens; a model where
    it does not is called whole, and said so.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.vocabulary: int = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        self.whole = not self._parts_agree()
        if self.whole:
            logger.warning(
                "%s computes its logits in a way of its own: every position goes through its own forward.", type(model).__name__
            )

    def forward(
        self,
        input_ids_BS: Int[Tensor, "B S"],
        attention_mask_BS: Int[Tensor, "B S"] | None,
        position_ids_BS: Int[Tensor, "B S"] | None,
        predict_BT: Int[Tensor, "B T"],
        token_BT: Int[Tensor, "B T"],
        mask_BT: Bool[Tensor, "B T"],
    ) -> Float[Tensor, "B T"]:
        """float32 log-probs in nats, 0 where mask_BT is False."""
        inputs = {"input_ids": input_ids_BS, "attention_mask": attention_mask_BS, "position_ids": position_ids_BS}
        b_N, t_N = mask_BT.nonzero(as_tuple=True)
        predict_N, token_N = predict_BT[b_N, t_N], token_BT[b_N, t_N]
        if self.whole:
            logits_NV = self.model(**inputs, use_cache=False).logits[b_N, predict_N]
            logp_N = -F.cross_entropy(logits_NV.float(), token_N, reduction="none")
        else:
            hidden_BSH = _backbone(self.model)(**inputs, use_cache=False).last_hidden_state
            logp_N = self._logps(hidden_BSH[b_N, predict_N], token_N)
        return torch.zeros_like(mask_BT, dtype=torch.float32).index_put((b_N, t_N), logp_N)

    def _logps(self, hidden_NH: Tensor, token_N: Tensor) -> Tensor:
        """Through the head in chunks of at most CHUNK_ELEMENTS logits; chunks are recomputed in backward rather than kept."""
        size = max(1, CHUNK_ELEMENTS // self.vocabulary)
        if len(token_N) <= size:
            return self._chunk(hidden_NH, token_N)
        pieces = zip(hidden_NH.split(size), token_N.split(size), strict=True)
        if torch.is_grad_enabled():
            return torch.cat([checkpoint(self._chunk, hidden, token, use_reentrant=False) for hidden, token in pieces])
        return torch.cat([self._chunk(hidden, token) for hidden, token in pieces])

    def _chunk(self, hidden_NH: Tensor, token_N: Tensor) -> Tensor:
        logits_NV = _transform(self.model, self.model.get_output_embeddings()(hidden_NH).float())  # type: ignore[operator]
        return -F.cross_entropy(logits_NV, token_N, reduction="none")

    @torch.no_grad()
    def _parts_agree(self) -> bool:
        """Compare both paths on a few random tokens; also finds models that cannot be trained: damaged, not causal, not deterministic."""
        head = self.model.get_output_embeddings()  # type: ignore[operator]
        backbone = _backbone(self.model)
        device = next(self.model.parameters()).device
        if device.type == "meta":
            return head is not None and backbone is not self.model
        ids = torch.arange(1, 9, device=device).remainder(self.vocabulary)[None]
        logits = self.model(input_ids=ids, use_cache=False).logits.float()
        if logits.isnan().any():
            raise ModelError(
                f"{type(self.model).__name__}: its logits are NaN for ordinary tokens. Expected finite numbers: the weights are damaged, "
                "so take another copy of the model."
            )
        if not torch.equal(logits, self.model(input_ids=ids, use_cache=False).logits.float()):
            raise ModelError(
                f"{type(self.model).__name__}: two forward passes over the same tokens differ, so log-ratios would be noise. "
                "Expected a deterministic forward. Dropout that cannot be switched off by its attribute is the usual cause."
            )
        other = ids.clone()
        other[0, -1] = (other[0, -1] + 1) % self.vocabulary
        shift = (self.model(input_ids=other, use_cache=False).logits.float() - logits)[0, :-1].abs().max()
        if shift > CHECK_TOLERANCE:
            raise ModelError(
                f"{type(self.model).__name__}: another last token changes the logits before it by {float(shift):.2g}, so a token would "
                "see what follows it. Expected a causal LM; encoders such as BERT look both ways."
            )
        if head is None or backbone is self.model:
            return False
        own = _transform(self.model, head(backbone(input_ids=ids, use_cache=False).last_hidden_state).float())
        return own.shape == logits.shape and bool((own.log_softmax(-1) - logits.log_softmax(-1)).abs().max() < CHECK_TOLERANCE)


def _backbone(model: nn.Module) -> nn.Module:
    """The part of a transformers causal LM below its head; the model itself where there is none."""
    inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    backbone: nn.Module = inner.base_model
    return backbone


def _transform(model: nn.Module, logits: Tensor) -> Tensor:
    """What some architectures do to logits after the head: Gemma's soft cap, Cohere's and Granite's scaling."""
    config = model.config.get_text_config()  # type: ignore[operator,union-attr]
    if scale := getattr(config, "logit_scale", None):
        logits = logits * scale
    if scaling := getattr(config, "logits_scaling", None):
        logits = logits / scaling
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = cap * torch.tanh(logits / cap)
    return logits
