"""Randomness as a function of (seed, purpose, where): the same draw whatever the process, the split or the restart."""

from __future__ import annotations

import hashlib

import numpy as np


def key(seed: int, purpose: str, *where: int) -> int:
    """128-bit key of a stream; different purposes or places never share one."""
    text = repr((int(seed), purpose, tuple(int(part) for part in where)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def generator(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """A fresh numpy generator of that stream, at its beginning."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *where)))
