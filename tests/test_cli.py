"""The command line, from the words a user types to the config that training gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import humanline
from humanline import cli
from humanline.config import TrainConfig
from humanline.configfile import dump, load_recipe, parse_config
from humanline.errors import CheckpointError, ConfigError, DataError, Interrupted
from humanline.flags import parse_train
from humanline.limit import Clip, Off, Reject
from humanline.objectives import GRPO, IPO, KTO, CustomObjective, SimPO


def parse(line: str, *more: str) -> TrainConfig:
    config, _ = parse_train([*line.split(), *more])
    return config


def wrong(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a wrong command prints; it must end with status 2."""
    try:
        status: object = cli.main(line.split())
    except SystemExit as end:
        status = end.code
    assert status == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return " ".join(printed.err.replace("│", " ").split())


# The top


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"], ["nonsense"]])
def test_the_top_of_the_command_line_imports_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom humanline.cli import main\n"
        f"status = main({words!r})\n"
        "heavy = {'torch', 'transformers', 'pydantic', 'tyro', 'numpy', 'yaml', 'rich', 'datasets'} & set(sys.modules)\n"
        "assert not heavy, heavy\nsys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == (2 if words == ["nonsense"] else 0), done.stderr


def test_python_dash_m_runs_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "humanline", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"humanline {humanline.__version__}\n"


def test_a_reader_that_stops_early_is_no_error() -> None:
    script = f"{sys.executable} -m humanline train --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_lists_the_verbs_that_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines() if line.startswith("  ") and "--" not in line] == list(cli.VERBS)


def test_without_a_verb_help_is_shown_and_usage_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage: humanline VERB" in capsys.readouterr().out


def test_an_unknown_verb_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    expected = f"ConfigError: 'trian' is not a verb. Did you mean 'train'? Expected one of {', '.join(cli.VERBS)}."
    assert wrong("trian", capsys) == expected


def test_train_help_lists_every_recipe_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--help"]) == 0
    listed = capsys.readouterr().out
    assert "  dpo-humanline    Humanline DPO: token log-ratios clipped, the reference synced before every update.\n" in listed
    assert all(f"\n  {name} " in listed for name in humanline.recipes.names())


# Flags


def test_flags_override_the_recipe() -> None:
    config = parse(
        "dpo-humanline --model m --data d --out o --objective.beta 0.2 --limit.high 1.0 --sync-every 12 --optimizer.lr 1e-5"
    )
    recipe = load_recipe("dpo-humanline")
    assert config == recipe.replace(
        model="m",
        data="d",
        out="o",
        objective=type(recipe.objective)(beta=0.2),
        limit=Clip(high=1.0),
        sync_every=12,
        optimizer=config.optimizer,
    )
    assert config.optimizer.lr == 1e-5


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        (["--sync-every", "None"], "sync_every", None),
        (["--sync-every", "null"], "sync_every", None),
        (["--steps", "20"], "steps", 20),
        (["--epochs", "2"], "epochs", 2.0),
        (["--resume"], "resume", True),
        (["--reference-cache", "cache"], "reference_cache", "cache"),
        (["--limit.low", "-.inf"], "limit.low", float("-inf")),
        (["--limit.low", "-inf"], "limit.low", float("-inf")),
        (["--limit.high=.inf"], "limit.high", float("inf")),
        (["--optimizer.betas", "0.8", "0.9"], "optimizer.betas", (0.8, 0.9)),
        (["--optimizer.max-grad-norm", "null"], "optimizer.max_grad_norm", None),
        (["--log.trackers", "wandb", "tensorboard"], "log.trackers", ("wandb", "tensorboard")),
        (["--rows.columns", "{prompt: question, chosen: good}"], "rows.columns", {"prompt": "question", "chosen": "good"}),
        (["--rows.no-shuffle"], "rows.shuffle", False),
        (["--rows.limit_rows", "7"], "rows.limit_rows", 7),
        (["--eval.data", "12"], "eval.data", "12"),
        (["--load.revision", "null"], "load.revision", None),
    ],
)
def test_every_kind_of_value_as_a_flag(flags: list[str], key: str, value: object) -> None:
    found: object = parse("dpo-humanline", *flags)
    for name in key.split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


