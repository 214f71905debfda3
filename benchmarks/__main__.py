"""``python -m benchmarks``: the commands of ``inframind bench``, and those of the laboratory."""

from benchmarks import pages_cli  # noqa: F401  # adds the commands of the laboratory
from inframind_gym.benchmark.cli import app

if __name__ == "__main__":
    app()
