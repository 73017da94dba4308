"""The verifier's worker process: compares answers, one JSON line in, one out, until its input ends or it is killed."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import time
from typing import IO

MEMORY = 4 * 2**30
"""bytes of address space: an expression that asks for more is stopped before the machine is"""


def serve() -> None:
    """Answers `{"golds", "text", "precision", "set_relations", "limit"}` with `{"right", "found", "seconds"}` (of CPU)."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not stand among the replies
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner
    logging.disable(logging.CRITICAL)
    _limit_memory()
    if hasattr(sys, "set_int_max_str_digits"):  # since 3.10.7
        sys.set_int_max_str_digits(0)
    from humanline.score.equivalence import compare

    _reply(replies, {"ready": True})
    for line in sys.stdin:
        question = json.loads(line)
        # Its owner kills this process when time is up. Should the owner be gone, the alarm's default action does it.
        signal.setitimer(signal.ITIMER_REAL, 2 * question.pop("limit") + 1)
        started = time.process_time()
        compared = compare(question.pop("golds"), question.pop("text"), **question)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _reply(replies, {**compared._asdict(), "seconds": time.process_time() - started})


def _reply(replies: IO[str], value: dict[str, object]) -> None:
    replies.write(json.dumps(value) + "\n")
    replies.flush()


def _limit_memory() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most), most))
    except (ValueError, OSError):  # macOS has the limit and refuses to set it
        return
