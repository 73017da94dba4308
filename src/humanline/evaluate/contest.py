"""`evaluate win-rate`: how often a model's outputs are preferred to a baseline's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humanline.data.read import read_records
from humanline.data.record import Record, shown
from humanline.data.turns import text_or_turns
from humanline.errors import CheckpointError, DataError, ScoringError, ServerError
from humanline.evaluate.annotations import Annotation, read_annotations, write_annotations
from humanline.evaluate.config import WinRateConfig, validate_win_rate
from humanline.evaluate.drawing import DRAWING, draw, write_lines
from humanline.evaluate.judging import SAME, annotator
from humanline.evaluate.length import LengthControlled, check_length_control, is_large_change, length_controlled_win_rate
from humanline.evaluate.outputs import LISTED, Output, Pair, match, read_outputs, write_json, write_outputs
from humanline.evaluate.results import FORMAT, EvaluationFolder, fingerprints, plain, table, versions
from humanline.evaluate.tables import Tables, read_tables
from humanline.evaluate.winrate import WinRate, win_rate
from humanline.score.thoughts import after_thoughts

FREE = ("least_judged", "length", "scorer", "backend", "device", "server", "engine", "load", "allow_missing")
"""settings that may change when an evaluation goes on; the judge's answers are kept by content, so only what changed is asked again"""
JUDGING = ("scorer", "order", "judge_seed", "criteria", "baseline")
Say = Callable[[str], None]


@dataclass(frozen=True)
class WinRateResult:
    """What an evaluation found; the same as in results.json."""

    out: Path
    raw: WinRate | None
    """None when too few instructions were judged"""
    length_controlled: LengthControlled | None
    """None for the same reason, or because `length.control` is off"""
    counts: dict[str, Any]


def evaluate_win_rate(config: WinRateConfig, say: Say = print) -> WinRateResult:
    """Draw outputs unless they are there, have them judged against the baseline, and write OUT/results.json.

    Files, columns, the match of instructions, the tables of the length-controlled fit and the judge are checked before anything is
    drawn or judged. `ScoringError`, after all is written, when fewer than `least_judged` of the instructions have a verdict.
    """
    validate_win_rate(config)
    with EvaluationFolder(config.out, going_on=config.resume) as folder:
        tables = read_tables(config.length)
        settings = _settings(config)
        if config.annotations:
            annotations = read_annotations(config.annotations)
            facts: dict[str, Any] = {}
            _check_length(config, [each.pair for each in annotations], tables, say)
            folder.begin(settings, fixed=("annotations",))
        else:
            annotations, facts = _judged(config, folder, tables, settings, say)
        return _finish(config, folder, settings, annotations, tables, facts, say)


def _settings(config: WinRateConfig) -> dict[str, Any]:
    """Without those that play no part, because outputs or judgements were there already."""
    unused = (() if config.model else DRAWING) + (JUDGING if config.annotations else ())
    return {name: value for name, value in plain(config).items() if name not in unused}


def _judged(
    config: WinRateConfig, folder: EvaluationFolder, tables: Tables, settings: dict[str, Any], say: Say
) -> tuple[list[Annotation], dict[str, Any]]:
    """(the annotations, what they depend on)."""
    baseline = read_outputs(config.baseline)
    outputs = _instructions(config) if config.model else read_outputs(config.outputs)[: config.rows.limit_rows]
    if config.rows.limit_rows:
        chosen = {each.key for each in outputs}
        baseline = [each for each in baseline if each.key in chosen]
    pairs, lines = match(outputs, baseline, allow_missing=config.allow_missing)
    for line in lines:
        say(line)
    _check_length(config, pairs, tables, say)
    with closing(annotator(config, folder.path)) as judge:
        judge.check()
        folder.begin(settings, fixed=[name for name in settings if name not in FREE])
        if config.model:
            drawn = {each.key: each for each in _draw(config, folder.path, [pair.model for pair in pairs], say)}
            pairs = [Pair(drawn[pair.baseline.key], pair.baseline) for pair in pairs]
        write_outputs(folder.path / "model_outputs.json", [pair.model for pair in pairs])
        say(f"judging {len(pairs)} pairs of outputs by {judge.name}")
        try:
            write_annotations(folder.path / "annotations.json", judge.annotate(pairs, say))
        except ServerError as error:
            raise ServerError(f"{error}\n  Go on with --resume.") from error
        # Read back, so that the numbers are those of the file, to the last bit.
        return read_annotations(str(folder.path / "annotations.json")), {"scorer": judge.facts()}


