"""`evaluate win-rate`: outputs against a baseline, by a judge at a real server on loopback, a reward model or a function."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

import builders
import small_tokenizers
from contests import COUNT, RAW_ONLY, config, evaluated, fair, outputs, prefers, results, shown, written
from humanline.errors import CheckpointError, ScoringError, ServerError
from humanline.evaluate.config import InstructionRowsConfig, LengthConfig, WinRateConfig
from humanline.sample.config import SampleConfig
from humanline.score import Function, Judge, RewardModel
from humanline.score.comparison import COMPARE
from judge_server import Answer, JudgeServer, says, serving


def test_a_fair_judge_gives_what_it_thinks(tmp_path: Path) -> None:
    with serving(fair) as server:
        found, lines = evaluated(config(tmp_path, server))
    assert found.raw is not None and found.raw[:1] + found.raw[5:] == (50.0, 10, 10, 0, 20, 0)
    assert lines[:3] == [
        "judging 20 pairs of outputs by stub",
        "model against base: 20 of 20 instructions judged",
        "10 wins, 10 losses, 0 ties (0 with equal outputs)",
    ]
    stored = results(tmp_path)
    assert stored["raw"]["win_rate"] == 50.0 and stored["annotator"] == "stub"
    assert stored["settings"]["criteria"] == COMPARE and stored["settings"]["judge_seed"] == 0
    assert sorted(stored["files"]) == sorted([str(tmp_path / "model.json"), str(tmp_path / "base.json")])
    assert json.loads((tmp_path / "out" / "model_outputs.json").read_text()) == outputs("model")


def test_R41_an_always_first_judge_scores_50_in_both_orders(tmp_path: Path) -> None:
    with serving(lambda *_: prefers("A")) as server:
        found, _ = evaluated(config(tmp_path, server, order="both"))
    assert found.raw is not None and (found.raw.win_rate, found.raw.ties) == (50.0, COUNT)
    assert len(server.bodies) == 1 + 2 * COUNT


def test_R41_the_order_follows_the_seed_and_is_stored(tmp_path: Path) -> None:
    """An always-first judge prefers what it saw first: verdicts and stored orders must agree, and both orders occur."""
    with serving(lambda *_: prefers("A")) as server:
        evaluated(config(tmp_path, server, length=RAW_ONLY))
        rows = results(tmp_path, "annotations.json")
        assert [row["preference"] for row in rows] == [
            {"model first": 2.0, "baseline first": 1.0}[row["orders"][0]] for row in rows
        ]
        assert {row["orders"][0] for row in rows} == {"model first", "baseline first"}
        assert [row["orders"] for row in rows] == [
            ["model first" if shown(body)[0].startswith("model") else "baseline first"] for body in _by_question(server)
        ]
        evaluated(config(tmp_path, server, length=RAW_ONLY, out=str(tmp_path / "again")))
        again = json.loads((tmp_path / "again" / "annotations.json").read_text())
        evaluated(config(tmp_path, server, length=RAW_ONLY, out=str(tmp_path / "other"), judge_seed=1))
        other = json.loads((tmp_path / "other" / "annotations.json").read_text())
    assert again == rows and other != rows


def _by_question(server: JudgeServer) -> list[dict[str, Any]]:
    return sorted(server.bodies[1 : COUNT + 1], key=lambda body: int(re.findall(r"\d+$", shown(body)[0])[0]))


def test_R39_missing_judgements_are_counted_and_asked_again(tmp_path: Path) -> None:
    """One of 20 fails at first: a number over 19. The same command with resume asks for that one only."""
    failing = {"on": True}

    def answer(number: int, body: dict[str, Any]) -> Answer:
        return says("I cannot say.") if failing["on"] and shown(body)[0].endswith(" 7") else fair(number, body)

    written(tmp_path / "model.json", [row | {"output": row["output"].replace("x", "")} for row in outputs("model")])
    written(tmp_path / "base.json", [row | {"output": row["output"].replace("x", "")} for row in outputs("base")])
    with serving(answer) as server:
        settings = config(tmp_path, server, least_judged=0.95, length=RAW_ONLY)
        found, lines = evaluated(settings)
        assert found.raw is not None and (found.raw.judged, found.raw.missing) == (19, 1)
        assert lines[1] == "model against base: 19 of 20 instructions judged, 1 out of format"
        assert results(tmp_path)["counts"]["missing"] == {"out of format": 1}
        failing["on"] = False
        asked = len(server.bodies)
        found, _ = evaluated(config(tmp_path, server, least_judged=0.95, length=RAW_ONLY, resume=True))
    assert len(server.bodies) == asked + 2, "the probe of a new process, and the one that had failed"
    assert found.raw is not None and (found.raw.judged, found.raw.missing) == (20, 0)


def test_R39_too_few_judgements_give_no_number(tmp_path: Path) -> None:
    def answer(number: int, body: dict[str, Any]) -> Answer:
        return says("I cannot say.") if re.search(r"[89]$", shown(body)[0]) else fair(number, body)

    with serving(answer) as server, pytest.raises(ScoringError) as error:
        evaluated(config(tmp_path, server))
    assert str(error.value).startswith(
        "16 of 20 instructions are judged, 80.0%: below least_judged, 95.0%, so there is no win rate.\n"
    )
    stored = results(tmp_path)
    assert (stored["raw"], stored["length_controlled"]) == (None, None)
    assert (stored["counts"]["judged"], stored["counts"]["instructions"]) == (16, 20)
    assert [row["preference"] for row in results(tmp_path, "annotations.json")].count(None) == 4


def test_R40_which_mode_each_verdict_came_by_is_stored(tmp_path: Path) -> None:
    """Weighted judging needs log-probs; with fallback the letter as written counts, and the row says so."""

    def answer(number: int, body: dict[str, Any]) -> Answer:
        weighed = [("A", {"A": -0.5108256237659907, "B": -0.916290731874155})]  # 0.6 and 0.4
        return says("A", likely=weighed if number % 2 == 0 else None)

    with serving(answer) as server:
        judge = Judge(base_url=server.url, model="stub", mode="weighted", high=9, fallback=True, retries=0, concurrency=1)
        found, _ = evaluated(config(tmp_path, server, scorer=judge, length=RAW_ONLY))
    rows = results(tmp_path, "annotations.json")
    assert found.counts["modes"] == {"number": 10, "weighted": 10}
    assert {row["modes"][0]: round(abs(row["preference"] - 1.5), 6) for row in rows} == {"weighted": 0.1, "number": 0.5}


def test_R42_a_server_that_stops_answering_ends_it_and_what_was_judged_stays(tmp_path: Path) -> None:
    """It dies after 7 answers; the rest is asked with resume."""

    def answer(number: int, body: dict[str, Any]) -> Answer:
        return fair(number, body) if number < 7 or not dying["on"] else Answer(None)

    dying = {"on": True}
    with serving(answer) as server:
        judge = Judge(base_url=server.url, model="stub", backoff=0.01, retries=0, concurrency=1)
        with pytest.raises(ServerError, match=r"stopped answering: .*\n.*\n  Go on with --resume\.$"):
            evaluated(config(tmp_path, server, scorer=judge))
        dying["on"], asked = False, len(server.bodies)
        found, _ = evaluated(config(tmp_path, server, scorer=judge, resume=True))
        assert len(server.bodies) - asked == 1 + COUNT - 6, (
            "the probe, and all but the six that were judged after the first probe"
        )
    assert found.raw is not None and (found.raw.win_rate, found.raw.judged) == (50.0, COUNT)


def test_equal_outputs_are_ties_that_nobody_is_asked_about(tmp_path: Path) -> None:
    """A model equal to its baseline has 50, raw and length-controlled."""
    with serving(lambda *_: prefers("A")) as server:
        same = written(tmp_path / "same.json", outputs("base"))
        found, _ = evaluated(config(tmp_path, server, outputs=same))
    assert len(server.bodies) == 1, "the probe only"
    assert found.raw is not None and found.length_controlled is not None
    assert (found.raw.win_rate, found.raw.ties, found.length_controlled.win_rate) == (50.0, COUNT, 50.0)
    assert found.counts["same_output"] == COUNT


def test_judgements_that_are_there_give_the_same_number(tmp_path: Path) -> None:
    with serving(fair) as server:
        first, _ = evaluated(config(tmp_path, server))
    again, _ = evaluated(
        WinRateConfig(
            annotations=str(tmp_path / "out" / "annotations.json"), out=str(tmp_path / "again"), length=LengthConfig(resamples=5)
        )
    )
    assert (again.raw, again.length_controlled) == (first.raw, first.length_controlled)
    settings = json.loads((tmp_path / "again" / "results.json").read_text())["settings"]
    assert "scorer" not in settings and "model" not in settings, "what played no part is not shown as if it had"


def test_order_of_rows_is_irrelevant(tmp_path: Path) -> None:
    with serving(fair) as server:
        first, _ = evaluated(config(tmp_path, server))
        written(tmp_path / "model.json", outputs("model")[::-1])
        written(tmp_path / "base.json", outputs("base")[5:] + outputs("base")[:5])
        second, _ = evaluated(config(tmp_path, server, out=str(tmp_path / "other")))
    assert (second.raw, second.length_controlled) == (first.raw, first.length_controlled)


def test_a_function_scores_each_output(tmp_path: Path) -> None:
    (tmp_path / "longest.py").write_text(
        "def longest(completion, instruction):\n    return None if instruction == 'Question 3?' else len(completion)\n"
    )
    scorer = Function(path=f"{tmp_path}/longest.py:longest")
    found, _ = evaluated(config(tmp_path, scorer=scorer, length=RAW_ONLY, least_judged=0.9))
    pairs = list(zip(outputs("model"), outputs("base"), strict=True))
    differences = [len(a["output"]) - len(b["output"]) for n, (a, b) in enumerate(pairs) if n != 3]
    assert found.raw is not None
    assert (found.raw.wins, found.raw.losses, found.raw.ties, found.raw.missing) == (
        sum(each > 0 for each in differences), sum(each < 0 for each in differences), differences.count(0), 1
    )  # fmt: skip
    assert results(tmp_path, "annotations.json")[3]["why"] == "unscored by longest: None"


def test_a_reward_model_prefers_what_it_scores_higher(tmp_path: Path) -> None:
    """Every verdict turns round when the sides are swapped."""
    torch.manual_seed(0)
    tokenizer = small_tokenizers.chatml()
    settings = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=256, initializer_range=0.2, num_labels=1, pad_token_id=0,
    )  # fmt: skip
    LlamaForSequenceClassification(settings).save_pretrained(tmp_path / "reward")
    tokenizer.save_pretrained(tmp_path / "reward")
    scorer = RewardModel(model=str(tmp_path / "reward"), device="cpu", template="chat")
    one, _ = evaluated(config(tmp_path, scorer=scorer, length=RAW_ONLY))
    sides = {"outputs": str(tmp_path / "base.json"), "baseline": str(tmp_path / "model.json"), "out": str(tmp_path / "swapped")}
    other, _ = evaluated(config(tmp_path, scorer=scorer, length=RAW_ONLY, **sides))
    assert one.raw is not None and other.raw is not None
    assert 0 < one.raw.wins < COUNT and (one.raw.wins, one.raw.losses) == (other.raw.losses, other.raw.wins)
    assert "reward" in one.out.joinpath("results.json").read_text()


def test_a_model_answers_the_instructions_first(tmp_path: Path) -> None:
    """Its outputs are written in AlpacaEval's form; a resumed evaluation draws and judges nothing again."""
    model = builders.save_model(tmp_path / "tiny")
    written(tmp_path / "instructions.json", [{"instruction": f"Question {n}?", "dataset": "own"} for n in range(COUNT)])
    drawing = {
        "model": model, "outputs": "", "data": str(tmp_path / "instructions.json"), "device": "cpu", "name": "tiny",
        "rows": InstructionRowsConfig(template="none"), "sample": SampleConfig(n=1, max_new_tokens=9), "length": RAW_ONLY,
    }  # fmt: skip
    with serving(lambda *_: prefers("A")) as server:
        found, lines = evaluated(config(tmp_path, server, **drawing))
        asked = len(server.bodies)
        again, resumed = evaluated(config(tmp_path, server, **drawing, resume=True))
        assert len(server.bodies) == asked + 1, "the probe of a new process"
    rows = results(tmp_path, "model_outputs.json")
    assert [list(row) for row in rows] == [["dataset", "instruction", "output", "generator"]] * COUNT
    assert [(row["instruction"], row["generator"]) for row in rows] == [(f"Question {n}?", "tiny") for n in range(COUNT)]
    assert again.raw == found.raw
    assert any("outputs were truncated" in line for line in lines) and any(line.endswith("is complete") for line in resumed)
    assert results(tmp_path)["settings"]["sample"]["max_new_tokens"] == 9
    with (
        serving(lambda *_: prefers("A")) as server,
        pytest.raises(CheckpointError, match="going on would mix two evaluations:\n  sample:"),
    ):
        evaluated(config(tmp_path, server, **drawing | {"sample": SampleConfig(n=1, max_new_tokens=8)}, resume=True))