def test_flags_follow_the_chosen_objective_and_limiter() -> None:
    config = parse(
        "dpo-humanline --objective.name kto --objective.undesirable-weight 2 --limit.name=reject --limit.gamma-policy 0.5"
    )
    assert config.objective == KTO(undesirable_weight=2.0)
    assert config.limit == Reject(gamma_policy=0.5)


def test_the_order_of_flags_and_a_repeated_choice() -> None:
    assert parse("dpo --objective.tau 0.5 --objective.name kto --objective.name ipo").objective == IPO(tau=0.5)


def test_naming_the_recipe_s_own_objective_keeps_its_settings() -> None:
    assert parse("grpo-dr --objective.name grpo").objective == GRPO(aggregate="constant", scale="none", constant_length=2048)


def test_another_objective_starts_from_its_own_defaults() -> None:
    """β of DPO is an inverse temperature, β of GRPO the weight of the KL term: it must not move along."""
    assert parse("dpo --objective.name grpo").objective == GRPO(beta=0.0)
    assert parse("dpo --objective.name simpo").objective == SimPO(beta=2.0)
    assert parse("dpo-humanline --limit.name off").limit == Off()


def test_an_objective_of_ones_own() -> None:
    config = parse("dpo --objective.name custom --objective.path mine:Loss --objective.settings", "{beta: 0.5, sides: [a, b]}")
    assert config.objective == CustomObjective(path="mine:Loss", settings={"beta": 0.5, "sides": ["a", "b"]})


def test_help_shows_what_applies_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_train(["kto-humanline", "--help"])
    assert end.value.code == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--objective.undesirable-weight FLOAT λ_U, ≥ 0" in shown
    assert "--objective.name {dpo,ipo,kto,grpo,simpo,sft,custom} (default: kto)" in shown
    assert "--limit.low FLOAT nats, < 0; -.inf = no lower bound (default: -1.5)" in shown
    assert "--sync-every INT|null k: the reference becomes the policy every k optimizer steps" in shown
    assert "label-smoothing" not in shown
    assert "gamma-policy" not in shown


