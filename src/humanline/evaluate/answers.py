"""`evaluate math500|gsm8k|FILE`: how often a model's answers are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from humanline.data.read import read_records
from humanline.errors import CheckpointError, ConfigError, ScoringError
from humanline.evaluate.config import AnswersConfig, validate_answers
from humanline.evaluate.drawing import DRAWING, draw, write_lines
from humanline.evaluate.outputs import write_json
from humanline.evaluate.passes import Rate, best_of_n, pass_rate
from humanline.evaluate.problems import Solved, prompt_rows, read_solved
from humanline.evaluate.results import FORMAT, EvaluationFolder, fingerprints, plain, table, versions
from humanline.score.item import Item, Verdict
from humanline.score.weighted import Weighted, build

PROMPTING = ("prompt", "system")
"""settings that completions which are there already do not depend on"""
FREE = ("k", "least_scored", "scorer")
"""settings that a rescoring may change; the others are those the samples were drawn with"""
MANY_CUT = 0.5


@dataclass(frozen=True)
class AnswersResult:
    """What an evaluation found; the same as in results.json."""

    out: Path
    rates: dict[str, Rate]
    """`pass@1`, `pass@8`, `best-of-8` …; {} when too few completions have a verdict"""
    counts: dict[str, Any]


class Marked(NamedTuple):
    """A problem with the verdict on each of its completions."""

    solved: Solved
    verdicts: tuple[Verdict, ...]

    @property
    def scores(self) -> list[float | None]:
        return [verdict.score for verdict in self.verdicts]


def evaluate_answers(config: AnswersConfig, say: Callable[[str], None] = print) -> AnswersResult:
    """Draw completions unless they are there, have them verified, and write OUT/results.json.

    Everything that can be wrong with files and settings is found before the first completion is drawn. `ScoringError`, after the
    results are written, when fewer than `least_scored` of the completions have a verdict.
    """
    validate_answers(config)
    with EvaluationFolder(config.out, going_on=config.resume or config.rescore) as folder, build([config.scorer]) as scorer:
        settings, path = _samples(config, folder, say)
        solved, lines = read_solved(str(path), config)
        if config.samples:  # only now, so that a file with a mistake can be mended
            folder.begin(settings, fixed=("samples", "files"))
        else:
            _check_complete(folder, path)
        _check_k(solved, config.k)
        for line in lines:
            say(f"{path}: {line}")
        marked = _mark(solved, scorer)
        counts = _counts(marked)
        rates = _rates(marked, config.k) if _enough(counts, config) else {}
        facts = {"scorer": {part.scorer.label: part.scorer.facts() for part in scorer.parts}, "versions": versions()}
        _write(folder, settings, marked, rates, counts, facts)
    _show(rates, counts, config, say)
    return AnswersResult(folder.path, rates, counts)


def _samples(config: AnswersConfig, folder: EvaluationFolder, say: Callable[[str], None]) -> tuple[dict[str, Any], Path]:
    """(the settings that the evaluation goes by, the file of completions)."""
    samples = folder.path / "samples.jsonl"
    settings = plain(config) | {"files": fingerprints(config.samples or config.data)}
    if config.rescore:
        before = folder.begun_with()
        if not samples.exists():
            advice = (
                "Completions that came from `--samples FILE` are scored again by the same command with --resume."
                if before.get("samples")
                else "Draw them first, without --rescore."
            )
            raise CheckpointError(f"{samples} does not exist: expected the samples to score again. {advice}")
        limit, drawn = config.rows.limit_rows, before.get("rows", {}).get("limit_rows")
        if limit not in (None, drawn):
            raise ConfigError(
                f"rows.limit_rows is {limit}, and the samples were drawn with {'null' if drawn is None else drawn}: rescoring scores all "
                "of them. Leave it out."
            )
        settings = {**before, **{name: settings[name] for name in FREE}}
        folder.begin(settings, fixed=())
        return settings, samples
    if config.samples:
        settings = {name: value for name, value in settings.items() if name not in (*DRAWING, *PROMPTING)}
        return settings, Path(config.samples)
    rows = prompt_rows(config)
    folder.begin(
        settings, fixed=[name for name in settings if name not in (*FREE, "backend", "device", "server", "engine", "load")]
    )
    problems = folder.path / "problems.jsonl"
    write_lines(problems, rows)
    draw(config, problems, samples, say)
    return settings, samples


def _check_complete(folder: EvaluationFolder, samples: Path) -> None:
    """Raises `CheckpointError` unless the samples are those of the problems that lie beside them."""
    problems = folder.path / "problems.jsonl"
    if not problems.exists():
        return
    asked, answered = ([row["prompt"] for _, row in read_records(str(path))] for path in (problems, samples))
    if asked != answered:
        raise CheckpointError(
            f"{samples}: {len(answered)} rows, which are not the {len(asked)} problems of {problems} in their order, so a rate would be "
            "that of another benchmark. Restore the file, or score it as it is: `--samples FILE --out OTHER`."
        )


def _check_k(solved: Sequence[Solved], further: Sequence[int]) -> None:
    most = max(len(each.items) for each in solved)
    for k in further:
        if k > most:
            raise ConfigError(f"k is {k}: expected at most the number of completions of a problem, {most}.")


def _mark(solved: Sequence[Solved], scorer: Weighted) -> list[Marked]:
    """Ready verdicts where the file has them, the scorer's elsewhere."""
    asked = [item for each in solved if each.right is None for item in each.items]
    verdicts = iter(_scored(scorer, asked))
    return [
        Marked(each, tuple(map(Verdict, each.right)) if each.right is not None else tuple(next(verdicts) for _ in each.items))
        for each in solved
    ]