def test_thoughts_are_no_part_of_an_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    completions = [("<think>hm</think>\n yes", "yes"), ("no thought", "no thought"), ("<think>without end", "")]
    written(tmp_path / "instructions.json", outputs("any", 3))
    written(tmp_path / "base.json", outputs("base", 3))

    def drawn(settings: WinRateConfig, prompts: Path, samples: Path, say: object) -> None:
        asked = [json.loads(line) for line in prompts.read_text().splitlines()]
        rows = [
            {**row, "completions": [text], "finish_reason": ["stop"]} for row, (text, _) in zip(asked, completions, strict=True)
        ]
        samples.write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setattr("humanline.evaluate.contest.draw", drawn)
    with serving(lambda *_: prefers("A")) as server:
        drawing = {"model": "m", "outputs": "", "data": str(tmp_path / "instructions.json"), "length": RAW_ONLY}
        _, lines = evaluated(config(tmp_path, server, **drawing))
    assert [row["output"] for row in results(tmp_path, "model_outputs.json")] == [output for _, output in completions]
    assert lines[0] == "2 outputs begin with thoughts, which are left out of what is judged"


def test_only_the_first_rows(tmp_path: Path) -> None:
    with serving(fair) as server:
        found, _ = evaluated(config(tmp_path, server, rows=InstructionRowsConfig(limit_rows=6)))
    assert found.counts["instructions"] == 6


