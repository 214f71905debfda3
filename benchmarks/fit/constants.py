"""The constants that are fitted to measured runs: which they are, where they start, what they mean.

Few, and each of them a quantity of the testbed or of its models: the cost of an engine step, how
co-located models slow each other, how long a model's answers are on a dataset and how they spread,
how long instructions are, how able a model is. None belongs to a cell.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.calibration.measured import MeasuredCell
from inframind_gym.calibration.replay_choices import mean_agents
from inframind_gym.calibration.replay_runs import Constants
from inframind_gym.simulator.workflow.topology import STRATEGIES, TOPOLOGIES
from inframind_gym.simulator.workload import AgentProfile, PlannerMix

# Where the fit starts and how far it may go (sd of a logarithm), with sources in FACTS.md (§).
# Seconds of a step with one sequence: H200 TPOT (§5). The testbed's B200 reads 1.7 times as fast,
# but a step has costs of its own that a roofline leaves out.
BASE_S: Final = {
    "deepseek-32b": 0.0184,
    "mistral-24b": 0.0128,
    "qwen-14b": 0.0087,
    "llama-8b": 0.0049,
    "llama-3b": 0.0027,
}
BASE_SD: Final = 0.5
# Seconds that each further sequence adds to a step: H200 TPOT from batch 1 to 16 (§5), less the
# reads of the KV cache. One common factor is fitted.
PER_SEQ_S: Final = {
    "deepseek-32b": 6.6e-5,
    "mistral-24b": 3.0e-5,
    "qwen-14b": 2.7e-5,
    "llama-8b": 2.0e-5,
    "llama-3b": 1.5e-5,
}
PER_SEQ_SD: Final = 0.7
# Slowdown per other busy model on the GPU: 1 where processes take turns on it.
COLOCATION: Final = 1.0
COLOCATION_SD: Final = 0.7
# Sd of log length between the calls to a query; between queries it starts from the outcomes.
SIGMA_CALL: Final = 0.35
SIGMA_SD: Final = 0.3
OVERHEAD_TOKENS: Final = 250.0
OVERHEAD_SD: Final = 0.7
# Seconds a call at 10 queries a minute (§2); over the seconds a token beside it, the mean length.
CALL_S: Final = {
    "math": (45.0, 6.7, 10.5, 4.8, 3.5),
    "mbpp": (42.0, 4.1, 6.7, 2.4, 2.3),
    "gsm_hard": (25.0, 4.8, 6.3, 2.6, 2.0),
    "humaneval": (37.0, 6.6, 5.1, 4.0, 3.6),
    "mmlu_pro": (32.0, 5.3, 5.6, 3.0, 1.2),
}
TOKEN_S: Final = (0.031, 0.018, 0.018, 0.010, 0.0075)
MEDIAN_OF_MEAN: Final = 0.86  # of a log-normal with the sigmas above
TOKENS_SD: Final = 0.5
# Where a rate is left out: §2 is derived from all measured runs, so nothing of it may be known.
# Orders of magnitude instead: a reasoning model's answers and the others', on every dataset.
NEUTRAL_TOKENS: Final = (1000.0, 250.0, 250.0, 250.0, 250.0)
NEUTRAL_TOKENS_SD: Final = 1.0
# Accuracy of one call: the published ones (§8) and, where there are none, in their order. All
# models of a dataset move together by OFFSET_SD logits (other prompts, other subsets), each alone
# by ABILITY_SD.
ACCURACY: Final = {
    "math": (0.90, 0.70, 0.57, 0.50, 0.43),
    "mbpp": (0.88, 0.79, 0.83, 0.69, 0.55),
    "gsm_hard": (0.62, 0.60, 0.58, 0.47, 0.38),
    "humaneval": (0.96, 0.89, 0.90, 0.75, 0.60),
    "mmlu_pro": (0.68, 0.60, 0.51, 0.44, 0.34),
}
OFFSET_SD: Final = 0.3
FITTED: Final = Path(__file__).resolve().parent / "fitted"  # the fits on file
# Spread of difficulty: the one that was measured on MMLU-Pro is where other datasets start (sd of a
# logarithm). How much several agents gain on one of them decides.
SPREAD_SD: Final = {"mmlu_pro": 0.03}
OTHER_SPREAD_SD: Final = 0.5
# What the outcomes of many models on MMLU-Pro say (`benchmarks.fit.outcomes`).
OUTCOMES: Final = FITTED / "outcomes.json"
# Share of the tasks that show tests to the agents: MBPP's prompt lists them (MasRouter's source),
# HumanEval's docstring has examples in 62 of 132 tasks (§9).
VISIBLE_TESTS: Final = {"mbpp": 1.0, "humaneval": 0.47}
ABILITY_SD: Final = 0.35


@dataclass(frozen=True)
class Layout:
    """Places of the constants in a vector: those of time first, then those of quality.

    Lengths, costs and spreads stand there as logarithms, abilities as logits more than what gives
    the published accuracy at the dataset's spread of difficulty.
    """

    datasets: tuple[str, ...]
    models: tuple[str, ...]

    @property
    def shared(self) -> int:
        """Number of constants of time that all datasets share."""
        return len(self.models) + 5

    @property
    def num_time(self) -> int:
        """Number of constants of time."""
        return self.shared + len(self.datasets) * len(self.models)

    def names(self) -> list[str]:
        """What each place holds."""
        per_dataset = [(d, m) for d in self.datasets for m in self.models]
        return [
            *(f"{model}: base_s" for model in self.models),
            "per_seq_s: common factor",
            "colocation_slowdown",
            "sigma_query",
            "sigma_call",
            "overhead_tokens",
            *(f"{dataset}: {model}: output_tokens_median" for dataset, model in per_dataset),
            *(f"{dataset}: {model}: ability" for dataset, model in per_dataset),
            *(f"{dataset}: difficulty_sd" for dataset in self.datasets),
        ]

    def quality(self, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Abilities (D, M) and spreads of difficulty (D,) of the datasets, in logits."""
        spread = np.exp(x[-len(self.datasets) :])
        more = x[self.num_time : -len(self.datasets)].reshape(len(self.datasets), -1)
        published = [
            [ability_of(accuracy, sd) for accuracy in ACCURACY[dataset]]
            for dataset, sd in zip(self.datasets, spread.tolist(), strict=True)
        ]
        return np.array(published) + more, spread

    def values(self, x: NDArray[np.float64]) -> dict[str, float]:
        """The constants of a vector by name, in their own units."""
        ability, spread = self.quality(x)
        values = np.concatenate([np.exp(x[: self.num_time]), ability.ravel(), spread])
        return dict(zip(self.names(), values.tolist(), strict=True))


