"""Choose the best constant recipe of every workload: `python -m baselines.fixed_recipe_search`.

Every topology with up to three agents, every model and strategy plays the validation split at four
rates, with budgets from the tiers; the best by goodput play again, longer, and the best of these is
written down.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from numpy.typing import NDArray

from baselines.fixed_recipe import CHOSEN
from inframind_gym.envs.vector import StreamVectorEnv
from inframind_gym.files import replace_text
from inframind_gym.topology import MAX_AGENTS, TOPOLOGIES, distinct_plans

WORKLOADS: Final = ("math", "gsm_hard", "mbpp", "humaneval", "mmlu_pro", "mixed", "all")
RATES_PER_MIN: Final = (10.0, 50.0, 100.0, 200.0)
MOST_AGENTS: Final = 3
FINALISTS: Final = 12
SWEEPS: Final = (1, 8)  # at each rate, in the first and in the second round
QUERIES: Final = 500


def candidates(num_routes: int) -> NDArray[np.int64]:
    """Actions (C, 9) of the joint level."""
    plans = [
        [topology, agents - 1, *range(MAX_AGENTS)]
        for topology, agents in distinct_plans(range(1, MOST_AGENTS + 1))
    ]
    return np.array([[*plan, route] for plan in plans for route in range(num_routes)], np.int64)


def goodput(workload: str, actions: NDArray[np.int64], sweeps: int, seed: int) -> NDArray[Any]:
    """Share of the queries that each action solves in time, (C,); the same sweeps for all."""
    rates = np.repeat(RATES_PER_MIN, sweeps)
    count = len(actions)
    env = StreamVectorEnv(
        count * len(rates),
        level="joint",
        observation="index",
        workload=workload,
        split="val",
        num_queries=QUERIES,
    )
    env.reset(
        seed=[seed + i for i in range(len(rates))] * count,
        options={"arrival_rate_per_min": np.tile(rates, count)},
    )
    chosen = np.repeat(actions, len(rates), axis=0)
    running = np.ones(env.num_envs, np.bool_)
    good = np.zeros(env.num_envs)
    while running.any():
        _, _, over, _, _ = env.step(chosen)
        of, records = env.completed()
        in_time = (records["solved"] == 1) & (records["latency_s"] <= records["budget_s"])
        np.add.at(good, of[running[of]], in_time[running[of]])
        running &= ~over
    return np.asarray(good.reshape(count, len(rates)).mean(axis=1) / QUERIES, np.float64)


def search(workload: str) -> dict[str, Any]:
    """The best constant recipe of a workload."""
    probe = StreamVectorEnv(1, workload=workload, observation="index").policy_spec()
    actions = candidates(probe.num_actions)
    first = np.concatenate(
        [goodput(workload, part, SWEEPS[0], 0) for part in np.array_split(actions, 4)]
    )
    finalists = actions[np.argsort(-first, kind="stable")[:FINALISTS]]
    second = goodput(workload, finalists, SWEEPS[1], 1000)
    best = finalists[int(second.argmax())]
    model, strategy = divmod(int(best[-1]), probe.num_strategies)
    return {
        "topology": TOPOLOGIES[best[0]],
        "num_agents": int(best[1]) + 1,
        "model": probe.models[model],
        "strategy": probe.strategies[strategy],
        "goodput": round(float(second.max()), 4),
    }


def main(
    out: Annotated[Path, typer.Option(help="JSON file of the chosen recipes.")] = CHOSEN,
) -> None:
    """Choose the best constant recipe of every shipped workload."""
    table = {}
    for workload in WORKLOADS:
        table[workload] = search(workload)
        print(workload, json.dumps(table[workload]), flush=True)
    replace_text(out, json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
