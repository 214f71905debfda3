"""The fluid bound on the goodput of a cell, by linear programming.

    from inframind_gym.benchmark.bounds import fluid_bound
    from inframind_gym.benchmark.suite import load_suite
    suite = load_suite("published_parallel")
    fluid_bound(suite, "math", 100.0, "tiers", cache=Path("runs/bounds")).informed

A router that knows every distribution but no single outcome: the expectation of a perfect one
(`informed.py`). The capacity of servers comes from `program.py`. It needs SciPy (extra `bounds`).
The policy `clairvoyant` is the other measure: greedy planning that knows all outcomes.
"""

from inframind_gym.benchmark.bounds.fluid import FluidBound, fluid_bound

__all__ = ["FluidBound", "fluid_bound"]
