"""Constants that measured cells state: routers' mixes, rules of agents, shares of outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from benchmarks.fit.quality import outcomes
from inframind_gym.calibration.measured_runs import MeasuredCell
from inframind_gym.calibration.replay import Constants
from inframind_gym.calibration.replay_choices import mean_agents
from inframind_gym.simulator.workflow.topology import STRATEGIES, TOPOLOGIES
from inframind_gym.simulator.workload import AgentProfile, PlannerMix

# Share of the tasks that show tests to the agents: MBPP's prompt lists them (MasRouter's source),
# HumanEval's docstring has examples in 62 of 132 tasks.
VISIBLE_TESTS: Final = {"mbpp": 1.0, "humaneval": 0.47}


def with_facts(start: Constants, cells: Sequence[MeasuredCell]) -> Constants:
    """Return the constants with those not fitted here: routers' mixes, agents' rules, outcomes.

    The mixes are the means over the oblivious cells with the middle cost rate (the one of the
    published comparison) and, of the strategies, over the cells that have any.
    """
    profiles, measured = {}, outcomes()
    names = {model.name: model.alias for model in start.pool.models}
    for dataset, profile in start.profiles.items():
        own = [cell for cell in cells if cell.dataset == dataset]
        router = middle_cost_rate(own)
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


def middle_cost_rate(cells: Sequence[MeasuredCell]) -> list[MeasuredCell]:
    """Return the cells with the middle one of the cost rates that occur."""
    rates = sorted({cell.cost_rate for cell in cells if cell.cost_rate is not None})
    return [cell for cell in cells if rates and cell.cost_rate == rates[len(rates) // 2]]


def _mean(shares: Sequence[Mapping[str, float] | None]) -> dict[str, float]:
    tables = [table for table in shares if table]
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: float(np.mean([table.get(name, 0.0) for table in tables])) for name in names}


def _updated(model: Any, **update: Any) -> Any:
    return model.model_copy(update=update)
