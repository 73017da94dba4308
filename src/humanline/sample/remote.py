"""Sampling from an OpenAI-compatible server: vLLM, SGLang, llama.cpp, `transformers serve`, or a hosted model.

Every completion is a request of its own with a seed of its own, many at a time. The first request finds out what the server
understands: token ids (exact), the prompt's text (its token count is compared), or the messages (the server's own template).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from humanline import randomness
from humanline.data.rows import Message
from humanline.data.sampled import FINISHED
from humanline.data.vocabulary import Vocabulary
from humanline.errors import ServerError
from humanline.sample.config import SampleConfig, ServerConfig
from humanline.sample.sampler import Sampled, logprobs_meaning
from humanline.sample.server import BrokenReply, Refused, Server

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedTokenizerBase

Api = Literal["tokens", "text", "chat"]
UNSUPPORTED = frozenset({400, 404, 405, 415, 422, 501})
"""status codes that say a form of request is not understood, so that another one may be tried"""
