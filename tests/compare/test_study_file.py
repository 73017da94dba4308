"""Studies as YAML: what lies over what, and where an error is."""

from __future__ import annotations

from pathlib import Path

import pytest

from humanline.compare import Claim, load_study
from humanline.configfile import load_recipe
from humanline.errors import ConfigError
from humanline.limit import Clip, Off
from humanline.objectives import DPO, KTO
from humanline.score.config import Function

STUDY = """\
out: results
seeds: [4, 5]
base:
  model: m
  data: d.jsonl
  objective: {name: dpo, beta: 0.3, label_smoothing: 0.1}
  optimizer: {lr: 1e-3, warmup: 0}
  eval: {fraction: 0.1}
methods:
  plain:
  smaller: {objective: {beta: 0.2}, optimizer: {lr: 1e-4}}
  kto:
    objective: {name: kto}
    limit: {name: clip, high: 1.0}
    sync_every: 4
measure: [eval_loss]
claims:
  - {a: kto, b: plain, metric: eval_loss, kind: better, lower: true}
  - {a: smaller, b: plain, metric: eval_loss, kind: equal, margin: 0.1}
"""


def load(tmp_path: Path, text: str):
    (tmp_path / "study.yaml").write_text(text)
    return load_study(tmp_path / "study.yaml")


def wrong(tmp_path: Path, text: str) -> str:
    """The error, which starts with the file."""
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text)
    message = str(error.value)
    assert message.startswith(f"{tmp_path / 'study.yaml'}:")
    return message.removeprefix(f"{tmp_path / 'study.yaml'}:").strip()


def test_methods_lie_over_base_setting_by_setting_and_variants_by_name(tmp_path: Path) -> None:
    study = load(tmp_path, STUDY)
    plain, smaller, kto = study.methods.values()
    assert plain.objective == DPO(beta=0.3, label_smoothing=0.1) and plain.limit == Off()
    assert smaller.objective == DPO(beta=0.2, label_smoothing=0.1)
    assert (smaller.optimizer.lr, smaller.optimizer.warmup) == (1e-4, 0)
    assert kto.objective == KTO() and kto.limit == Clip(high=1.0) and kto.sync_every == 4
    assert all((config.model, config.data, config.eval.fraction) == ("m", "d.jsonl", 0.1) for config in study.methods.values())
    assert (study.out, study.seeds, study.processes, study.alpha) == ("results", (4, 5), None, 0.05)
    assert study.claims == (
        Claim("kto", "plain", "eval_loss", "better", lower=True), Claim("smaller", "plain", "eval_loss", "equal", 0.1),
    )  # fmt: skip


def test_base_lies_over_a_recipe(tmp_path: Path) -> None:
    base = "base: {recipe: dpo-humanline, model: m, data: d, optimizer: {lr: 0.5}}\n"
    text = f"out: o\n{base}methods: {{a: {{sync_every: 7}}}}\nmeasure: [loss]\n"
    recipe = load_recipe("dpo-humanline")
    (found,) = load(tmp_path, text).methods.values()
    assert found.limit == recipe.limit and found.objective == recipe.objective and found.sync_every == 7
    assert found.optimizer.lr == 0.5 and found.optimizer.warmup == recipe.optimizer.warmup


def test_a_method_s_recipe_takes_the_place_of_base_s_below_what_base_says(tmp_path: Path) -> None:
    text = "out: o\nbase: {recipe: dpo, model: m, data: d, batch_size: 5}\nmethods: {a: {}, b: {recipe: kto-humanline}}\nmeasure: [loss]\n"
    plain, kto = load(tmp_path, text).methods.values()
    recipe = load_recipe("kto-humanline")
    assert plain.objective == load_recipe("dpo").objective and plain.batch_size == kto.batch_size == 5
    assert (kto.objective, kto.limit, kto.optimizer) == (recipe.objective, recipe.limit, recipe.optimizer)


def test_a_recipe_that_base_would_hide_is_refused(tmp_path: Path) -> None:
    text = "out: o\nbase:\n  model: m\n  data: d\n  limit: {name: off}\nmethods:\n  b: {recipe: kto-humanline}\nmeasure: [loss]\n"
    assert wrong(tmp_path, text).startswith("7: methods.b.recipe is hidden by base.limit in line 5: base lies over recipes.")


def test_lists_are_replaced_as_a_whole(tmp_path: Path) -> None:
    base = (
        "base: {model: m, data: d, sample_every: 1, rollout: {sample: {n: 2}, scorers: [{name: math, gold: x}, {name: gsm8k}]}}\n"
    )
    text = f"out: o\n{base}methods: {{a: {{rollout: {{scorers: [{{name: function, path: 'f.py:g'}}]}}}}}}\nmeasure: [rollout_reward]\n"
    (found,) = load(tmp_path, text).methods.values()
    assert found.rollout.scorers == (Function(path="f.py:g"),) and found.rollout.sample.n == 2


