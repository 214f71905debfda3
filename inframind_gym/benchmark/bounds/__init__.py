"""Fluid bounds on the goodput of a cell, by linear programming.

    from inframind_gym.benchmark.bounds import fluid_bounds
    from inframind_gym.benchmark.suite import load_suite
    suite = load_suite("results")
    bound = fluid_bounds(suite, "math", 100.0, "tiers", cache=Path("runs/bounds"))
    bound.informed, bound.clairvoyant

Two bounds. *Informed* knows every distribution but no single outcome: the expectation of a perfect
router (`informed.py`). *Clairvoyant* knows all outcomes, and no scheduler can beat it
(`clairvoyant.py`); the policy `clairvoyant` shows how much of it greedy planning reaches. Both take
the capacity of servers from `program.py`. They need SciPy (extra `bounds`).
"""

from inframind_gym.benchmark.bounds.fluid import FluidBound, fluid_bounds

__all__ = ["FluidBound", "fluid_bounds"]