@lru_cache(maxsize=1)
def outcomes() -> dict[str, float]:
    """What ``python -m benchmarks.fit.outcomes`` measured, by name."""
    table = json.loads(OUTCOMES.read_text("utf-8"))
    return {name: float(of["value"]) for name, of in table.items()}


def time_prior(
    layout: Layout, *, neutral: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means and inverse covariance of the constants of time.

    Args:
        layout: Places of the constants.
        neutral: Take nothing from the measured runs, not even where the lengths start.
    """
    of = outcomes()
    hidden = of["length_sd_between_questions"] ** 2 - of["difficulty_slope"] ** 2
    sigma_query = math.sqrt(hidden)  # what difficulty does not explain
    light = np.array(TOKEN_S)
    tokens = [
        np.array(NEUTRAL_TOKENS if neutral else np.array(CALL_S[d]) / light) * MEDIAN_OF_MEAN
        for d in layout.datasets
    ]
    mean = np.log(
        [
            *(BASE_S[model] for model in layout.models),
            1.0,
            COLOCATION,
            sigma_query,
            SIGMA_CALL,
            OVERHEAD_TOKENS,
            *np.concatenate(tokens),
        ]
    )
    sd = [BASE_SD] * len(layout.models)
    sd += [PER_SEQ_SD, COLOCATION_SD, SIGMA_SD, SIGMA_SD, OVERHEAD_SD]
    tokens_sd = NEUTRAL_TOKENS_SD if neutral else TOKENS_SD
    sd += [tokens_sd] * (layout.num_time - layout.shared)
    return mean, np.diag(1.0 / np.array(sd) ** 2)


def quality_prior(layout: Layout) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means and inverse covariance of the constants of quality."""
    datasets, models = len(layout.datasets), len(layout.models)
    spread = math.log(outcomes()["difficulty_sd"])
    mean = np.concatenate([np.zeros(datasets * models), np.full(datasets, spread)])
    one = np.linalg.inv(ABILITY_SD**2 * np.eye(models) + OFFSET_SD**2)
    precision = np.zeros((len(mean), len(mean)))
    precision[: datasets * models, : datasets * models] = np.kron(np.eye(datasets), one)
    for d, dataset in enumerate(layout.datasets, datasets * models):
        precision[d, d] = SPREAD_SD.get(dataset, OTHER_SPREAD_SD) ** -2
    return mean, precision


def ability_of(accuracy: float, difficulty_sd: float) -> float:
    """Ability in logits whose mean accuracy over normal difficulties is the given one."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)
    low, high = -20.0, 20.0
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        right = 1.0 / (1.0 + np.exp(-(middle - difficulty_sd * nodes)))
        if float(weights @ right) / math.sqrt(2.0 * math.pi) < accuracy:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def with_constants(start: Constants, layout: Layout, x: NDArray[np.float64]) -> Constants:
    """The constants of `start` with those of the vector `x` in their places."""
    models, shared = len(layout.models), layout.shared
    base_s, rest = np.exp(x[:models]), np.exp(x[models:shared])
    factor, slowdown, sigma_query, sigma_call, overhead = rest.tolist()
    tokens = np.exp(x[shared : layout.num_time]).reshape(-1, models)
    ability, spread = layout.quality(x)
    pool = start.pool
    servers = []
    for model in pool.models:
        place = layout.models.index(model.alias)
        step = _updated(
            model.server.step,
            base_s=float(base_s[place]),
            per_seq_s=PER_SEQ_S[model.alias] * factor,
        )
        servers.append(_updated(model, server=_updated(model.server, step=step)))
    gpus = [_updated(gpu, colocation_slowdown=slowdown) for gpu in pool.gpus]
    profiles = {}
    for d, dataset in enumerate(layout.datasets):
        profile = start.profiles[dataset]
        profiles[dataset] = _updated(
            profile,
            output=_updated(profile.output, sigma_query=sigma_query, sigma_call=sigma_call),
            prompt=_updated(profile.prompt, overhead_tokens=round(overhead)),
            quality=_updated(profile.quality, difficulty_sd=float(spread[d])),
            models={
                alias: _updated(
                    of,
                    output_tokens_median=float(tokens[d, layout.models.index(alias)]),
                    ability=float(ability[d, layout.models.index(alias)]),
                )
                for alias, of in profile.models.items()
            },
        )
    return Constants(_updated(pool, models=tuple(servers), gpus=tuple(gpus)), profiles)


def with_facts(start: Constants, cells: Sequence[MeasuredCell]) -> Constants:
    """The constants with what is not fitted here: the routers' mixes, the agents' rules, outcomes.

    The mixes are the means over the oblivious cells with the middle cost rate (the one of the
    published comparison) and, of the strategies, over the cells that have any.
    """
    profiles, said = {}, outcomes()
    for dataset, profile in start.profiles.items():
        own = [cell for cell in cells if cell.dataset == dataset]
        router = middle_cost_rate(own)
        names = {model.name: model.alias for model in start.pool.models}
        share = _mean([cell.model_share for cell in router])
        of_alias = {names.get(name, name): value for name, value in share.items()}
        topologies = _mean([cell.topology_share for cell in router])
        strategies = _mean([cell.strategy_share for cell in own]) or profile.strategy_mix
        agents = {round(mean_agents(cell, profile)): 1.0 for cell in router}
        profiles[dataset] = _updated(
            profile,
            planner=PlannerMix(
                num_agents=agents if len(agents) == 1 else profile.planner.num_agents,
                topologies={name: topologies.get(name, 0.0) for name in TOPOLOGIES},
            ),
            strategy_mix={name: strategies.get(name, 0.0) for name in STRATEGIES},
            models={
                alias: _updated(of, share=of_alias.get(alias, 0.0))
                for alias, of in profile.models.items()
            },
            agents=AgentProfile(role_calls=True, visible_tests=VISIBLE_TESTS.get(dataset, 0.0)),
            output=_updated(profile.output, difficulty_slope=said["difficulty_slope"]),
            quality=_updated(
                profile.quality,
                latent_correlation=said["latent_correlation"],
                truncated_right_frac=said["truncated_right_frac"],
            ),
        )
    return Constants(start.pool, profiles)


def middle_cost_rate(cells: Sequence[MeasuredCell]) -> list[MeasuredCell]:
    """The cells with the middle one of the cost rates that occur."""
    rates = sorted({cell.cost_rate for cell in cells if cell.cost_rate is not None})
    return [cell for cell in cells if rates and cell.cost_rate == rates[len(rates) // 2]]


def _mean(shares: Sequence[Mapping[str, float] | None]) -> dict[str, float]:
    tables = [table for table in shares if table]
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: float(np.mean([table.get(name, 0.0) for table in tables])) for name in names}


def _updated(model: Any, **update: Any) -> Any:
    return model.model_copy(update=update)


def check_known(datasets: Sequence[str], models: Sequence[str]) -> None:
    """Check that starting points are known for all datasets and models.

    Raises:
        BenchmarkError: names those that are missing.
    """
    missing = [d for d in datasets if d not in CALL_S] + [m for m in models if m not in BASE_S]
    if missing:
        raise BenchmarkError(
            f"no starting points for {', '.join(missing)}: add them to benchmarks/fit/constants.py."
        )