def _instructions(config: WinRateConfig) -> list[Output]:
    """What the model is to answer, with no outputs yet."""
    outputs = []
    for place, raw in read_records(config.data, split=config.rows.split, limit=config.rows.limit_rows):
        record = Record.of(place, raw, {})
        name = record.first("instruction", "prompt")
        if name is None:
            raise record.error(f"has no 'instruction' ({record.found()})", 'Needed is, e.g., {"instruction": "What is 2 + 2?"}.')
        dataset = record.text("dataset") if record.has("dataset") else None
        outputs.append(Output(text_or_turns(record, name, record.values[name]), "", _name(config), dataset, place))
    return outputs


def _name(config: WinRateConfig) -> str:
    return config.name or Path(config.model).name


def _draw(config: WinRateConfig, folder: Path, asked: Sequence[Output], say: Say) -> list[Output]:
    """Let the model answer. Thoughts before an answer are no part of it."""
    samples = folder / "samples.jsonl"
    write_lines(
        folder / "instructions.jsonl",
        (
            {"prompt": each.instruction if isinstance(each.instruction, str) else list(each.instruction), "key": each.key}
            for each in asked
        ),
    )
    draw(config, folder / "instructions.jsonl", samples, say)
    outputs, thoughtful, cut = [], 0, 0
    rows = list(read_records(str(samples)))
    if [row["key"] for _, row in rows] != [each.key for each in asked]:
        raise CheckpointError(
            f"{samples}: drawn for other instructions than match now. Restore the files, or choose another --out."
        )
    for (place, row), each in zip(rows, asked, strict=True):
        text = row["completions"][0]
        answer = after_thoughts(text)
        thoughtful += answer != text
        cut += row["finish_reason"][0] == "length"
        outputs.append(
            Output(each.instruction, (answer or "").strip() if answer != text else text, each.generator, each.dataset, place)
        )
    if thoughtful:
        say(f"{thoughtful} outputs begin with thoughts, which are left out of what is judged")
    say(f"{cut} of {len(outputs)} outputs were truncated" + (": raise --max-new-tokens" if cut > len(outputs) / 2 else ""))
    return outputs


def _check_length(config: WinRateConfig, pairs: Sequence[Pair], tables: Tables, say: Say) -> None:
    """What the length-controlled fit needs, before anything is spent. Outputs that are still to be drawn have no length yet."""
    if not config.length.control:
        return
    missing = [pair.baseline for pair in pairs if tables.difficulty is not None and pair.baseline.key not in tables.difficulty]
    if missing and not config.allow_missing:
        listed = "\n".join(f"    {each.place} {shown(each.key)}" for each in missing[:LISTED])
        more = f"\n    and {len(missing) - LISTED} more" if len(missing) > LISTED else ""
        raise DataError(
            f"{len(missing)} of {len(pairs)} instructions have no difficulty in {config.length.difficulty or config.length.regulariser}:\n"
            f"{listed}{more}\n  Mend the table, leave them out of the length-controlled win rate with `--allow-missing`, or do without "
            "it: `--length.no-control`."
        )
    if missing:
        say(
            f"{len(missing)} instructions have no difficulty: left out of the length-controlled win rate, as --allow-missing says"
        )
    known = [pair for pair in pairs if tables.difficulty is None or pair.baseline.key in tables.difficulty]
    try:
        check_length_control(
            [pair.baseline.key for pair in known],
            difficulty=tables.difficulty,
            regulariser=tables.regulariser,
            differences=None if config.model else [len(pair.baseline.output) - len(pair.model.output) for pair in known],
        )
    except DataError as error:
        raise DataError(f"{error}\n  The raw win rate alone is had by `--length.no-control`.") from error


def _controlled(config: WinRateConfig, annotations: Sequence[Annotation], tables: Tables) -> LengthControlled | None:
    if not config.length.control:
        return None
    judged = [
        each
        for each in annotations
        if each.preference is not None and (tables.difficulty is None or each.pair.model.key in tables.difficulty)
    ]
    return length_controlled_win_rate(
        [each.preference for each in judged if each.preference is not None],
        model_length=[len(each.pair.model.output) for each in judged],
        baseline_length=[len(each.pair.baseline.output) for each in judged],
        instructions=[each.pair.model.key for each in judged],
        difficulty=tables.difficulty,
        regulariser=tables.regulariser,
        resamples=config.length.resamples,
    )


