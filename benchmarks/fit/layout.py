"""Constants of time, and the places of all constants of the fit in a vector.

Each is a quantity of the testbed or of its models: the cost of an engine step, how co-located
models slow each other, how long a model's answers are on a dataset and how they spread, how long
instructions are. None belongs to a cell. All have normal priors on their logarithms; the constants
of quality are in `quality`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from benchmarks.fit.quality import QualityLayout, outcomes, with_gains
from inframind_gym.calibration.fit import Vector
from inframind_gym.calibration.replay import Constants
from inframind_gym.simulator.workflow.topology import STRATEGIES

# Starting points of the fit, and standard deviations of their logarithms. A step with one sequence,
# and what each further sequence adds to it (times one fitted factor): time per output token on an
# H200 at batch 1 and 16, as AIConfigurator estimates it, less the reads of the KV cache. The
# testbed's B200 reads 1.7 times as fast, but a step has costs of its own.
BASE_S: Final = {
    "deepseek-32b": 0.0184,
    "mistral-24b": 0.0128,
    "qwen-14b": 0.0087,
    "llama-8b": 0.0049,
    "llama-3b": 0.0027,
}
PER_SEQ_S: Final = {
    "deepseek-32b": 6.6e-5,
    "mistral-24b": 3.0e-5,
    "qwen-14b": 2.7e-5,
    "llama-8b": 2.0e-5,
    "llama-3b": 1.5e-5,
}
BASE_SD: Final = 0.5
# Constants of time that all share: value, sd.
SHARED: Final = {
    "per_seq_s: common factor": (1.0, 0.7),
    "colocation_slowdown": (1.0, 0.7),  # per other busy model: 1 where processes take turns
    "sigma_query": (None, 0.3),  # sd of log length between queries: from the outcomes
    "sigma_call": (0.35, 0.3),  # between the calls to a query
    "overhead_tokens": (250.0, 0.7),
}
# Measured seconds a call at 10 queries a minute, and the seconds a token under light load: their
# ratio is the mean length of an answer, of which the median is the given share (log-normal).
CALL_S: Final = {
    "math": (45.0, 6.7, 10.5, 4.8, 3.5),
    "mbpp": (42.0, 4.1, 6.7, 2.4, 2.3),
    "gsm_hard": (25.0, 4.8, 6.3, 2.6, 2.0),
    "humaneval": (37.0, 6.6, 5.1, 4.0, 3.6),
    "mmlu_pro": (32.0, 5.3, 5.6, 3.0, 1.2),
}
TOKEN_S: Final = (0.031, 0.018, 0.018, 0.010, 0.0075)
# Answers under a prompt strategy over those under plain prompts: within the measured ranges.
STRATEGY_FACTOR: Final = {"Flash": 0.94, "Concise": 0.87, "DeepThink": 1.18}
STRATEGY_FACTOR_SD: Final = 0.1
# The deciding call's answers relative to the agents', one factor a dataset: an answer to the same
# question by the same model.
FINAL_FACTOR_SD: Final = 0.25
MEDIAN_OF_MEAN: Final = 0.86
LENGTH_SD: Final = 0.5
# CALL_S is derived from all measured runs. Where a rate is left out, orders of magnitude instead: a
# reasoning model's answers and the others', on every dataset.
NEUTRAL_TOKENS: Final = (1000.0, 250.0, 250.0, 250.0, 250.0)
NEUTRAL_LENGTH_SD: Final = 1.0


@dataclass(frozen=True)
class Layout:
    """Places of the constants in a vector: those of time first, then those of quality.

    Constants of time are logarithms; those of quality are as `QualityLayout` has them.
    """

    datasets: tuple[str, ...]
    models: tuple[str, ...]
    domains: tuple[str, ...]  # of the datasets

    @property
    def quality(self) -> QualityLayout:
        """Places of the constants of quality, counted from `num_time`."""
        return QualityLayout(self.datasets, self.domains, self.models)

    @property
    def shared(self) -> int:
        """Number of constants of time that all datasets share."""
        return len(self.models) + len(SHARED) + len(STRATEGIES)

    @property
    def num_time(self) -> int:
        """Number of constants of time."""
        return self.shared + len(self.datasets) * (1 + len(self.models))

    def names(self) -> list[str]:
        """Return the name of each place."""
        per_dataset = [f"{dataset}: {model}" for dataset in self.datasets for model in self.models]
        return [
            *(f"{model}: base_s" for model in self.models),
            *SHARED,
            *(f"strategy_factor.{strategy}" for strategy in STRATEGIES),
            *(f"{dataset}: final_factor" for dataset in self.datasets),
            *(f"{pair}: output_tokens_median" for pair in per_dataset),
            *self.quality.names(),
        ]

    def values(self, x: Vector) -> dict[str, float]:
        """Return the constants of a vector by name, in their own units."""
        quality = self.quality.values(x[self.num_time :])
        values = np.concatenate([np.exp(x[: self.num_time]), quality])
        return dict(zip(self.names(), values.tolist(), strict=True))

    def vector(self, values: Mapping[str, float]) -> Vector:
        """Return the vector of constants by name; what is missing is as in the prior."""
        time = time_prior(self)[0]
        for index, name in enumerate(self.names()[: self.num_time]):
            if name in values:
                time[index] = math.log(values[name])
        return np.concatenate([time, self.quality.vector(values)])


def layout_of(start: Constants) -> Layout:
    """Return the places of the constants of the profiles of `start`."""
    domains = tuple(profile.domain for profile in start.profiles.values())
    return Layout(tuple(start.profiles), start.pool.aliases, domains)


def time_prior(layout: Layout, *, neutral: bool = False) -> tuple[Vector, Vector]:
    """Return means (P,) and inverse covariance (P, P) of the constants of time.

    Args:
        layout: Places of the constants.
        neutral: Take nothing from the measured runs, not even starting points of the lengths.
    """
    of = outcomes()
    hidden = of["length_sd_between_questions"] ** 2 - of["difficulty_slope"] ** 2
    sigma_query = math.sqrt(hidden)  # the part that difficulty does not explain
    light = np.array(TOKEN_S)
    tokens = [
        np.array(NEUTRAL_TOKENS if neutral else np.array(CALL_S[d]) / light) * MEDIAN_OF_MEAN
        for d in layout.datasets
    ]
    starts = [sigma_query if start is None else start for start, _ in SHARED.values()]
    bases = [BASE_S[model] for model in layout.models]
    factors = [*STRATEGY_FACTOR.values(), *([1.0] * len(layout.datasets))]
    mean = np.log([*bases, *starts, *factors, *np.concatenate(tokens)])
    sd = [BASE_SD] * len(bases) + [sd for _, sd in SHARED.values()]
    sd += [STRATEGY_FACTOR_SD] * len(STRATEGIES) + [FINAL_FACTOR_SD] * len(layout.datasets)
    sd += [NEUTRAL_LENGTH_SD if neutral else LENGTH_SD] * (layout.num_time - len(sd))
    return mean, np.diag(1.0 / np.array(sd) ** 2)


def with_constants(start: Constants, layout: Layout, x: Vector) -> Constants:
    """Return the constants of `start` with those of the vector `x` in their places."""
    values = layout.values(x)
    gains = layout.quality.gains(x[layout.num_time :])
    pool = start.pool
    factor, slowdown, sigma_query, sigma_call, overhead = (values[name] for name in SHARED)
    models = []
    for model in pool.models:
        step = _updated(
            model.server.step,
            base_s=values[f"{model.alias}: base_s"],
            per_seq_s=PER_SEQ_S[model.alias] * factor,
        )
        models.append(_updated(model, server=_updated(model.server, step=step)))
    gpus = [_updated(gpu, colocation_slowdown=slowdown) for gpu in pool.gpus]
    profiles = {}
    for index, dataset in enumerate(layout.datasets):
        profile = start.profiles[dataset]
        profiles[dataset] = _updated(
            profile,
            output=_updated(
                profile.output,
                sigma_query=sigma_query,
                sigma_call=sigma_call,
                strategy_factor={of: values[f"strategy_factor.{of}"] for of in STRATEGIES},
                final_factor=values[f"{dataset}: final_factor"],
            ),
            prompt=_updated(profile.prompt, overhead_tokens=round(overhead)),
            quality=with_gains(profile.quality, gains, index),
            models={
                alias: _updated(
                    of,
                    output_tokens_median=values[f"{dataset}: {alias}: output_tokens_median"],
                    ability=values[f"{dataset}: {alias}: ability"],
                )
                for alias, of in profile.models.items()
            },
        )
    return replace(
        start,
        pool=_updated(pool, models=tuple(models), gpus=tuple(gpus)),
        profiles=profiles,
        aggregation_gains=dict(zip(layout.datasets, gains.aggregation.tolist(), strict=True)),
    )


def _updated(model: Any, **update: Any) -> Any:
    return model.model_copy(update=update)
