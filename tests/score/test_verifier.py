"""The math verifier as a process of its own: the same answers from everywhere, and an end to everything."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from humanline.data.read import read_records
from humanline.errors import ConfigError
from humanline.score import Item, Math, Verdict
from humanline.score.verifier import Comparison, Verifier

ENDLESS = "The answer is $9^{9^{9^9}}$"
QUESTIONS = [
    (["1/2"], r"\boxed{\frac{2}{4}}"),
    (["73"], "**73**"),
    (["2"], "The answer is 3"),
    ([r"\sqrt{1/n}"], r"\boxed{1/\sqrt{n}}"),
]
RIGHT = [True, True, False, True]


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    made = Verifier(limit=60.0)
    yield made
    made.close()


def rights(verifier: Verifier) -> list[bool | None]:
    return [verifier.compare(*question).right for question in QUESTIONS]


def test_R33_the_same_answers_from_a_thread(verifier: Verifier) -> None:
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: rights(verifier), range(4))) == [RIGHT] * 4


def test_R33_the_same_answers_from_asyncio(verifier: Verifier) -> None:
    async def ask() -> tuple[list[bool | None], list[bool | None]]:
        return rights(verifier), await asyncio.to_thread(rights, verifier)

    assert asyncio.run(ask()) == (RIGHT, RIGHT)


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_R33_the_same_answers_from_a_process_pool(verifier: Verifier, start: str) -> None:
    assert rights(verifier) == RIGHT  # so that a fork inherits a worker that is not its own
    with multiprocessing.get_context(start).Pool(1) as pool:
        compared = pool.starmap(verifier.compare, QUESTIONS * 2)
        pool.close()
        pool.join()
    assert [each.right for each in compared] == RIGHT * 2
    assert rights(verifier) == RIGHT


def test_R33_an_endless_comparison_is_killed_in_time_from_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the caller's own alarm stays as it was."""
    handler = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    verifier = Verifier(limit=1.0)
    assert verifier.compare(["2"], "2").right is True
    (worker,) = verifier._idle.queue
    process = worker._process
    taken: list[tuple[Comparison, float]] = []

    def ask() -> None:
        started = time.monotonic()
        taken.append((verifier.compare(["2"], ENDLESS), time.monotonic() - started))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    ((compared, seconds),) = taken
    assert compared == Comparison(None, "", "timeout", 1.0)
    assert 1.0 <= seconds < 3.0
    assert process.returncode == -signal.SIGKILL
    assert verifier.compare(["2"], "2").right is True  # by a new worker
    assert verifier._idle.queue[0]._process.pid != process.pid
    verifier.close()
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_IGN
    signal.signal(signal.SIGALRM, handler)


def test_a_worker_that_dies_is_replaced(verifier: Verifier) -> None:
    assert rights(verifier) == RIGHT
    os.kill(verifier._idle.queue[0]._process.pid, signal.SIGKILL)
    verifier._idle.queue[0]._process.wait()
    assert rights(verifier) == RIGHT


def test_a_worker_that_dies_at_work_gives_no_verdict() -> None:
    verifier = Verifier(limit=60.0)
    assert verifier.compare(["2"], "2").right is True
    threading.Timer(0.3, os.kill, (verifier._idle.queue[0]._process.pid, signal.SIGKILL)).start()
    assert verifier.compare(["2"], ENDLESS).why == "verifier died"
    assert verifier.compare(["2"], "2").right is True
    verifier.close()


def test_an_orphaned_worker_ends_by_itself() -> None:
    """Its own alarm is twice the limit and a second; until then nobody is left to kill it."""
    verifier = Verifier(limit=0.2)
    assert verifier.compare(["2"], "2").right is True
    process = verifier._idle.queue[0]._process
    process.stdin.write(b'{"golds": ["2"], "text": "$9^{9^{9^9}}$", "precision": 6, "set_relations": false, "limit": 0.2}\n')
    process.stdin.flush()
    assert process.wait(timeout=30) == -signal.SIGALRM
    verifier.close()


def test_several_workers_give_the_same_in_order() -> None:
    verifier = Verifier(limit=60.0, processes=2)
    assert [each.right for each in verifier.compare_all(QUESTIONS * 5)] == RIGHT * 5
    assert len({worker._process.pid for worker in verifier._idle.queue}) == 2
    verifier.close()


