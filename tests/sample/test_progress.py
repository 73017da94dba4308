"""What sampling says: rate and time left while it runs, and a warning when most completions are cut."""

from __future__ import annotations

from humanline.sample.progress import Progress
from humanline.sample.sampler import Sampled


def completions(cut: int, finished: int) -> list[Sampled]:
    return [Sampled(None, None, finished=False, text="a")] * cut + [Sampled(None, None, finished=True, text="b")] * finished


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_R44_rate_and_time_left() -> None:
    """After 20 s: 2000 tokens are 100/s; 5 of 15 open prompts took 20 s, so 10 more take 40 s."""
    said: list[str] = []
    clock = Clock()
    progress = Progress(20, max_new_tokens=64, say=said.append, clock=clock)
    progress.start(done=5)
    clock.now += 9
    progress.made(1000)
    assert said == []
    clock.now += 2
    progress.made(500)
    assert said == ["sampling: 5/20 prompts, 136 tokens/s, ETA –"]
    for _ in range(5):
        progress.finished(completions(0, 2))
    clock.now += 9
    progress.made(500)
    assert len(said) == 1
    clock.now += 2
    progress.made(200)
    assert said[1] == "sampling: 10/20 prompts, 100 tokens/s, ETA 0:44"
    progress.end()
    assert said[2:] == ["sampled 5 prompts, 10 completions, 2200 tokens in 0:22 (100 tokens/s); 0 completions cut at 64 tokens"]


def test_R45_more_than_half_cut_is_warned_of_as_soon_as_it_shows_and_once() -> None:
    said: list[str] = []
    progress = Progress(100, max_new_tokens=64, say=said.append)
    for _ in range(7):
        progress.finished(completions(5, 3))
    assert said == []
    progress.finished(completions(5, 3))
    assert said == ["warning: 40 of 64 completions (62%) were cut at 64 tokens before they ended: raise --max-new-tokens."]
    progress.finished(completions(8, 0))
    progress.end()
    assert len(said) == 2 and said[1].startswith("sampled 9 prompts")


def test_R45_a_short_run_is_warned_at_its_end() -> None:
    said: list[str] = []
    progress = Progress(1, max_new_tokens=8, say=said.append)
    progress.finished(completions(3, 2))
    progress.end()
    assert said[1] == "warning: 3 of 5 completions (60%) were cut at 8 tokens before they ended: raise --max-new-tokens."


def test_R45_half_cut_is_no_reason_to_warn() -> None:
    said: list[str] = []
    progress = Progress(40, max_new_tokens=8, say=said.append)
    for _ in range(40):
        progress.finished(completions(2, 2))
    progress.end()
    assert [line for line in said if line.startswith("warning")] == []
