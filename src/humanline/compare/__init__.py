"""`humanline compare STUDY.yaml`: methods × seeds, side by side, with tests of what is claimed about them.

    from humanline.compare import compare, load_study

    result = compare(load_study("study.yaml"))

Layout: study_file (YAML) → study → jobs (one run each) on workers (processes) → results (statistics) → tables, results.json, report.html.
"""

from humanline.compare.claims import ClaimResult
from humanline.compare.results import MethodResult, Result
from humanline.compare.run import compare
from humanline.compare.study import Claim, Study
from humanline.compare.study_file import load_study

__all__ = ["Claim", "ClaimResult", "MethodResult", "Result", "Study", "compare", "load_study"]
