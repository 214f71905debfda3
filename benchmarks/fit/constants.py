"""Constants of the fit: their priors, their places in a vector, and those that cells state.

Constants of *time* are quantities of the testbed or of its models: the cost of an engine step, how
co-located models slow each other, how long a model's answers are on a dataset and how they spread,
how long instructions are. Constants of *quality*, of a dataset: abilities and spread of difficulty,
gains by structure of a workflow and by prompt strategy, and the gain of the aggregating call of
`moa` and `gptswarm`. None belongs to a cell. Measured runs do not identify all of them, so all have
normal priors (those of time on their logarithms), and gains of any sign are hierarchical: datasets
of a domain share a part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.linalg import block_diag

from benchmarks.fit.measured_runs import MeasuredCell
from benchmarks.fit.replay import Constants, mean_agents
from inframind_gym.calibration.server_card import Vector
from inframind_gym.simulator.item_response import ability_of
from inframind_gym.simulator.workflow.topology import STRATEGIES, STRUCTURES, TOPOLOGIES
from inframind_gym.simulator.workload import AgentProfile, PlannerMix

OUTCOMES: Final = Path(__file__).resolve().parent / "fitted" / "outcomes.json"

# Priors of quality

# Accuracy of one call: from model cards and EvalPlus and, where there are none, in their order. All
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
ABILITY_SD: Final = 0.35
# Spread of difficulty: the one that was measured on MMLU-Pro is where other datasets start (sd of a
# logarithm). How much several agents gain on one of them decides.
SPREAD_SD: Final = {"mmlu_pro": 0.03}
OTHER_SPREAD_SD: Final = 0.5
# Gains in logits. Of a structure, and of the aggregating call: any sign; the part that the datasets
# of a domain share, and their own. Of a strategy: assumed means by domain; for knowledge for the
# 9-19 points that reasoning brings on MMLU-Pro by the models' cards, for code less than for
# mathematics, since agents hand on code and not a chain of thought.
STRUCTURE_SD: Final = (0.6, 0.5)
AGGREGATION_SD: Final = (1.0, 0.5)
STRATEGY_GAIN: Final = {
    "Math": {"Flash": -0.3, "DeepThink": 0.2},
    "Code": {"Flash": -0.15, "DeepThink": 0.1},
    "Commonsense": {"Flash": -0.6, "DeepThink": 0.3},
}
GAINING: Final = ("Flash", "DeepThink")  # against the third strategy
STRATEGY_SD: Final = 0.2

# Priors of time

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
# Share of the tasks that show tests to the agents: MBPP's prompt lists them (MasRouter's source),
# HumanEval's docstring has examples in 62 of 132 tasks.
VISIBLE_TESTS: Final = {"mbpp": 1.0, "humaneval": 0.47}


def outcomes() -> dict[str, float]:
    """Return the quantities measured on outcomes of 29 models on MMLU-Pro, by name.

    The script was `benchmarks/fit/outcomes.py`, last in revision 1b21958a.
    """
    table = json.loads(OUTCOMES.read_text("utf-8"))
    return {name: float(of["value"]) for name, of in table.items()}


@dataclass(frozen=True)
class Layout:
    """Places of the constants in a vector: those of time first, then P of quality.

    Constants of time are logarithms. Of those of quality, abilities are logits above the ability
    that gives the published accuracy at the dataset's spread of difficulty, which is a logarithm;
    gains are logits.
    """

    datasets: tuple[str, ...]
    models: tuple[str, ...]
    domains: tuple[str, ...]  # of the datasets

    @property
    def num_time(self) -> int:
        """Number of constants of time."""
        shared = len(self.models) + len(SHARED) + len(STRATEGIES)
        return shared + len(self.datasets) * (1 + len(self.models))

    def names(self) -> list[str]:
        """Return the name of each place; of a constant of a dataset `dataset: constant`."""
        per_dataset = [f"{dataset}: {model}" for dataset in self.datasets for model in self.models]
        return [
            *(f"{model}: base_s" for model in self.models),
            *SHARED,
            *(f"strategy_factor.{strategy}" for strategy in STRATEGIES),
            *(f"{dataset}: final_factor" for dataset in self.datasets),
            *(f"{pair}: output_tokens_median" for pair in per_dataset),
            *(f"{pair}: ability" for pair in per_dataset),
            *(f"{dataset}: difficulty_sd" for dataset in self.datasets),
            *(f"{d}: structure_gain.{name}" for d in self.datasets for name in STRUCTURES),
            *(f"{d}: strategy_gain.{name}" for d in self.datasets for name in GAINING),
            *(f"{dataset}: aggregation_gain" for dataset in self.datasets),
        ]

    def quality_names(self) -> list[str]:
        """Return the names of the constants of quality."""
        return self.names()[self.num_time :]

    def values(self, x: Vector) -> dict[str, float]:
        """Return the constants of a vector by name, in their own units."""
        time, quality = np.exp(x[: self.num_time]), self.quality_values(x[self.num_time :])
        return dict(zip(self.names(), [*time.tolist(), *quality.tolist()], strict=True))

    def quality_values(self, x: Vector) -> Vector:
        """Return constants of quality (P,) in their own units."""
        abilities, out = len(self.datasets) * len(self.models), x.copy()
        spread = slice(abilities, abilities + len(self.datasets))
        out[spread] = np.exp(x[spread])
        published = [
            ability_of(accuracy, sd)
            for dataset, sd in zip(self.datasets, out[spread].tolist(), strict=True)
            for accuracy in ACCURACY[dataset]
        ]
        out[:abilities] += published
        return out

    def quality_prior(self) -> tuple[Vector, Vector]:
        """Return means (P,) and inverse covariance (P, P) of the constants of quality."""
        count, models = len(self.datasets), len(self.models)
        own = np.eye(count)
        together = np.equal.outer(self.domains, self.domains).astype(float)

        def hierarchical(shared_sd: float, own_sd: float) -> Vector:
            return shared_sd**2 * together + own_sd**2 * own

        spread = [SPREAD_SD.get(dataset, OTHER_SPREAD_SD) ** 2 for dataset in self.datasets]
        blocks = [
            np.kron(own, ABILITY_SD**2 * np.eye(models) + OFFSET_SD**2),
            np.diag(spread),
            np.kron(hierarchical(*STRUCTURE_SD), np.eye(len(STRUCTURES))),
            np.kron(own, STRATEGY_SD**2 * np.eye(len(GAINING))),
            hierarchical(*AGGREGATION_SD),
        ]
        mean = np.concatenate(
            [
                np.zeros(count * models),
                np.full(count, math.log(outcomes()["difficulty_sd"])),
                np.zeros(count * len(STRUCTURES)),
                *([STRATEGY_GAIN[domain][name] for name in GAINING] for domain in self.domains),
                np.zeros(count),
            ]
        )
        return mean, block_diag(*map(np.linalg.inv, blocks))

    def time_prior(self, *, neutral: bool = False) -> tuple[Vector, Vector]:
        """Return means and inverse covariance of the constants of time.

        Neutral ones take nothing from the measured runs, not even starting points of lengths.
        """
        of = outcomes()
        hidden = of["length_sd_between_questions"] ** 2 - of["difficulty_slope"] ** 2
        sigma_query = math.sqrt(hidden)  # the part that difficulty does not explain
        light = np.array(TOKEN_S)
        tokens = [
            np.array(NEUTRAL_TOKENS if neutral else np.array(CALL_S[d]) / light) * MEDIAN_OF_MEAN
            for d in self.datasets
        ]
        starts = [sigma_query if start is None else start for start, _ in SHARED.values()]
        bases = [BASE_S[model] for model in self.models]
        factors = [*STRATEGY_FACTOR.values(), *([1.0] * len(self.datasets))]
        mean = np.log([*bases, *starts, *factors, *np.concatenate(tokens)])
        sd = [BASE_SD] * len(bases) + [sd for _, sd in SHARED.values()]
        sd += [STRATEGY_FACTOR_SD] * len(STRATEGIES) + [FINAL_FACTOR_SD] * len(self.datasets)
        sd += [NEUTRAL_LENGTH_SD if neutral else LENGTH_SD] * (self.num_time - len(sd))
        return mean, np.diag(1.0 / np.array(sd) ** 2)


def with_constants(start: Constants, values: Mapping[str, float]) -> Constants:
    """Return the constants of `start` with those of `Layout.values` in their places."""
    pool, profiles, aggregation_gains = start.pool, {}, {}
    factor, slowdown, sigma_query, sigma_call, overhead = (values[name] for name in SHARED)
    models = []
    for model in pool.models:
        base_s, per_seq_s = values[f"{model.alias}: base_s"], PER_SEQ_S[model.alias] * factor
        step = _updated(model.server.step, base_s=base_s, per_seq_s=per_seq_s)
        models.append(_updated(model, server=_updated(model.server, step=step)))
    gpus = [_updated(gpu, colocation_slowdown=slowdown) for gpu in pool.gpus]
    for dataset, profile in start.profiles.items():
        mark = f"{dataset}: "
        own = {name.removeprefix(mark): of for name, of in values.items() if name.startswith(mark)}
        gain = {name: own[f"strategy_gain.{name}"] for name in GAINING}
        profiles[dataset] = _updated(
            profile,
            output=_updated(
                profile.output,
                sigma_query=sigma_query,
                sigma_call=sigma_call,
                strategy_factor={of: values[f"strategy_factor.{of}"] for of in STRATEGIES},
                final_factor=own["final_factor"],
            ),
            prompt=_updated(profile.prompt, overhead_tokens=round(overhead)),
            quality=_updated(
                profile.quality,
                difficulty_sd=own["difficulty_sd"],
                structure_gain={name: own[f"structure_gain.{name}"] for name in STRUCTURES},
                strategy_gain={**profile.quality.strategy_gain, **gain},
            ),
            models={
                alias: _updated(
                    of,
                    output_tokens_median=own[f"{alias}: output_tokens_median"],
                    ability=own[f"{alias}: ability"],
                )
                for alias, of in profile.models.items()
            },
        )
        aggregation_gains[dataset] = own["aggregation_gain"]
    return replace(
        start,
        pool=_updated(pool, models=tuple(models), gpus=tuple(gpus)),
        profiles=profiles,
        aggregation_gains=aggregation_gains,
    )


# Constants that measured cells state: routers' mixes, rules of agents, shares of outcomes


def with_facts(start: Constants, cells: Sequence[MeasuredCell]) -> Constants:
    """Return the constants with those not fitted here: routers' mixes, agents' rules, outcomes.

    The mixes are the means over the oblivious cells with the middle cost rate (the one of the
    published comparison) and, of the strategies, over the cells that have any.
    """
    profiles, measured = {}, outcomes()
    names = {model.name: model.alias for model in start.pool.models}
    for dataset, profile in start.profiles.items():
        own = [cell for cell in cells if cell.dataset == dataset]
        rates = sorted({cell.cost_rate for cell in own if cell.cost_rate is not None})
        router = [cell for cell in own if rates and cell.cost_rate == rates[len(rates) // 2]]
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
            output=_updated(profile.output, difficulty_slope=measured["difficulty_slope"]),
            quality=_updated(
                profile.quality,
                latent_correlation=measured["latent_correlation"],
                truncated_right_frac=measured["truncated_right_frac"],
            ),
        )
    return replace(start, profiles=profiles)


def _mean(shares: Sequence[Mapping[str, float] | None]) -> dict[str, float]:
    tables = [table for table in shares if table]
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: float(np.mean([table.get(name, 0.0) for table in tables])) for name in names}


def _updated(model: Any, **update: Any) -> Any:
    return model.model_copy(update=update)
