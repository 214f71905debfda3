"""Run policies on suites of episodes and rank them: ``python -m benchmarks --help``."""
