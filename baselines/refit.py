"""Fit fixed recipes, or plans for routers, to scenarios of tracks: ``python -m benchmarks refit``.

Every topology with up to three agents, every model and strategy plays on the validation split, at
all loads of the scenario, in streams whose warm-up and patience end early. The best go on to longer
streams, and the best of these to whole ones, as the benchmark plays them. The budget counts every
simulated query, warm-up included. Where it does not allow one stream of the first round for every
recipe, as many are drawn as it allows.

A router of calls gets a plan and a strategy in the same streams: first a strategy for one agent,
then every plan plays with it, then the best three in longer streams. A learner of Stable-Baselines3
is trained on the pool, workload and budgets of the scenario, in Poisson arrivals. A rule with a
constant gets the best of its `ARGUMENTS`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import gymnasium as gym
import numpy as np

from baselines.recipes import MOST_AGENTS, RecipeOfRow, candidates
from inframind_gym.configs import load_yaml_model
from inframind_gym.envs.core import Floats, Ints
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.evaluation.cells import Cell, Place, content_hash, name_of
from inframind_gym.evaluation.queries import names_of
from inframind_gym.evaluation.scenarios import Fit, Refits, add_fits, load_track
from inframind_gym.evaluation.track_board import SCORE
from inframind_gym.evaluation.tracks import Stream, TrackPlayer, TrackSuite
from inframind_gym.policies import Policy, PolicySpec, resolve_policy
from inframind_gym.progress import say
from inframind_gym.simulator.workflow.topology import STRATEGIES, TOPOLOGIES, distinct_plans
from inframind_gym.train import read_config

POLICIES: Final = ("fixed_recipe", "fixed_recipe_by_rate")
_MOST_PLACES: Final = 500_000  # queries of all rows of an environment
ARGUMENTS: Final = {"backpressure": ("10", "30", "100")}  # of rules, to choose from
DECISIONS: Final = 500_000  # of a learner; the shipped networks have as many of each workload


@dataclass
class Budget:
    """Simulated queries that a fit may use."""

    queries: int
    used: int = 0


class _Player(TrackPlayer):
    """Plays recipes, one in each of its rows, or a router, in the streams of a round."""

    recipes: Policy
    round: Round

    def at(self, cell: Cell) -> Stream:
        return _played(self.suite, cell.place, self.round)

    def plays(self, cell: Cell) -> str:
        return self.recipes.name  # whatever the row

    def policy(self, cells: Sequence[Cell]) -> Policy:
        return self.recipes


class Round(NamedTuple):
    """A round of the search."""

    number: int
    most_s: float  # of warm-up and patience
    scored: int  # queries of an episode
    episodes: int  # at every load
    kept: int  # recipes that go on for what they do over all loads, and a quarter as many at each


ROUNDS: Final = (
    Round(0, 100.0, 100, 1, 24),
    Round(1, 400.0, 200, 1, 6),
    Round(2, float("inf"), 500, 3, 1),
)
CHOICE: Final = Round(3, float("inf"), 1000, 1, 1)  # between a learner's trainings


def fit_recipes(
    suite: TrackSuite, track: str, scenario: str, queries: int, rounds: Sequence[Round] = ROUNDS
) -> dict[str, dict[str, Fit]]:
    """Return the recipes for a scenario: one for all of its loads, and one for each.

    The suite is of the validation split. With `fit_on` the recipe is chosen on the track's
    scenarios of those workloads.

    Returns:
        Policy -> place -> fit, as `Refits.fits` has them.

    Raises:
        ConfigError: The budget does not allow three recipes, or no scenario of the track has a
            workload of `fit_on`.
    """
    loads = suite.at(track, scenario, 1.0).track.loads
    sources, budget = _sources(suite, track, scenario), Budget(queries)
    kwargs = suite.env_kwargs((track, sources[0], loads[0]), resolve_policy("random"))
    env: Any = gym.make_vec(TrackSuite.env_id, num_envs=1, **kwargs).unwrapped
    spec: PolicySpec = env.policy_spec()
    actions = np.random.default_rng(0).permutation(candidates(spec.num_actions))
    places = [[(track, one, load) for one in sources] for load in loads]
    scores = np.zeros((len(actions), len(loads)))
    for number, of in enumerate(rounds, 1):
        last = number == len(rounds)
        once = sum(_played(suite, place, of).arrivals for own in places for place in own)
        left = queries - budget.used
        share = left if last else left // 2  # longer streams need the rest
        if share < once:
            raise ConfigError(
                f"{track}/{scenario}: a recipe takes {once:,} queries in round {number} of "
                f"{len(rounds)}, and {share:,} of {queries:,} are left for it."
            )
        actions = actions[: share // once]  # the best of the round before come first
        episodes = min(of.episodes, share // once // len(actions))
        of = of._replace(episodes=episodes)
        at_loads = [[_play(suite, at, actions, of, budget) for at in own] for own in places]
        scores = np.asarray(np.mean(at_loads, axis=1).T, np.float64)
        if not last:
            keep = _leading(scores, of.kept)
            actions, scores = actions[keep], scores[keep]
    mean = scores.mean(axis=1)
    best, place = int(mean.argmax()), f"{track}/{scenario}"
    by_load = scores.argmax(axis=0)
    return {
        "fixed_recipe": {place: _fit(spec, actions[best], budget, float(mean[best]))},
        "fixed_recipe_by_rate": {
            f"{place}/{load:g}": _fit(spec, actions[at], budget, float(scores[at, i]))
            for i, (load, at) in enumerate(zip(loads, by_load.tolist(), strict=True))
        },
    }


def fit_router(suite: TrackSuite, track: str, scenario: str, router: str, queries: int) -> Fit:
    """Return the plan and the strategy with which a router does best over the loads of a scenario.

    Args:
        suite: Of the validation split.
        track: Name of a track.
        scenario: Of the track; with `fit_on` as for recipes.
        router: Name of a policy that routes calls. One that learns keeps its own strategies.
        queries: Budget of all.

    Raises:
        InfraMindError: The budget does not allow the search, or the policy plans itself.
    """
    sources, budget = _sources(suite, track, scenario), Budget(queries)
    strategies = ("own",) if hasattr(resolve_policy(router), "observe") else ("own", *STRATEGIES)

    def ranked(plans: Sequence[str], of: Round) -> list[str]:
        scores = {}
        for plan in plans:
            scores[plan] = _share(suite, track, sources, f"planned:{plan}:{router}", of, budget)
            if budget.used > queries:
                raise ConfigError(f"{track}/{scenario}: {router} needs more than {queries:,}.")
        found.update(scores)
        return sorted(scores, key=lambda plan: -scores[plan])

    found: dict[str, float] = {}  # of the longest streams that a plan has played
    strategy = ranked([f"IO:1:{name}" for name in strategies], ROUNDS[0])[0].rpartition(":")[2]
    several = distinct_plans(range(1, MOST_AGENTS + 1))[1:]  # the first is one agent in IO
    ranked([f"{TOPOLOGIES[t]}:{agents}:{strategy}" for t, agents in several], ROUNDS[0])
    best = ranked(sorted(found, key=lambda plan: -found[plan])[:3], ROUNDS[1])[0]
    policy = f"planned:{best}:{router}"
    return Fit(policy=policy, queries=budget.used, score=round(found[best], 4))


def fit_learner(suite: TrackSuite, track: str, scenario: str, name: str, runs: Path) -> Fit:
    """Train a learner of Stable-Baselines3 for a scenario; the shipped one plays if it does better.

    Args:
        suite: Of the validation split.
        track: Name of a track.
        scenario: Of the track; with `fit_on` as for recipes.
        name: Name of a policy that `inframind train` makes: `sb3_ppo`, …
        runs: Folder of trainings.

    Raises:
        ConfigError: It cannot be trained, or the folder holds another training.
    """
    from agents.runs import BEST, Run

    sources, budget = _sources(suite, track, scenario), Budget(0, DECISIONS)
    streams = [suite.at(track, one, 1.0) for one in sources]
    capacities = {one.scenario.workload: one.limits.capacity_per_min for one in streams}
    changes = [
        f"turns={json.dumps({'workload': list(capacities)})}",
        f"capacity_per_min={json.dumps(capacities)}",
        f"env.pool={streams[0].scenario.pool}",
        f"env.budget_s={list(streams[0].scenario.drawn_s)}",
        f"steps={DECISIONS}",
    ]
    train, config = read_config(name, changes)
    world = content_hash(config.model_dump(mode="json"))[:8]  # several scenarios may have the same
    run = Run(runs / f"{name}-{world}", resume=True)
    train(config, run)
    scores = {
        policy: _share(suite, track, sources, policy, CHOICE, budget)
        for policy in (f"{name}:{run.out / BEST}", name)
    }
    best = max(scores, key=scores.__getitem__)
    return Fit(policy=best, queries=budget.used, score=round(scores[best], 4))


def fit_argument(suite: TrackSuite, track: str, scenario: str, name: str) -> Fit:
    """Return the rule with the one of its `ARGUMENTS` that does best over a scenario's loads.

    Args:
        suite: Of the validation split.
        track: Name of a track.
        scenario: Of the track; with `fit_on` as for recipes.
        name: Of the rule; it routes one agent a query, and chooses strategies itself.
    """
    sources, budget = _sources(suite, track, scenario), Budget(0)
    scores = {
        policy: _share(suite, track, sources, policy, CHOICE, budget)
        for policy in (f"{name}:{argument}" for argument in ARGUMENTS[name])
    }
    best = max(scores, key=scores.__getitem__)
    return Fit(policy=best, queries=budget.used, score=round(scores[best], 4))


def _share(
    suite: TrackSuite, track: str, sources: Sequence[str], policy: str, of: Round, budget: Budget
) -> float:
    """Return the mean score over the bound of a policy, over the loads of scenarios of a track."""
    player, shares = _Player(suite), []
    player.round, player.recipes = of, resolve_policy(policy)
    for source in sources:
        places = [(track, source, load) for load in suite.at(track, source, 1.0).track.loads]
        budget.used += sum(_played(suite, place, of).arrivals for place in places)
        seed = suite.seed_list[0] + 1000 * (of.number + 1)
        cells = [TrackSuite.cell(policy, *place, seed=seed) for place in places]
        informed = [suite.at(*place).limits.informed[place[2]] for place in places]
        shares.append(_scores(player, cells) / informed)
    return float(np.mean(shares))


def _played(suite: TrackSuite, place: Place, of: Round) -> Stream:
    """Return what is played at a place in a round."""
    return replace(suite.at(*place), count=of.scored, most_s=of.most_s)


def _sources(suite: TrackSuite, track: str, scenario: str) -> list[str]:
    """Return the scenarios on which the recipes of one are chosen."""
    played = suite.at(track, scenario, 1.0)
    if not played.scenario.fit_on:
        return [scenario]
    found = [
        name
        for name, other in played.track.scenarios.items()
        if other.workload in played.scenario.fit_on and name != scenario
    ]
    if not found:
        raise ConfigError(f"{track}/{scenario}: no scenario has a workload of its fit_on.")
    return found


def _play(
    suite: TrackSuite, place: tuple[str, str, float], actions: Ints, of: Round, budget: Budget
) -> Floats:
    """Return the mean score over the bound (C,) of actions in the same episodes at a place."""
    played = _played(suite, place, of)
    informed = played.limits.informed[place[2]]
    first = suite.seed_list[0] + 1000 * (of.number + 1)  # no round plays the episodes of another
    seeds = np.tile(first + np.arange(of.episodes), len(actions)).tolist()
    chosen = np.repeat(actions, of.episodes, axis=0)
    player, scores = _Player(suite), np.zeros(len(chosen))
    player.round = of
    at_once = max(1, _MOST_PLACES // played.num_queries)
    for start in range(0, len(chosen), at_once):
        player.recipes = RecipeOfRow(chosen[start : start + at_once])
        rows = range(start, min(start + at_once, len(chosen)))
        cells = [TrackSuite.cell(str(row), *place, seed=seeds[row]) for row in rows]
        scores[start : start + at_once] = _scores(player, cells)
    budget.used += len(chosen) * played.arrivals
    each = scores.reshape(len(actions), of.episodes)
    return np.asarray(each.mean(axis=1) / informed, np.float64)


def _scores(player: _Player, cells: Sequence[Cell]) -> Floats:
    """Return the scores (n,) of cells that play together, in their order."""
    layout = TrackSuite.layout({"names": names_of(player.suite.models)})
    sums = {cell: layout.table(columns).sum(axis=0) for cell, columns in player.run(cells)}
    return np.array([layout.evaluate(sums[cell])[SCORE] for cell in cells])


def _leading(scores: Floats, count: int) -> Ints:
    """Return the indices of scores (C, L) that go on, the best over all loads first."""
    order = [np.argsort(-scores.mean(axis=1), kind="stable")[:count]]
    order += [np.argsort(-at, kind="stable")[: max(1, count // 4)] for at in scores.T]
    return np.array(list(dict.fromkeys(np.concatenate(order).tolist())), np.int64)


def _fit(spec: PolicySpec, action: Ints, budget: Budget, score: float) -> Fit:
    model, strategy = divmod(int(action[-1]), spec.num_strategies)
    parts = (TOPOLOGIES[action[0]], action[1] + 1, spec.models[model], spec.strategies[strategy])
    policy = ":".join(["fixed_recipe", *map(str, parts)])
    return Fit(policy=policy, queries=budget.used, score=round(score, 4))


def places_of(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return tracks and scenarios by their names, `steady` or `steady/math`.

    Raises:
        InfraMindError: There is no such track or scenario.
    """
    found = []
    for name in names:
        whole = "/" not in name or name.endswith((".yaml", ".yml"))
        track, _, scenario = (name, "", "") if whole else name.rpartition("/")
        known = load_track(track).scenarios
        if scenario and scenario not in known:
            raise ConfigError(f"{track}: {unknown('scenario', scenario, tuple(known))}")
        found += [(track, one) for one in ((scenario,) if scenario else known)]
    return found