def test_closing_ends_the_workers_and_a_later_question_starts_them_anew() -> None:
    verifier = Verifier(limit=60.0)
    assert rights(verifier) == RIGHT
    process = verifier._idle.queue[0]._process
    verifier.close()
    assert process.returncode == -signal.SIGKILL
    copy = pickle.loads(pickle.dumps(verifier))
    assert rights(verifier) == rights(copy) == RIGHT
    verifier.close()
    copy.close()


def test_a_missing_library_is_said_before_anything_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="Run `pip install math-verify`"):
        Math().build()


# As a scorer


def test_R33_timeouts_are_apart_from_wrong_answers() -> None:
    completions = [r"\boxed{2}", r"\boxed{3}", ENDLESS, "nothing"]
    with Math(limit=2.0).build() as scorer:
        verdicts = scorer.verdicts([Item("1+1?", completion, row={"answer": "2"}) for completion in completions])
    assert verdicts == [
        Verdict(1.0, note="answer 2, gold 2"),
        Verdict(0.0, note="answer 3, gold 2"),
        Verdict(None, "timeout", "after 2 s"),
        Verdict(0.0, note="answer (none), gold 2"),
    ]


def test_R28_only_what_follows_the_thoughts_is_the_answer() -> None:
    with Math().build() as scorer:
        verdicts = scorer.verdicts(
            [
                Item("Q?", "\\boxed{1}\n</think>\nThe answer is 2.", "<think>\n", {"answer": 2}),
                Item("Q?", "\\boxed{2}\n</think>\nThe answer is 1.", "<think>\n", {"answer": 2}),
                Item("Q?", "\\boxed{2} and so", "<think>\n", {"answer": 2}),
            ]
        )
    assert [verdict.score for verdict in verdicts] == [1.0, 0.0, 0.0]
    assert verdicts[2].note == "no answer: the thoughts do not end"


def test_a_row_without_readable_gold_answer_is_unscored() -> None:
    rows = [{"answer": "$"}, {"solution": "2"}, {"answer": ["", "2"]}]
    with Math().build() as scorer:
        verdicts = scorer.verdicts([Item("Q?", r"\boxed{2}", row=row) for row in rows])
    assert [(verdict.score, verdict.why) for verdict in verdicts] == [
        (None, "gold answer not readable"),
        (None, "no gold answer"),
        (1.0, ""),
    ]


# Real answers


@pytest.mark.slow
def test_R34_at_least_95_percent_of_the_cases_are_right_and_each_takes_under_a_second(
    verifier: Verifier, real_data: Path
) -> None:
    """Seconds of CPU, which a busy machine does not change."""
    cases = [
        case
        for _, case in read_records(real_data / "math" / "answer_equivalence_cases.jsonl")
        if not case.get("upstream_suspect")
    ]
    verifiers = {(6, False): verifier}
    wrong = []
    for case in cases:
        options = case.get("options", {})
        settings = (options.get("precision", 6), options.get("allow_set_relation_comp", False))
        if settings not in verifiers:
            verifiers[settings] = Verifier(limit=60.0, precision=settings[0], set_relations=settings[1])
        compared = verifiers[settings].compare([case["gold"]], case["pred"])
        assert compared.seconds < 1.0, case
        if compared.right != case["expected"]:
            wrong.append(case)
    for made in verifiers.values():
        made.close()
    assert len(cases) == 157
    assert len(wrong) <= 1, wrong


def test_R34_every_gold_answer_of_math500_is_found_in_its_solution(verifier: Verifier, real_data: Path) -> None:
    rows = [row for _, row in read_records(real_data / "math" / "math500_test.jsonl")]
    compared = verifier.compare_all([([row["answer"]], row["solution"]) for row in rows])
    assert [row["answer"] for row, each in zip(rows, compared, strict=True) if not each.right] == []


@pytest.mark.slow
def test_R34_real_completions_are_judged_as_published(verifier: Verifier, real_data: Path) -> None:
    """799 of 800 agree; the one that does not answers 10000 where the gold is 10{,}000, and was called wrong."""
    rows = [row for _, row in read_records(real_data / "math" / "qwen_math_cot_100.jsonl")]
    questions = [([row["gt"]], completion) for row in rows for completion in row["code"]]
    scores = [bool(score) for row in rows for score in row["score"]]
    compared = verifier.compare_all(questions)
    differing = [
        (question[0], each.found)
        for question, each, score in zip(questions, compared, scores, strict=True)
        if each.right != score
    ]
    assert differing == [(["10{,}000"], "10000")]
