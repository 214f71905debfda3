"""Command line: ``inframind bench``, in a checkout also ``python -m benchmarks``.

Tables go to standard output, progress and errors to standard error. With ``--json`` standard output
is one JSON object and nothing else. What a person can mend ends with one line and status 2, an
interrupted run with status 130.
"""

from inframind_gym.benchmark.cli import running  # noqa: F401, I001  # the order of `--help`
from inframind_gym.benchmark.cli import leaderboards, measuring  # noqa: F401
from inframind_gym.benchmark.cli.shared import app

__all__ = ["app"]