def test_R37_the_length_controlled_win_rate_is_doubted_when_far_from_the_raw_one(tmp_path: Path) -> None:
    """Short outputs win always, long ones never: length explains it all, and the two win rates part."""
    rows = [
        {
            "instruction": f"Question {n}?",
            "output_1": "b" * 100,
            "output_2": "m" * (20 if n < 45 else 180),
            "preference": 2 if n < 45 else 1,
        }
        for n in range(60)
    ]
    settings = WinRateConfig(
        annotations=written(tmp_path / "a.json", rows), out=str(tmp_path / "out"), length=LengthConfig(resamples=2)
    )
    found, lines = evaluated(settings)
    assert found.raw is not None and found.length_controlled is not None
    assert found.raw.win_rate == 75.0 and abs(found.length_controlled.win_rate - 75) > 10
    assert [line for line in lines if line.startswith("warning: the length-controlled win rate is ")]


def test_R38_a_fit_without_regulariser_is_labelled_as_such(tmp_path: Path) -> None:
    with serving(fair) as server:
        _, lines = evaluated(config(tmp_path, server))
    assert results(tmp_path)["length_controlled"]["label"] == "length-controlled, no regulariser, no difficulties"
    assert lines[-2] == "Without AlpacaEval's regulariser the length-controlled win rate does not compare with published ones."


def test_judgements_from_a_file_are_not_asked_for_again(tmp_path: Path) -> None:
    rows = [{"instruction": f"q{number}", "output_1": "a", "output_2": "b", "preference": None} for number in range(4)]
    path = written(tmp_path / "a.json", rows)
    with pytest.raises(
        ScoringError, match=re.escape(f"The others have no preference in {path}. Have them judged there, or lower")
    ):
        evaluated(WinRateConfig(annotations=path, out=str(tmp_path / "out"), length=RAW_ONLY))
