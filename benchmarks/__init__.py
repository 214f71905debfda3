"""Run policies on suites of sweeps and rank them: ``python -m benchmarks --help``."""
