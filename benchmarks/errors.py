"""What a person can mend: commands print it without a traceback and exit with status 2."""

from inframind_gym.errors import InfraMindError


class BenchmarkError(InfraMindError):
    """A suite, results folder or command line that cannot be used; names the remedy."""