BAD = {
    "unknown key": ("seeds: [4, 5]", "seed: [4, 5]", "2: seed is not a setting. Did you mean 'seeds'?"),
    "type": ("seeds: [4, 5]", "seeds: [4, x]", "2: seeds is [4, 'x']: expected a list, each item a whole number."),
    "no seed": ("seeds: [4, 5]", "seeds: []", "2: seeds is empty: expected at least one whole number; two or more"),
    "twice": ("seeds: [4, 5]", "seeds: [4, 4]", "2: seeds has 4 twice: expected each once."),
    "processes": ("seeds: [4, 5]", "processes: 0", "2: processes is 0: expected a whole number from 1 on."),
    "alpha": ("seeds: [4, 5]", "alpha: 1", "2: alpha is 1.0: expected a probability in (0, 0.5), e.g. 0.05."),
    "range in base": (
        "optimizer: {lr: 1e-3, warmup: 0}", "optimizer: {lr: -1, warmup: 0}",
        "7: base.optimizer.lr is -1.0: expected a number above 0",
    ),
    "type in base": ("model: m", "steps: many", "4: base.steps is many: expected a whole number or null."),
    "range in a method": (
        "sync_every: 4", "sync_every: 0",
        "15: methods.kto.sync_every is 0: expected a whole number from 1 on.",
    ),
    "key in a method": (
        "sync_every: 4", "sync_evry: 4",
        "15: methods.kto.sync_evry is not a setting. Did you mean 'sync_every'?",
    ),
    "variant": (
        "objective: {name: kto}", "objective: {name: ktoo}",
        "13: methods.kto.objective.name is ktoo: expected one of dpo",
    ),
    "setting of another variant": (
        "objective: {name: kto}", "objective: {desirable_weight: 2}",
        "13: methods.kto.objective.desirable_weight is not a setting.",
    ),
    "own seed": ("sync_every: 4", "seed: 4", "15: methods.kto.seed is set by `seeds` of the study. Remove it here."),
    "own out": ("model: m", "out: m", "4: base.out is set by `out` of the study. Remove it here."),
    "no mapping": ("  plain:\n", "  plain: 3\n", "10: methods.plain is 3: expected settings, or {} for none."),
    "name": ("  plain:\n", "  a/b:\n", "10: methods has 'a/b': expected a name of letters"),
    "recipe": ("model: m", "recipe: dop", "4: base.recipe: recipe 'dop' is unknown. Did you mean 'dpo'?"),
    "method of a claim": (
        "{a: kto, b: plain", "{a: kto, b: plane",
        "18: claims[0].b is plane. Did you mean 'plain'? Expected a method: plain, smaller, kto.",
    ),
    "kind of a claim": ("kind: equal", "kind: same", "19: claims[1].kind is same: expected one of better, different, equal."),
    "margin of a claim": ("margin: 0.1", "margin: -0.1", "19: claims[1].margin is -0.1: expected the largest difference"),
    "claim without a metric": (
        "{a: kto, b: plain, metric: eval_loss, ", "{a: kto, b: plain, ",
        "18: claims[0].metric is missing",
    ),
    "claims": ("claims:\n", "claims: [] #\nx:\n", "18: x is not a setting."),
    "no measure": ("measure: [eval_loss]", "alpha: 0.1", "measure is missing: expected out, seeds"),
    "metric of a claim": (
        "metric: eval_loss, kind: equal", "metric: eval_lss, kind: equal",
        "claims[1].metric is eval_lss. Did you mean 'eval_loss'?",
    ),
    "nothing held out": (
        "  eval: {fraction: 0.1}\n", "",
        "methods.plain: measure has eval_loss, but nothing is held out. Set eval.data or eval.fraction",
    ),
    "no samples": (
        "measure: [eval_loss]", "measure: [rollout_reward]",
        "methods.plain: measure has rollout_reward, but sample_every is null",
    ),
    "a fact": (
        "measure: [eval_loss]", "measure: [seconds]",
        "methods.plain: measure has seconds, which is reported in any case.",
    ),
    "settings that contradict": (
        "sync_every: 4", "sync_every: 4\n    reference_cache: x",
        "methods.kto: reference_cache is 'x' while sync_every is 4",
    ),
    "no data": ("  data: d.jsonl\n", "", "methods.plain: data is empty: a training run needs one."),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_an_error_names_line_and_key_path(tmp_path: Path, case: str) -> None:
    before, after, message = BAD[case]
    assert STUDY.count(before) == 1
    assert wrong(tmp_path, STUDY.replace(before, after)).startswith(message)


def test_a_key_given_twice_is_seen_before_it_is_merged(tmp_path: Path) -> None:
    text = STUDY.replace("    sync_every: 4\n", "    sync_every: 4\n    sync_every: 5\n")
    assert wrong(tmp_path, text) == "16: methods.kto.sync_every is given twice, first in line 15. Keep one."


def test_an_empty_file_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"study.yaml is empty: expected a study \(out, seeds, processes, base, methods"):
        load(tmp_path, "# nothing\n")
    with pytest.raises(ConfigError, match=r"none.yaml cannot be read: No such file"):
        load_study(tmp_path / "none.yaml")
