"""Choose the best constant recipes of every workload: `python -m baselines.recipes`.

Every topology with up to three agents, every model and strategy plays at four rates, with budgets
from the tiers, on the questions that agents are trained on and those they are validated on. The
best by goodput play again with all roles that their agents could have, the best of these play
again, longer, and of them the best are written down: over all rates, and at every one of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import typer

from agents import runs
from inframind_gym.envs.core import Float32s, Floats, Ints
from inframind_gym.envs.routing import StreamVectorEnv
from inframind_gym.envs.routing_simulation import MOST_ROLES
from inframind_gym.files import replace_text
from inframind_gym.policies import BasePolicy, Contexts, PolicySpec
from inframind_gym.policies.fixed_recipe import BY_RATE, CHOSEN
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES, distinct_plans

WORKLOADS: Final = ("math", "gsm_hard", "mbpp", "humaneval", "mmlu_pro", "mixed", "all")
RATES_PER_MIN: Final = (10.0, 50.0, 100.0, 200.0)
MOST_AGENTS: Final = 3
MOST_EPISODES: Final = 400  # of one rate that run side by side
SPLITS: Final = ("train", "val")
QUERIES: Final = 500


class Round(NamedTuple):
    """A round of the search."""

    seed: int  # of the first episode: no round plays the episodes of another
    episodes: int  # at each rate and on each split
    overall: int  # candidates that go on to the next round for what they do over all rates
    at_rate: int  # and for what they do at each rate


PLANS: Final = Round(seed=0, episodes=1, overall=6, at_rate=4)
CASTS: Final = Round(seed=1000, episodes=1, overall=8, at_rate=6)
FINAL: Final = Round(seed=2000, episodes=12, overall=1, at_rate=1)


def candidates(num_routes: int) -> Ints:
    """Return actions (C, 9) of the joint level; agents have the first roles of a domain."""
    plans = [
        [topology, agents - 1, *range(MAX_AGENTS)]
        for topology, agents in distinct_plans(range(1, MOST_AGENTS + 1))
    ]
    return np.array([[*plan, route] for plan in plans for route in range(num_routes)], np.int64)


def recast(actions: Ints, num_roles: int) -> Ints:
    """Return recipes (C, 9) with the roles that follow each of a domain's, (C * num_roles, 9)."""
    cast = np.repeat(actions, num_roles, axis=0)
    first = np.tile(np.arange(num_roles), len(actions))
    cast[:, 2:PLAN_ACTIONS] = (first[:, None] + np.arange(MAX_AGENTS)) % num_roles
    return cast


class RecipeOfRow(BasePolicy):
    """Plays a recipe in every row: actions (E, 9)."""

    name = "recipes"
    requires: Mapping[str, Any] = MappingProxyType({"level": "joint"})
    carries_out_any_plan = False

    def __init__(self, actions: Ints) -> None:
        self.actions = actions

    def act_batch(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return the actions of `rows`."""
        return self.actions[rows]


def solved_in_time(workload: str, actions: Ints, episodes: int, seed: int, split: str) -> Floats:
    """Return the share of queries (C, R) that each action solves in time, in the same episodes.

    Args:
        workload: name.
        actions: (C, 9).
        episodes: at each of the R rates.
        seed: of the first episode; the others have the numbers that follow.
        split: of the questions.
    """
    count, rates = len(actions), np.repeat(RATES_PER_MIN, episodes)
    place: dict[str, Any] = {"workload": workload, "split": split, "num_queries": QUERIES}
    env = StreamVectorEnv(count * len(rates), level="joint", observation="index", **place)
    seeds = [seed + i for i in range(len(rates))] * count
    policy = RecipeOfRow(np.repeat(actions, len(rates), axis=0))
    row, records = runs.episodes(env, policy, seeds, np.tile(rates, count))
    in_time = (records["solved"] == 1) & (records["latency_s"] <= records["budget_s"])
    good = np.bincount(row, in_time, env.num_envs)
    mean = good.reshape(count, len(RATES_PER_MIN), episodes).mean(axis=2)
    return np.asarray(mean / QUERIES, np.float64)


def play(workload: str, actions: Ints, of: Round) -> Floats:
    """Return the goodput (C, R) of actions in a round, over the splits."""
    parts = np.array_split(actions, -(-len(actions) * of.episodes // MOST_EPISODES))
    shares = [
        np.concatenate([solved_in_time(workload, p, of.episodes, of.seed, split) for p in parts])
        for split in SPLITS
    ]
    return np.asarray(np.mean(shares, axis=0), np.float64)


def leading(goodput: Floats, of: Round) -> Ints:
    """Return the indices of the goodputs (C, R) that go on, in their order."""
    best = [_first(goodput.mean(axis=1), of.overall)]
    best += [_first(at_rate, of.at_rate) for at_rate in goodput.T]
    return np.unique(np.concatenate(best))


def search(workload: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the best constant recipe of a workload over all rates, and the best by rate."""
    spec = StreamVectorEnv(1, workload=workload, observation="index").policy_spec()
    actions = candidates(spec.num_actions)
    actions = actions[leading(play(workload, actions, PLANS), PLANS)]
    actions = recast(actions, MOST_ROLES)
    actions = actions[leading(play(workload, actions, CASTS), CASTS)]
    goodput = play(workload, actions, FINAL)
    overall = goodput.mean(axis=1)
    by_rate = {
        f"{rate:g}": _entry(spec, actions[at_rate.argmax()], at_rate.max())
        for rate, at_rate in zip(RATES_PER_MIN, goodput.T, strict=True)
    }
    return _entry(spec, actions[overall.argmax()], overall.max()), by_rate


def _first(values: Floats, count: int) -> Ints:
    return np.argsort(-values, kind="stable")[:count]


def _entry(spec: PolicySpec, action: Ints, share: float) -> dict[str, Any]:
    """Return a recipe as it is written down."""
    model, strategy = divmod(int(action[-1]), spec.num_strategies)
    return {
        "topology": TOPOLOGIES[action[0]],
        "num_agents": int(action[1]) + 1,
        "roles": [int(role) for role in action[2 : 3 + action[1]]],
        "model": spec.models[model],
        "strategy": spec.strategies[strategy],
        "goodput": round(float(share), 4),
    }


def main(
    out: Annotated[Path, typer.Option(help="JSON file of the chosen recipes.")] = CHOSEN,
    by_rate: Annotated[Path, typer.Option(help="The same by workload and rate.")] = BY_RATE,
) -> None:
    """Choose the best constant recipes of every shipped workload."""
    chosen, chosen_by_rate = {}, {}
    for workload in WORKLOADS:
        chosen[workload], chosen_by_rate[workload] = search(workload)
        print(workload, json.dumps(chosen[workload]), flush=True)
    for path, table in ((out, chosen), (by_rate, chosen_by_rate)):
        replace_text(path, json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
