"""Objectives: pure functions from perceived token log-ratios to a summed loss. None of them knows about humanline."""

from humanline.objectives.base import CustomObjective, Facts, Loss, Objective
from humanline.objectives.groups import GRPO
from humanline.objectives.labels import KTO
from humanline.objectives.pairs import DPO, IPO, SimPO
from humanline.objectives.supervised import SFT

__all__ = ["DPO", "GRPO", "IPO", "KTO", "SFT", "CustomObjective", "Facts", "Loss", "Objective", "SimPO"]
