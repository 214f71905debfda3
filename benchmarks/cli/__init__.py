"""Command line: ``python -m benchmarks``.

Commands: ``run``, ``leaderboard``, ``compare``, ``speed``, ``fidelity``, ``results``,
``robustness``, ``placement-page``. Tables go to standard output, progress and errors to standard
error. With ``--json`` standard output is one JSON object and nothing else. What a person can mend
ends with one line and status 2, an interrupted run with status 130.
"""

from benchmarks.cli import running  # noqa: F401, I001  # the order of `--help`
from benchmarks.cli import leaderboards, measuring, pages  # noqa: F401
from benchmarks.cli.shared import app

__all__ = ["app"]
