"""How good a model is: pass@k on problems with an answer, win rate over a baseline where there is none."""

from humanline.evaluate.length import LengthControlled, Regulariser, length_controlled_win_rate
from humanline.evaluate.passes import Rate, best_of_n, pass_at_k, pass_rate
from humanline.evaluate.statistics import Estimate, estimate
from humanline.evaluate.winrate import WinRate, win_rate

__all__ = [
    "Estimate",
    "LengthControlled",
    "Rate",
    "Regulariser",
    "WinRate",
    "best_of_n",
    "estimate",
    "length_controlled_win_rate",
    "pass_at_k",
    "pass_rate",
    "win_rate",
]