def _counts(annotations: Sequence[Annotation]) -> dict[str, Any]:
    missing = Counter(each.why.partition(":")[0] or "no verdict" for each in annotations if each.preference is None)
    return {
        "instructions": len(annotations),
        "judged": sum(each.preference is not None for each in annotations),
        "missing": dict(sorted(missing.items())),
        "same_output": sum(each.pair.model.output == each.pair.baseline.output for each in annotations),
        "modes": dict(sorted(Counter(mode for each in annotations for mode in each.modes if mode != SAME).items())),
        "characters": {
            "model": sum(len(each.pair.model.output) for each in annotations) / len(annotations),
            "baseline": sum(len(each.pair.baseline.output) for each in annotations) / len(annotations),
        },
    }


def _finish(
    config: WinRateConfig,
    folder: EvaluationFolder,
    settings: Mapping[str, Any],
    annotations: Sequence[Annotation],
    tables: Tables,
    facts: Mapping[str, Any],
    say: Say,
) -> WinRateResult:
    counts = _counts(annotations)
    enough = counts["judged"] and counts["judged"] >= config.least_judged * counts["instructions"]
    raw = win_rate([each.preference for each in annotations]) if enough else None
    controlled = _controlled(config, annotations, tables) if enough else None
    names = {"model": annotations[0].pair.model.generator, "baseline": annotations[0].pair.baseline.generator}
    paths = (config.data, config.outputs, config.baseline, config.annotations)
    tables_used = (config.length.difficulty, config.length.regulariser, config.length.instructions)
    result = {
        "format": FORMAT,
        "kind": "win rate",
        **names,
        "annotator": annotations[0].annotator,
        "raw": raw and raw._asdict(),
        "length_controlled": controlled and {"label": label(controlled), **controlled._asdict()},
        "counts": counts,
        "settings": dict(settings),
        **facts,
        "versions": versions(),
        "files": fingerprints(*paths, *(path for path in tables_used if path)),
    }
    write_json(folder.results, result)
    _show(config, folder, names, raw, controlled, counts, say)
    return WinRateResult(folder.path, raw, controlled, counts)


def label(controlled: LengthControlled) -> str:
    """What kind of length-controlled win rate it is: only the regularised one, which has difficulties too, is what AlpacaEval publishes."""
    if controlled.regularised:
        return "length-controlled"
    return "length-controlled, no regulariser" + ("" if "difficulty" in controlled.features else ", no difficulties")


def _show(
    config: WinRateConfig,
    folder: EvaluationFolder,
    names: Mapping[str, str],
    raw: WinRate | None,
    controlled: LengthControlled | None,
    counts: Mapping[str, Any],
    say: Say,
) -> None:
    total, judged = counts["instructions"], counts["judged"]
    missing = "".join(f", {count} {why}" for why, count in counts["missing"].items())
    say(f"{names['model']} against {names['baseline']}: {judged} of {total} instructions judged{missing}")
    if raw is None:
        advice = f"{folder.path / 'annotations.json'} says why. Ask again for the others by the same command with --resume"
        if config.annotations:
            advice = f"The others have no preference in {config.annotations}. Have them judged there"
        raise ScoringError(
            f"{judged} of {total} instructions are judged, {judged / total:.1%}: below least_judged, {config.least_judged:.1%}, so there "
            f"is no win rate.\n  {advice}, or lower --least-judged."
        )
    say(f"{raw.wins} wins, {raw.losses} losses, {raw.ties} ties ({counts['same_output']} with equal outputs)")
    rows = [["", "win rate %", "± s.e.", "95 % interval"], _row("raw", raw), _row("discrete", None, value=raw.discrete_win_rate)]
    rows += [_row(label(controlled), controlled)] if controlled else []
    for line in table(rows):
        say(line)
    if controlled and not controlled.regularised:
        say("Without AlpacaEval's regulariser the length-controlled win rate does not compare with published ones.")
    if controlled and is_large_change(raw.win_rate, controlled.win_rate):
        apart, length = abs(raw.win_rate - controlled.win_rate), counts["characters"]
        say(
            f"warning: the length-controlled win rate is {apart:.1f} points from the raw one.\n  The outputs have {length['model']:.0f} "
            f"characters on average, the baseline's {length['baseline']:.0f}: if that does not explain it, the fit has failed."
        )
    say(f"done: {folder.results}")


def _row(name: str, found: WinRate | LengthControlled | None, value: float = 0.0) -> list[str]:
    if found is None:
        return [name, f"{value:.2f}", "", ""]
    error = "–" if found.standard_error is None else f"{found.standard_error:.2f}"
    between = "–" if found.low is None or found.high is None else f"{found.low:.1f} … {found.high:.1f}"
    return [name, f"{found.win_rate:.2f}", error, between]
