"""The command line: `humanline VERB …`. Each verb imports what it needs, so that the top-level help is immediate."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from humanline import __version__, recipes
from humanline.errors import ConfigError, HumanlineError, Interrupted, nearest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb. Exit status: 0 done, 1 failed, 2 wrong usage or settings, 128 + n stopped by signal n."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a text of the data that the terminal cannot show must not end a run
    try:
        return _dispatch(words)
    except Interrupted as error:
        print(error, file=sys.stderr)
        return 128 + error.signal
    except HumanlineError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except BrokenPipeError:
        _drop_stdout()
        print("Stopped: what read the output, such as `head`, closed it.", file=sys.stderr)
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        _show(_top_help())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        _show(f"humanline {__version__}")
        return 0
    if words[0] not in VERBS:
        raise ConfigError(f"{words[0]!r} is not a verb.{nearest(words[0], VERBS)} Expected one of {', '.join(VERBS)}.")
    return VERBS[words[0]].run(words[1:])


def _show(text: str) -> None:
    """Print what was asked for; a reader that stops early, as in `humanline train --help | head`, is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _drop_stdout()


def _drop_stdout() -> None:
    """Python flushes once more at exit, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _top_help() -> str:
    verbs = "\n".join(f"  {name:<8} {verb.summary}" for name, verb in VERBS.items())
    return (
        "usage: humanline VERB …\n\n"
        "Align any causal language model on feedback from anywhere, at online quality and offline cost.\n\n"
        f"verbs:\n{verbs}\n\n"
        "options:\n  --help, --version\n\n"
        "`humanline VERB --help` tells more."
    )


def _demo(words: list[str]) -> int:
    from humanline.embedded.demo import main as demo

    return demo(words)


def _train(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        _show(_train_help())
        return 0 if words else 2
    from humanline.config import validate, validate_for_training
    from humanline.configfile import dump
    from humanline.flags import parse_train

    config, print_config = parse_train(words)
    if print_config:
        validate(config)
        _show(dump(config).rstrip("\n"))
        return 0
    validate_for_training(config)
    from humanline.run import train

    train(config)
    return 0


def _sample(words: list[str]) -> int:
    from humanline.flags import parse_settings
    from humanline.sample.config import SampleRunConfig

    about = "Sample completions of prompts, with token ids and log-probs, into a file of unscored groups."
    config = parse_settings(SampleRunConfig, words, verb="sample", about=about, positional="data", flat=("sample",))
    from humanline.sample.run import sample

    sample(config)
    return 0


def _score(words: list[str]) -> int:
    from humanline.flags import parse_score

    config = parse_score(words)
    from humanline.score.run import score

    score(config)
    return 0


def _label(words: list[str]) -> int:
    from humanline.flags import parse_settings
    from humanline.label import LabelConfig, label

    about = "Make preference pairs, binary labels or clean groups of rewarded completions."
    label(parse_settings(LabelConfig, words, verb="label", about=about, positional="data"))
    return 0


def _evaluate(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        _show(_evaluate_help())
        return 0 if words else 2
    from humanline.evaluate.config import WinRateConfig
    from humanline.flags import parse_evaluate

    config = parse_evaluate(words)
    if isinstance(config, WinRateConfig):
        from humanline.evaluate.contest import evaluate_win_rate

        evaluate_win_rate(config)
    else:
        from humanline.evaluate.answers import evaluate_answers

        evaluate_answers(config)
    return 0


def _inspect(words: list[str]) -> int:
    from humanline.flags import parse_settings
    from humanline.quality.config import InspectConfig

    about = "What is in a data set, and whether it is good enough for a model: counts, likelihood by quartile, perception gap."
    config = parse_settings(InspectConfig, words, verb="inspect", about=about, positional="data")
    from humanline.quality.run import inspect_data

    inspect_data(config)
    return 0


def _compare(words: list[str]) -> int:
    from humanline.compare.config import CompareConfig
    from humanline.flags import parse_settings

    about = "Methods × seeds from one file, in parallel and resumable: means, wall-clock by part, tests of what is claimed."
    config = parse_settings(CompareConfig, words, verb="compare", about=about, positional="study")
    from humanline.compare import compare

    return 1 if compare(config.load()).failed else 0


def _report(words: list[str]) -> int:
    from humanline.flags import parse_settings
    from humanline.report import ReportConfig, report

    about = "What runs came to, on one self-contained HTML page: results, curves, wall-clock, samples, settings."
    report(parse_settings(ReportConfig, words, verb="report", about=about, positional="runs"))
    return 0


class _Verb(NamedTuple):
    run: Callable[[list[str]], int]
    summary: str


VERBS = {
    "demo": _Verb(_demo, "the embedded study on a tiny model: minutes on two cores"),
    "train": _Verb(_train, "train a model on feedback, by a recipe and flags"),
    "sample": _Verb(_sample, "sample completions of prompts, for scoring and training"),
    "score": _Verb(_score, "score completions: a function, a math verifier, a reward model, a judge"),
    "label": _Verb(_label, "make preference pairs, binary labels or groups of scored completions"),
    "evaluate": _Verb(_evaluate, "pass@k on problems with answers, win rate over a baseline's outputs"),
    "compare": _Verb(_compare, "methods × seeds from one file: table, wall-clock, tests of what is claimed"),
    "inspect": _Verb(_inspect, "what is in a data set, and whether it is good enough for a model"),
    "report": _Verb(_report, "what runs came to, on one self-contained HTML page"),
}


def _evaluate_help() -> str:
    return (
        "usage: humanline evaluate math500|gsm8k --data FILE --model M --out DIR …\n"
        "       humanline evaluate FILE --model M --out DIR …             problems and answers of your own\n"
        "       humanline evaluate math500|gsm8k --samples FILE --out DIR …   completions that are there already\n"
        "       humanline evaluate win-rate --model M --data INSTRUCTIONS --baseline OUTPUTS --out DIR …\n"
        "       humanline evaluate win-rate --outputs FILE --baseline OUTPUTS --out DIR …\n"
        "       humanline evaluate win-rate --annotations FILE --out DIR …    judgements that are there already\n\n"
        "`humanline evaluate math500 --help` and `humanline evaluate win-rate --help` list the flags, which follow the scorer."
    )


def _train_help() -> str:
    listed = "\n".join(f"  {name:<16} {recipes.summary(name)}" for name in recipes.names())
    return (
        "usage: humanline train RECIPE [--model M --data D --out RUN …]\n"
        "       humanline train --resume --out RUN\n\n"
        "RECIPE is the path of a .yaml file or one of:\n\n"
        f"{listed}\n\n"
        "`humanline train RECIPE --help` lists the flags, which follow the objective and the limiter.\n"
        "`humanline train RECIPE --print-config` shows the resulting settings as YAML."
    )
