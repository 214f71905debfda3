"""How far one could get: fluid bounds on the goodput of a cell, by linear programming.

    from inframind_gym.benchmark.bounds import fluid_bounds
    from inframind_gym.benchmark.suite import load_suite
    suite = load_suite("results")
    bound = fluid_bounds(suite, "math", 100.0, "tiers", cache=Path("runs/bounds"))
    bound.informed, bound.clairvoyant

Two bounds. *Informed* knows every distribution but no luck: what a perfect router could hope for
(`informed.py`). *Clairvoyant* knows all luck, too, and no scheduler can beat it (`clairvoyant.py`);
the policy `clairvoyant` of `baselines` shows how much of it greedy planning reaches. Both say what
servers can do at most by `capacity.py`. They need SciPy (extra `bounds`).
"""

from inframind_gym.benchmark.bounds.fluid import FluidBound, fluid_bounds, mean_bound

__all__ = ["FluidBound", "fluid_bounds", "mean_bound"]
