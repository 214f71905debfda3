"""Choose the best constant recipes of every workload: `python -m baselines.fixed_recipe_search`.

Every topology with up to three agents, every model and strategy plays the validation split at four
rates, with budgets from the tiers; the best by goodput play again, longer, and the best of these is
written down: the best over all rates, and the best at every one of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from numpy.typing import NDArray

from baselines.fixed_recipe import BY_RATE, CHOSEN
from inframind_gym.envs.vector import StreamVectorEnv
from inframind_gym.files import replace_text
from inframind_gym.policy import PolicySpec
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


def goodput(
    workload: str,
    actions: NDArray[np.int64],
    sweeps: int,
    seed: int,
    rates_per_min: Sequence[float] = RATES_PER_MIN,
) -> NDArray[np.float64]:
    """Share of the queries that each action solves in time, (C,); see `solved_in_time`."""
    counts = solved_in_time(workload, actions, sweeps, seed, rates_per_min)
    return np.asarray(counts.mean(axis=1) / QUERIES, np.float64)


def solved_in_time(
    workload: str,
    actions: NDArray[np.int64],
    sweeps: int,
    seed: int,
    rates_per_min: Sequence[float],
) -> NDArray[np.float64]:
    """Queries that each action solves in time; the same sweeps for all.

    Args:
        workload: name.
        actions: (C, 9).
        sweeps: at each rate.
        seed: of the first sweep; the others have the numbers that follow.
        rates_per_min: R arrival rates.

    Returns:
        (C, R * sweeps), rate by rate.
    """
    rates = np.repeat(rates_per_min, sweeps)
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
    return good.reshape(count, len(rates))


def search(workload: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The best constant recipe of a workload over all rates, and the best at each, by rate.

    What plays for a rate in the second round are the best at it in the first and the best over all.
    """
    spec = StreamVectorEnv(1, workload=workload, observation="index").policy_spec()
    actions = candidates(spec.num_actions)
    parts = np.array_split(actions, 4)
    first = np.concatenate(
        [solved_in_time(workload, part, SWEEPS[0], 0, RATES_PER_MIN) for part in parts]
    )
    overall, shares = _best_of(workload, actions, first.mean(axis=1), RATES_PER_MIN, 1000)
    by_rate = {}
    for r, rate in enumerate(RATES_PER_MIN):
        at_rate = first[:, r * SWEEPS[0] : (r + 1) * SWEEPS[0]].mean(axis=1)
        ranked = np.where((actions == overall).all(axis=1), np.inf, at_rate)
        best, share = _best_of(workload, actions, ranked, (rate,), 2000)
        by_rate[f"{rate:g}"] = _entry(spec, best, share)
    return _entry(spec, overall, shares), by_rate


def _best_of(
    workload: str,
    actions: NDArray[np.int64],
    first: NDArray[np.float64],
    rates_per_min: Sequence[float],
    seed: int,
) -> tuple[NDArray[np.int64], float]:
    """The second round: the best action (9,) of those that led in the first, with its share."""
    finalists = actions[np.argsort(-first, kind="stable")[:FINALISTS]]
    second = goodput(workload, finalists, SWEEPS[1], seed, rates_per_min)
    return finalists[int(second.argmax())], float(second.max())


def _entry(spec: PolicySpec, action: NDArray[np.int64], share: float) -> dict[str, Any]:
    """A recipe as it is written down."""
    model, strategy = divmod(int(action[-1]), spec.num_strategies)
    return {
        "topology": TOPOLOGIES[action[0]],
        "num_agents": int(action[1]) + 1,
        "model": spec.models[model],
        "strategy": spec.strategies[strategy],
        "goodput": round(share, 4),
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
