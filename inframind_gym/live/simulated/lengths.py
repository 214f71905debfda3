"""Lengths of answers: log-normal, as a workload says of each model and strategy."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from inframind_gym.simulator.workload import WorkloadConfig, load_profiles


class AnswerLengths:
    """Draws the tokens of answers.

    Args:
        workload: its profiles are drawn by their weights, its models are found by their aliases;
            one that it does not know has the geometric mean of those that it does.
        aliases: of the pool's models.
    """

    def __init__(self, workload: WorkloadConfig, aliases: Sequence[str]) -> None:
        profiles = load_profiles(workload).values()
        self._weights = [each.weight for each in profiles]
        self._log_medians: list[list[float]] = []  # by profile and model
        self._sigmas = []
        self._factors = [each.profile.output.strategy_factor for each in profiles]
        for _, profile in profiles:
            known = {a: math.log(m.output_tokens_median) for a, m in profile.models.items()}
            mean = math.fsum(known.values()) / len(known)
            self._log_medians.append([known.get(alias, mean) for alias in aliases])
            self._sigmas.append(math.hypot(profile.output.sigma_query, profile.output.sigma_call))

    def draw(self, model: int, key: str, strategy: str | None = None) -> int:
        """Return the tokens of an answer: a function of the arguments.

        Args:
            model: index in the pool.
            key: of the random numbers.
            strategy: whose instruction the prompt holds; None: none's.
        """
        rng = random.Random(key)
        (profile,) = rng.choices(range(len(self._weights)), self._weights)
        tokens = rng.lognormvariate(self._log_medians[profile][model], self._sigmas[profile])
        factor = 1.0 if strategy is None else self._factors[profile][strategy]
        return max(1, round(factor * tokens))