def _scored(scorer: Weighted, items: Sequence[Item]) -> list[Verdict]:
    """The verdicts of the one part, which know what was extracted; `on_error` is applied."""
    [verdicts] = scorer.sheet(items).parts.values()
    return verdicts


def _counts(marked: Sequence[Marked]) -> dict[str, Any]:
    items = [item for each in marked for item in each.solved.items]
    verdicts = [verdict for each in marked for verdict in each.verdicts]
    scored = [verdict.score for verdict in verdicts if verdict.score is not None]
    unscored = Counter(verdict.why or "no verdict" for verdict in verdicts if verdict.score is None)
    return {
        "problems": len(marked),
        "completions": len(items),
        "scored": len(scored),
        "right": int(sum(scored)),
        "unscored": dict(sorted(unscored.items())),
        "counted_as_wrong": sum(verdict.score is not None and bool(verdict.why) for verdict in verdicts),
        "unparsed": sum(verdict.found == "" for verdict in verdicts),
        "truncated": sum(item.finished is False for item in items),
        "finish_unknown": sum(item.finished is None for item in items),
    }


def _enough(counts: dict[str, Any], config: AnswersConfig) -> bool:
    return bool(counts["scored"] and counts["scored"] >= config.least_scored * counts["completions"])


def _rates(marked: Sequence[Marked], further: Sequence[int]) -> dict[str, Rate]:
    """pass@1, pass@n for the n that every problem has, those asked for, and best-of-n where scores to choose by are there."""
    scores = [each.scores for each in marked]
    most = min(sum(score is not None for score in of_problem) for of_problem in scores)
    rates = {f"pass@{k}": pass_rate(scores, k) for k in sorted({1, max(most, 1), *further})}
    ranks = [each.solved.rank for each in marked if each.solved.rank is not None]
    if ranks:
        sizes = sorted({len(each) for each in scores})
        name = f"best-of-{sizes[0]}" if len(sizes) == 1 else f"best-of-{sizes[0]}…{sizes[-1]}"
        rates[name] = best_of_n(scores, ranks)
    return rates


def _write(
    folder: EvaluationFolder,
    settings: dict[str, Any],
    marked: Sequence[Marked],
    rates: dict[str, Rate],
    counts: dict[str, Any],
    facts: dict[str, Any],
) -> None:
    write_lines(folder.path / "verdicts.jsonl", map(_verdict_row, marked))
    samplers: list[Any] = []
    for each in marked:
        sampler = each.solved.record.get("sampler")
        if isinstance(sampler, dict):
            sampler = {name: value for name, value in sampler.items() if name != "number"}
        if sampler and sampler not in samplers:
            samplers.append(sampler)
    result = {
        "format": FORMAT,
        "kind": "answers",
        "rates": {name: {**rate.value._asdict(), "left_out": rate.left_out} for name, rate in rates.items()},
        "counts": counts,
        "settings": settings,
        "samplers": samplers,
        "first_prompt": marked[0].solved.record.get("prompt"),
        **facts,
    }
    write_json(folder.results, result)


def _verdict_row(each: Marked) -> dict[str, Any]:
    names = [name for name in ("unique_id", "idx", "index") if each.solved.record.get(name) is not None]
    return {
        **{name: each.solved.record[name] for name in names[:1]},
        "line": each.solved.row.record.place.line,
        "scores": each.scores,
        "found": [verdict.found for verdict in each.verdicts],
        "why": [verdict.why for verdict in each.verdicts],
        "note": [verdict.note for verdict in each.verdicts],
    }


def _show(rates: dict[str, Rate], counts: dict[str, Any], config: AnswersConfig, say: Callable[[str], None]) -> None:
    problems, completions = counts["problems"], counts["completions"]
    unscored = "".join(f", {count} {why}" for why, count in counts["unscored"].items())
    unknown = f" (unknown of {counts['finish_unknown']})" if counts["finish_unknown"] else ""
    say(
        f"{problems} problems, {completions} completions: {counts['scored']} with a verdict{unscored}; "
        f"{counts['unparsed']} without an answer in them, {counts['truncated']} truncated{unknown}"
    )
    if counts["truncated"] > MANY_CUT * completions:
        say(
            f"warning: {counts['truncated'] / completions:.0%} of the completions were cut before they ended: raise --max-new-tokens."
        )
    if not rates:
        raise ScoringError(
            f"{counts['scored']} of {completions} completions have a verdict, {counts['scored'] / completions:.1%}: below least_scored, "
            f"{config.least_scored:.1%}, so there is no number.\n  {Path(config.out) / 'verdicts.jsonl'} says why. "
            f"Mend it and use {'--resume' if config.samples else '--rescore'}, or lower --least-scored."
        )
    rows = [["", "rate", "± s.e.", "95 % interval", "problems"]]
    for name, (value, left_out) in rates.items():
        error = "–" if value.standard_error is None else f"{value.standard_error:.4f}"
        between = "–" if value.low is None or value.high is None else f"{value.low:.3f} … {value.high:.3f}"
        rows.append(
            [name, f"{value.mean:.4f}", error, between, f"{value.clusters}" + (f" ({left_out} left out)" if left_out else "")]
        )
    for line in table(rows):
        say(line)
    if counts["scored"] < completions:
        right, missing = counts["right"], completions - counts["scored"]
        say(
            f"pass@1 leaves the {missing} without a verdict out; with all of them wrong, {right / completions:.4f} of the completions are "
            f"right, with all of them right {(right + missing) / completions:.4f}"
        )
    say(f"done: {Path(config.out) / 'results.json'}")