def refit_places(
    places: Sequence[tuple[str, str]],
    queries: int,
    out: Path,
    rounds: Sequence[Round] = ROUNDS,
    routers: Sequence[str] = (),
    runs: Path = Path("runs/refits"),
) -> None:
    """Fit the recipes, or policies, to scenarios; write each into a file as soon as it is found.

    A scenario that the file has is passed over, so that the command can be given again.

    Args:
        places: tracks and scenarios.
        queries: budget of a scenario.
        out: file of refits.
        rounds: of the search for recipes.
        routers: names of routers, which get plans, of rules with `ARGUMENTS`, and of learners of
            Stable-Baselines3 (sb3_…), which are trained; empty: the recipes are fitted.
        runs: folder of the trainings.

    Raises:
        InfraMindError: A fit is not possible, or the file has another budget.
    """
    suite = TrackSuite(
        name="refit",
        policies=("fixed_recipe",),
        tracks=tuple(dict.fromkeys(track for track, _ in places)),
        split="val",
    )
    for track, scenario in dict.fromkeys(places):
        place = f"{name_of(track)}/{scenario}"
        for name in routers or ("fixed_recipe",):
            known = load_yaml_model(out, Refits).fits if out.is_file() else {}
            if place in known.get(name, {}):
                continue
            if name.startswith("sb3_"):
                fit = fit_learner(suite, name_of(track), scenario, name, runs)
                found = {name: {place: fit}}
            elif name in ARGUMENTS:
                fit = fit_argument(suite, name_of(track), scenario, name)
                found = {name: {place: fit}}
            elif routers:
                fit = fit_router(suite, name_of(track), scenario, name, queries)
                found = {name: {place: fit}}
            else:
                found = fit_recipes(suite, name_of(track), scenario, queries, rounds)
            add_fits(out, queries, found)
            say(f"{place}: {next(iter(found[name].values())).policy}")


def enter_fit(path: Path, text: str, places: Sequence[str], budget_queries: int) -> None:
    """Add a policy that was fitted elsewhere, for places "track/scenario".

    The text is POLICY=PLAYS:QUERIES, or POLICY=PLAYS,PLAYS:QUERIES of several trainings.

    Raises:
        InfraMindError: The text is not of that form, or `add_fits` refuses.
    """
    policy, _, rest = text.partition("=")
    plays, _, queries = rest.rpartition(":")
    if not policy or not plays or not queries.isdecimal():
        raise ConfigError(
            f"--enter: {text!r} is not POLICY=PLAYS:QUERIES, for example "
            "bid_price=bid_price:runs/x/best:9000000."
        )
    names = tuple(plays.split(","))
    for name in names:
        resolve_policy(name)
    fit = Fit(policy=names if len(names) > 1 else plays, queries=int(queries))
    add_fits(path, budget_queries, {policy: dict.fromkeys(places, fit)})
