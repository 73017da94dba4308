"""The judge and a real HTTP server that is difficult: what becomes of every kind of failure, and of what was judged before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from humanline.errors import ScoringError, ServerError
from humanline.score import Judge
from humanline.score.judge import JudgeScorer
from judge_server import Answer, grades, refuses, says, serving
from judging import QUESTION, asked_about, items, judge, verdicts

# A difficult server


def test_R42_429_twice_then_200_waits_as_long_as_the_server_asks() -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer:
        return refuses(429, "slow down", retry_after="0.3") if number in (1, 2) else grades(6)

    scored, server = verdicts(answer, [QUESTION])
    assert scored[0].score == 6.0
    waits = [later - earlier for earlier, later in zip(server.times[1:], server.times[2:], strict=False)]
    assert len(waits) == 2
    assert all(wait >= 0.3 for wait in waits)


def test_R42_a_wait_of_hours_is_a_failure_at_once() -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer:
        return refuses(429, "quota", retry_after="86400") if number else grades(6)

    ((verdict,), server) = verdicts(answer, [QUESTION])
    assert (verdict.why, verdict.note) == ("HTTP 429", "the server asks to wait for 86400 s")
    assert len(server.bodies) == 2


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (refuses(500, "internal"), "HTTP 500"),
        (refuses(503, "overloaded"), "HTTP 503"),
        (Answer(None), "no connection"),
        (Answer("{not json"), "unreadable reply"),
        (Answer({"object": "chat.completion", "choices": []}), "unreadable reply"),
        (Answer({"choices": None}, delay=1.0), "timeout"),
    ],
)
def test_R42_passing_faults_are_tried_again_and_then_missing(fault: Answer, why: str) -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer:
        about = asked_about(body)
        again = sum(asked_about(earlier) == about for earlier in server.bodies)
        return fault if about == 2 or (about == 1 and again == 1) else grades(5)

    with serving(answer) as server, judge(server, timeout=0.4, retries=1) as scorer:
        scored = scorer.verdicts(items(3))
        asked = [asked_about(body) for body in server.bodies]
    assert [verdict.score for verdict in scored] == [5.0, 5.0, None]
    assert scored[2].why == why
    assert scored[2].note.endswith("(2 attempts)")
    assert (asked.count(0), asked.count(1), asked.count(2)) == (1, 2, 2)


def test_R42_response_format_is_dropped_once_and_remembered() -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer:
        return refuses(400, "unsupported value") if "response_format" in body else grades(5)

    scored, server = verdicts(answer, items(6), concurrency=1)
    assert [verdict.score for verdict in scored] == [5.0] * 6
    assert ["response_format" in body for body in server.bodies] == [True] + [False] * 7


def test_R42_max_completion_tokens_is_tried_when_max_tokens_is_refused() -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer:
        if "max_tokens" in body:
            return refuses(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return refuses(400, "'temperature' does not support 0.0") if "temperature" in body else grades(5)

    scored, server = verdicts(answer, items(3), concurrency=1, max_tokens=77)
    assert [verdict.score for verdict in scored] == [5.0] * 3
    assert [("max_tokens" in body, body.get("max_completion_tokens")) for body in server.bodies] == [(True, None)] + [
        (False, 77)
    ] * 5
    assert all("response_format" in body for body in server.bodies)
    assert sum("temperature" in body for body in server.bodies) == 2


def test_a_refusal_of_one_row_teaches_nothing_about_the_server() -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer:
        return refuses(400, "context too long") if asked_about(body) == 0 else grades(5)

    scored, server = verdicts(answer, items(3), concurrency=1)
    assert [verdict.score for verdict in scored] == [None, 5.0, 5.0]
    assert scored[0].why == "HTTP 400"
    assert "context too long" in scored[0].note
    assert all("response_format" in body for body in server.bodies if asked_about(body) in (1, 2))


@pytest.mark.parametrize(("status", "advice"), [(401, r"key in \$OPENAI_API_KEY"), (404, "--scorer.model")])
def test_what_would_fail_for_every_row_stops_at_the_first_call(status: int, advice: str) -> None:
    with serving(lambda *_: refuses(status, "no")) as server, judge(server) as scorer, pytest.raises(ServerError, match=advice):
        scorer.verdicts(items(5))
    assert len(server.bodies) == 1


def test_a_judge_that_does_not_judge_is_found_out_by_one_call() -> None:
    with (
        serving(lambda *_: says("Sure! Let me help.")) as server,
        judge(server) as scorer,
        pytest.raises(ServerError, match=r"does not judge, as a first call showed: out of format.*\n.*'Sure! Let me help.'"),
    ):
        scorer.verdicts(items(5))
    assert len(server.bodies) == 1


def test_a_server_that_is_down_is_named() -> None:
    with serving(lambda *_: grades(5)) as server:
        url = server.url
    with (
        judge(server, retries=0) as scorer,
        pytest.raises(ServerError, match=rf"'stub' at {url} does not answer, .*no connection"),
    ):
        scorer.verdicts(items(2))


def test_requests_run_at_a_time_but_no_more_than_allowed() -> None:
    scored, server = verdicts(lambda *_: Answer(grades(5).body, delay=0.05), items(9), concurrency=3)
    assert [verdict.score for verdict in scored] == [5.0] * 9
    assert server.most_at_a_time == 3


def test_equal_conversations_are_judged_once() -> None:
    scored, server = verdicts(lambda *_: grades(5), [QUESTION, *items(1), QUESTION])
    assert [verdict.score for verdict in scored] == [5.0] * 3
    assert len(server.bodies) == 3


# The job file


def test_R39_failures_are_asked_for_again_and_answers_are_not(tmp_path: Path) -> None:
    jobs = str(tmp_path / "jobs.jsonl")
    failing = {1, 4, 6}
    first, server = verdicts(lambda _, body: says("?") if asked_about(body) in failing else grades(5), items(8), jobs=jobs)
    assert [verdict.score for verdict in first] == [None if number in failing else 5.0 for number in range(8)]
    assert len(server.bodies) == 9
    second, server = verdicts(lambda *_: grades(9), items(8), jobs=jobs)
    assert [verdict.score for verdict in second] == [9.0 if number in failing else 5.0 for number in range(8)]
    assert sorted(asked_about(body) or 0 for body in server.bodies[1:]) == [1, 4, 6]
    third, server = verdicts(lambda *_: grades(1), items(8), jobs=jobs)
    assert [verdict.score for verdict in third] == [verdict.score for verdict in second]
    assert server.bodies == []


@pytest.mark.parametrize("change", [{"model": "other"}, {"high": 9.0}, {"temperature": 0.5}, {"instructions": "Be strict."}])
def test_another_setting_is_another_judgement(change: dict[str, Any], tmp_path: Path) -> None:
    jobs = str(tmp_path / "jobs.jsonl")
    verdicts(lambda *_: grades(5), [QUESTION], jobs=jobs)
    with serving(lambda *_: grades(6)) as server:
        settings = {"model": "stub", "base_url": server.url, "jobs": jobs, "backoff": 0.01}
        with JudgeScorer(Judge(**{**settings, **change})) as scorer:
            assert scorer.score([QUESTION]) == [6.0]
        with JudgeScorer(Judge(**{**settings, "concurrency": 1, "timeout": 9.0, "retries": 0})) as scorer:
            assert scorer.score([QUESTION]) == [5.0]


def test_R42_a_server_that_dies_in_the_middle_stops_the_run_and_nothing_is_lost(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.jsonl"

    def answer(number: int, body: dict[str, Any]) -> Answer:
        return grades(5) if number <= 10 else Answer(None)

    with serving(answer) as server, judge(server, jobs=str(jobs), concurrency=2, retries=1) as scorer:
        with pytest.raises(
            ServerError, match=r"stopped answering: 4 calls in a row .*no connection.*\n  What it judged is in .*jobs\.jsonl"
        ):
            scorer.verdicts(items(40))
        assert len(server.bodies) < 30
    kept = [line for line in map(json.loads, jobs.read_text().splitlines()) if "failed" not in line]
    assert len(kept) == 10
    scored, server = verdicts(lambda *_: grades(7), items(40), jobs=str(jobs))
    assert sorted(verdict.score or 0 for verdict in scored) == [5.0] * 10 + [7.0] * 30
    assert len(server.bodies) == 1 + 30


def test_a_torn_last_line_is_dropped_and_written_anew(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.jsonl"
    verdicts(lambda *_: grades(5), items(2), jobs=str(jobs), concurrency=1)
    whole = jobs.read_text()
    jobs.write_text(whole[:-10])
    scored, server = verdicts(lambda *_: grades(8), items(2), jobs=str(jobs))
    assert [verdict.score for verdict in scored] == [5.0, 8.0]
    assert len(server.bodies) == 2
    assert len([json.loads(line) for line in jobs.read_text().splitlines()]) == 2


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text('{"prompt": "2 + 2?"}\n')
    with (
        serving(lambda *_: grades(5)) as server,
        judge(server, jobs=str(jobs)) as scorer,
        pytest.raises(ScoringError, match=r"jobs\.jsonl:1: not a line of judgements \(KeyError: 'key'\)"),
    ):
        scorer.verdicts([QUESTION])
    assert jobs.read_text() == '{"prompt": "2 + 2?"}\n'


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    jobs = str(tmp_path / "jobs.jsonl")
    with serving(lambda *_: grades(5)) as server, judge(server, jobs=jobs) as one, judge(server, jobs=jobs) as other:
        one.verdicts([QUESTION])
        with pytest.raises(ScoringError, match=r"in use by another process"):
            other.verdicts([QUESTION])
        one.close()
        assert other.score([QUESTION]) == [5.0]
