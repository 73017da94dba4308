"""Scores for completions: a function of your own, a math verifier, a reward model, a judge. A score can be missing; it is then never 0."""

from humanline.score.config import GSM8K, Function, Judge, Math, RewardModel, ScorerConfig
from humanline.score.item import Item, Scorer, Verdict

__all__ = ["GSM8K", "Function", "Item", "Judge", "Math", "RewardModel", "Scorer", "ScorerConfig", "Verdict"]
