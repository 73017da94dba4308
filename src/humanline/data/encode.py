"""Rows to tokens: one prompt shared by all completions of a row, and where training starts and stops, found in token space.

P prompt tokens · T completion tokens.  mask: True = the token counts.
A conversation is rendered and tokenized once, as a whole. The prompt is what its tokens share with the tokens of the rendered prompt
alone, so prompt + completion are always the tokens of the whole text, whatever merges at the seam. Masks come from positions, never
from token ids.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from humanline.config import DataConfig
from humanline.data.encode_report import Count, EncodeReport
from humanline.data.render import Rendered, RenderedRow, Renderer
from humanline.data.rows import Completion, EncodedCompletion, EncodedGroup, Place, Row
from humanline.data.special_tokens import SpecialTokens
from humanline.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BLOCK = 1024
"""rows tokenized in one call"""
