"""What sampling says while it runs: how far, how fast, how long still, and when completions are cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from humanline.metrics import duration
from humanline.sample.sampler import Sampled

EVERY_SECONDS = 10.0
FIRST_LOOK = 64
"""completions after which the share of cut ones is looked at for the first time"""


class Progress:
    """Counts prompts, completions and tokens; prints a line every `EVERY_SECONDS`."""

    def __init__(
        self, total: int, *, max_new_tokens: int, say: Callable[[str], None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """total: prompts."""
        self.total, self.max_new_tokens, self.say = total, max_new_tokens, say
        self.completions = self.cut = self.tokens = 0
        self._clock = clock
        self._warned = False
        self.start(done=0)

    def start(self, *, done: int) -> None:
        """The clock starts now, with `done` prompts there already."""
        self.done = self._first = done
        self._started = self._shown = self._clock()

    def made(self, tokens: int) -> None:
        """So many more tokens were drawn."""
        self.tokens += tokens
        if self._clock() - self._shown >= EVERY_SECONDS:
            self._shown = self._clock()
            self.say(self._line())

    def finished(self, completions: Sequence[Sampled]) -> None:
        """All completions of one more prompt are there."""
        self.done += 1
        self.completions += len(completions)
        self.cut += sum(not sampled.finished for sampled in completions)
        if self.completions >= FIRST_LOOK:
            self._warn()

    def end(self) -> None:
        """The last line."""
        seconds = self._clock() - self._started
        self.say(
            f"sampled {self.done - self._first} prompts, {self.completions} completions, {self.tokens} tokens in {duration(seconds)} "
            f"({self._rate():.0f} tokens/s); {self.cut} completions cut at {self.max_new_tokens} tokens"
        )
        self._warn()

    def _line(self) -> str:
        elapsed = self._clock() - self._started
        fresh = self.done - self._first
        left = duration(elapsed / fresh * (self.total - self.done)) if fresh else "–"
        return f"sampling: {self.done}/{self.total} prompts, {self._rate():.0f} tokens/s, ETA {left}"

    def _rate(self) -> float:
        return self.tokens / max(self._clock() - self._started, 1e-9)

    def _warn(self) -> None:
        """Once, as soon as it shows: rewards of cut answers are mostly 0, and hours of sampling would be lost (R45)."""
        if self._warned or self.cut <= self.completions / 2:
            return
        self._warned = True
        self.say(
            f"warning: {self.cut} of {self.completions} completions ({self.cut / self.completions:.0%}) were cut at {self.max_new_tokens} "
            "tokens before they ended: raise --max-new-tokens."
        )