def test_a_wrong_flag_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Perhaps you meant: --objective.label-smoothing FLOAT" in wrong("train dpo --objective.label-smoothin 0.1", capsys)
    assert "Perhaps you meant: --optimizer.lr FLOAT" in wrong("train dpo --lr 1e-5", capsys)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "train kto --objective.label-smoothing 0.1",
            "ConfigError: --objective.label-smoothing does not apply to objective kto: it is a setting of dpo. "
            "Choose with `--objective.name dpo`, or leave it out.",
        ),
        (
            "train dpo --limit.low=-1",
            "ConfigError: --limit.low=-1 does not apply to limit off: it is a setting of clip. "
            "Choose with `--limit.name clip`, or leave it out.",
        ),
        (
            "train dpo --objective.name kpo",
            "ConfigError: --objective.name is 'kpo'. Did you mean 'kto'? "
            "Expected one of dpo, ipo, kto, grpo, simpo, sft, custom.",
        ),
        ("train dpo --objective.name", "ConfigError: --objective.name has no value: expected `--objective.name VALUE`."),
        ("train dpo --sync-every 0", "ConfigError: sync_every is 0: expected a whole number from 1 on."),
        (
            "train dpo",
            "ConfigError: model is empty: a training run needs one. Set it with `--model smollm2` or `model:` in the YAML file.",
        ),
        (
            "train dpo-humanline --objective.name simpo --print-config",
            "ConfigError: limit.name is clip with objective simpo: it has no reference, and hence no humanline variant. "
            "Use `--limit.name off`, or an objective with a reference (dpo, ipo, kto, grpo).",
        ),
    ],
)
def test_what_a_wrong_command_is_told(line: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert wrong(line, capsys) == expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--optimizer.lr fast", "Error parsing --optimizer.lr: 'fast' was given: expected a number."),
        ("--sync-every 1.5", "Error parsing --sync-every: '1.5' was given: expected a whole number or null."),
        ("--optimizer.lr -1", "optimizer.lr is -1.0: expected a number above 0, e.g. 5e-6."),
        ("--limit.name clip --limit.low 1", "limit.low is 1.0: expected nats below 0"),
        ("--device gpu", "invalid choice 'gpu' for argument '--device'. Expected one of ('auto', 'cpu', 'cuda', 'mps')."),
    ],
)
def test_what_a_wrong_value_is_told(flags: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in wrong(f"train dpo {flags}", capsys)


def test_an_unknown_recipe_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert wrong("train dpo-humanlin", capsys).startswith(
        "ConfigError: recipe 'dpo-humanlin' is unknown. Did you mean 'dpo-humanline'?"
    )


# --print-config


def test_print_config_shows_yaml_that_loads_back_to_the_same_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [
        "train",
        "grpo-humanline",
        "--model",
        "smollm2",
        "--limit.low",
        "-.inf",
        "--optimizer.lr",
        "3e-7",
        "--rows.columns",
        "{prompt: off}",
    ]
    assert cli.main([*words, "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert parse_config(printed) == parse_train(words[1:])[0]
    file = tmp_path / "printed.yaml"
    file.write_text(printed, encoding="utf-8")
    assert parse(str(file)) == parse_config(printed)


# A run


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """The configs that reach the trainer, which does nothing else here."""
    import humanline.run

    received: list[TrainConfig] = []
    monkeypatch.setattr(humanline.run, "train", received.append)
    return received


def test_train_hands_the_config_to_the_trainer(trained: list[TrainConfig]) -> None:
    assert cli.main("train kto-humanline --model m --data d --out o --seed 3".split()) == 0
    assert trained == [load_recipe("kto-humanline").replace(model="m", data="d", out="o", seed=3)]


def test_resume_needs_nothing_but_the_run(tmp_path: Path, trained: list[TrainConfig]) -> None:
    config = load_recipe("ipo").replace(model="m", data="d", out="where it was before", steps=5)
    (tmp_path / "config.yaml").write_text(dump(config), encoding="utf-8")
    assert cli.main(["train", "--resume", "--out", str(tmp_path)]) == 0
    assert trained == [config.replace(resume=True, out=str(tmp_path))]


def test_resume_of_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--resume", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"CheckpointError: {tmp_path}/config.yaml does not exist: expected the run to resume. "
        "Start one with `humanline train RECIPE`.\n"
    )
    with pytest.raises(ConfigError, match=r"^train begins with '--out': expected a recipe first \(cdpo, dpo,"):
        parse_train(["--out", str(tmp_path)])


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        (DataError("pairs.jsonl:3: no 'chosen'"), 1, "DataError: pairs.jsonl:3: no 'chosen'\n"),
        (ConfigError("steps is 0"), 2, "ConfigError: steps is 0\n"),
        (CheckpointError("step 3 is incomplete"), 1, "CheckpointError: step 3 is incomplete\n"),
        (Interrupted("saved at step 7", 15), 143, "saved at step 7\n"),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
    ],
)
def test_a_run_that_ends_early_says_why_without_a_traceback(
    error: BaseException, status: int, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import humanline.run

    def stop(config: TrainConfig) -> None:
        raise error

    monkeypatch.setattr(humanline.run, "train", stop)
    assert cli.main("train dpo --model m --data d --out o".split()) == status
    assert capsys.readouterr().err == expected


def test_our_own_mistakes_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    import humanline.run

    def broken(config: TrainConfig) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(humanline.run, "train", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main("train dpo --model m --data d --out o".split())


# The package


@pytest.mark.parametrize("name", humanline.__all__)
def test_public_names_are_found_on_first_use(name: str) -> None:
    assert getattr(humanline, name).__name__ == name or name in ("train", "load_config")
    assert name in dir(humanline)


def test_an_unknown_name_of_the_package() -> None:
    with pytest.raises(AttributeError, match="module 'humanline' has no attribute 'trian'"):
        humanline.trian  # noqa: B018
