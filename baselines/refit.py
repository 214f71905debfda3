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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import gymnasium as gym
import numpy as np

from inframind_gym.configs import load_yaml_model
from inframind_gym.envs.core import Float32s, Floats, Ints
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.evaluation.cells import Cell, Place, content_hash, name_of
from inframind_gym.evaluation.queries import names_of
from inframind_gym.evaluation.scenarios import Fit, Refits, add_fits, load_track
from inframind_gym.evaluation.track_board import SCORE
from inframind_gym.evaluation.tracks import Stream, TrackPlayer, TrackSuite
from inframind_gym.policies import BasePolicy, Contexts, Policy, PolicySpec, resolve_policy
from inframind_gym.progress import say
from inframind_gym.simulator.workflow.topology import (
    MAX_AGENTS,
    STRATEGIES,
    TOPOLOGIES,
    distinct_plans,
)
from inframind_gym.train import read_config

POLICIES: Final = ("fixed_recipe", "fixed_recipe_by_rate")
MOST_AGENTS: Final = 3  # of a plan that is tried
_MOST_PLACES: Final = 500_000  # queries of all rows of an environment
ARGUMENTS: Final = {"backpressure": ("10", "30", "100")}  # of rules, to choose from
DECISIONS: Final = 500_000  # of a learner; the shipped networks have as many of each workload


def candidates(num_routes: int) -> Ints:
    """Return actions (C, 9) of the joint level; agents have the first roles of a domain."""
    plans = distinct_plans(range(1, MOST_AGENTS + 1))
    roles = range(MAX_AGENTS)
    actions = [[t, k - 1, *roles, route] for t, k in plans for route in range(num_routes)]
    return np.array(actions, np.int64)


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


class _Suite(TrackSuite):
    """Tracks whose streams may stop short."""

    most_s: float = float("inf")  # of warm-up and patience

    def at(self, track: str, scenario: str, load: float) -> Stream:
        return replace(super().at(track, scenario, load), most_s=self.most_s)

    def in_round(self, round_: Round) -> _Suite:
        return self.model_copy(update={"num_queries": round_.scored, "most_s": round_.most_s})


class _Player(TrackPlayer):
    """Plays one policy in all cells: recipes, one in each of its rows, or a router."""

    recipes: Policy

    def policy(self, cells: Sequence[Cell]) -> Policy:
        return self.recipes


class Round(NamedTuple):
    """A round of the search."""

    number: int
    most_s: float  # of warm-up and patience
    scored: int  # queries of an episode
    episodes: int  # at every load
    kept: int  # best recipes over all loads that go on; of each load a quarter as many


ROUNDS: Final = (
    Round(0, 100.0, 100, 1, 24),
    Round(1, 400.0, 200, 1, 6),
    Round(2, float("inf"), 500, 3, 1),
)
CHOICE: Final = Round(3, float("inf"), 1000, 1, 1)  # between a learner's trainings


class Fitting:
    """Fits policies to a scenario of a track, or to the scenarios of its `fit_on` workloads.

    Args:
        suite: of the validation split.
        track: its name.
        scenario: of the track.
        queries: budget of simulated queries for recipes, or for the plan of a router.

    Attributes:
        used: simulated queries so far.

    Raises:
        ConfigError: no scenario of the track has a workload of `fit_on`.
    """

    def __init__(self, suite: TrackSuite, track: str, scenario: str, queries: int = 0) -> None:
        self.suite = _Suite.model_validate(suite.model_dump())
        self.place, self.queries, self.used = f"{track}/{scenario}", queries, 0
        stream, first = suite.at(track, scenario, 1.0), suite.seed_list[0]
        self.track, self.loads, self.first_seed = track, stream.track.loads, first
        self.sources = [scenario]
        if wanted := stream.scenario.fit_on:
            others = {k: v for k, v in stream.track.scenarios.items() if k != scenario}
            self.sources = [name for name, one in others.items() if one.workload in wanted]
        if not self.sources:
            raise ConfigError(f"{self.place}: no scenario has a workload of its fit_on.")

    def recipes(self, rounds: Sequence[Round] = ROUNDS) -> dict[str, dict[str, Fit]]:
        """Return the best recipe over all loads, and the best at each.

        Returns:
            Policy -> place -> fit, as `Refits.fits` has them.

        Raises:
            ConfigError: the budget does not allow one stream of a recipe.
        """
        first: Place = (self.track, self.sources[0], self.loads[0])
        kwargs = self.suite.env_kwargs(first, resolve_policy("random"))
        env: Any = gym.make_vec(TrackSuite.env_id, num_envs=1, **kwargs).unwrapped
        spec: PolicySpec = env.policy_spec()
        actions = np.random.default_rng(0).permutation(candidates(spec.num_actions))
        places = [[(self.track, one, load) for one in self.sources] for load in self.loads]
        scores = np.zeros((len(actions), len(self.loads)))
        for number, round_ in enumerate(rounds, 1):
            last = number == len(rounds)
            once = sum(self.suite.in_round(round_).at(*at).arrivals for own in places for at in own)
            left = self.queries - self.used
            share = left if last else left // 2  # longer streams need the rest
            if share < once:
                raise ConfigError(
                    f"{self.place}: a recipe takes {once:,} queries in round {number} of "
                    f"{len(rounds)}, and {share:,} of {self.queries:,} are left for it."
                )
            actions = actions[: share // once]  # the best of the round before come first
            episodes = min(round_.episodes, share // once // len(actions))
            round_ = round_._replace(episodes=episodes)
            at_loads = [[self.play(at, actions, round_) for at in own] for own in places]
            scores = np.asarray(np.mean(at_loads, axis=1).T, np.float64)
            if not last:
                keep = _leading(scores, round_.kept)
                actions, scores = actions[keep], scores[keep]

        def fit(action: Ints, score: float) -> Fit:
            model, strategy = divmod(int(action[-1]), spec.num_strategies)
            plan = TOPOLOGIES[action[0]], action[1] + 1
            parts = (*plan, spec.models[model], spec.strategies[strategy])
            return self._fit(":".join(["fixed_recipe", *map(str, parts)]), score)

        mean, by_load = scores.mean(axis=1), scores.argmax(axis=0)
        best = int(mean.argmax())
        return {
            "fixed_recipe": {self.place: fit(actions[best], float(mean[best]))},
            "fixed_recipe_by_rate": {
                f"{self.place}/{load:g}": fit(actions[at], float(scores[at, i]))
                for i, (load, at) in enumerate(zip(self.loads, by_load.tolist(), strict=True))
            },
        }

    def router(self, name: str) -> Fit:
        """Return the plan and the strategy with which a router of calls does best over the loads.

        One that learns keeps its own strategies.

        Raises:
            InfraMindError: the budget does not allow the search, or the policy plans itself.
        """
        learns = hasattr(resolve_policy(name), "observe")
        found: dict[str, float] = {}  # of the longest streams that a plan has played

        def ranked(plans: Sequence[str], round_: Round) -> list[str]:
            scores = {}
            for plan in plans:
                scores[plan] = self.share(f"planned:{plan}:{name}", round_)
                if self.used > self.queries:
                    raise ConfigError(f"{self.place}: {name} needs more than {self.queries:,}.")
            found.update(scores)
            return sorted(scores, key=lambda plan: -scores[plan])

        strategies = ["own", *([] if learns else STRATEGIES)]
        strategy = ranked([f"IO:1:{one}" for one in strategies], ROUNDS[0])[0].rpartition(":")[2]
        several = distinct_plans(range(1, MOST_AGENTS + 1))[1:]  # the first is one agent in IO
        ranked([f"{TOPOLOGIES[t]}:{agents}:{strategy}" for t, agents in several], ROUNDS[0])
        best = ranked(sorted(found, key=lambda plan: -found[plan])[:3], ROUNDS[1])[0]
        return self._fit(f"planned:{best}:{name}", found[best])

    def learner(self, name: str, runs: Path) -> Fit:
        """Train a learner of Stable-Baselines3; the shipped one plays if it does better.

        Args:
            name: of a policy that `inframind train` makes: `sb3_ppo`, …
            runs: folder of trainings.

        Raises:
            ConfigError: it cannot be trained, or the folder holds another training.
        """
        from agents.runs import BEST, Run

        streams = [self.suite.at(self.track, one, 1.0) for one in self.sources]
        capacities = {one.scenario.workload: one.limits.capacity_per_min for one in streams}
        changes = [
            f"turns={json.dumps({'workload': list(capacities)})}",
            f"capacity_per_min={json.dumps(capacities)}",
            f"env.pool={streams[0].scenario.pool}",
            f"env.budget_s={list(streams[0].scenario.drawn_s)}",
            f"steps={DECISIONS}",
        ]
        train, config = read_config(name, changes)
        world = content_hash(config.model_dump(mode="json"))[:8]  # several scenarios may have one
        run = Run(runs / f"{name}-{world}", resume=True)
        train(config, run)
        self.used += DECISIONS
        return self.best_of([f"{name}:{run.out / BEST}", name])

    def argument(self, name: str) -> Fit:
        """Return a rule, which routes one agent a query, with the best of its `ARGUMENTS`."""
        return self.best_of([f"{name}:{argument}" for argument in ARGUMENTS[name]])

    def best_of(self, policies: Sequence[str]) -> Fit:
        """Return the policy that does best over the loads."""
        scores = {policy: self.share(policy, CHOICE) for policy in policies}
        best = max(scores, key=scores.__getitem__)
        return self._fit(best, scores[best])

    def share(self, policy: str, round_: Round) -> float:
        """Return the mean score over the bound of a policy, over the loads of the sources."""
        player, shares = _Player(self.suite.in_round(round_)), []
        player.recipes = resolve_policy(policy)
        for source in self.sources:
            loads = self.suite.at(self.track, source, 1.0).track.loads
            places = [(self.track, source, load) for load in loads]
            self.used += sum(player.suite.at(*at).arrivals for at in places)
            seed = self.first_seed + 1000 * (round_.number + 1)
            cells = [TrackSuite.cell(policy, *at, seed=seed) for at in places]
            informed = [self.suite.at(*at).limits.informed[at[2]] for at in places]
            shares.append(_scores(player, cells) / informed)
        return float(np.mean(shares))

    def play(self, place: tuple[str, str, float], actions: Ints, round_: Round) -> Floats:
        """Return the mean score over the bound (C,) of actions in the same episodes at a place."""
        player = _Player(self.suite.in_round(round_))
        played: Stream = player.suite.at(*place)
        first = self.first_seed + 1000 * (round_.number + 1)  # other episodes in every round
        seeds = np.tile(first + np.arange(round_.episodes), len(actions)).tolist()
        chosen = np.repeat(actions, round_.episodes, axis=0)
        at_once, scores = max(1, _MOST_PLACES // played.num_queries), np.zeros(len(chosen))
        for start in range(0, len(chosen), at_once):
            player.recipes = RecipeOfRow(chosen[start : start + at_once])
            rows = range(start, min(start + at_once, len(chosen)))
            cells = [TrackSuite.cell(str(row), *place, seed=seeds[row]) for row in rows]
            scores[start : start + at_once] = _scores(player, cells)
        self.used += len(chosen) * played.arrivals
        each = scores.reshape(len(actions), round_.episodes)
        return np.asarray(each.mean(axis=1) / played.limits.informed[place[2]], np.float64)

    def _fit(self, policy: str, score: float) -> Fit:
        return Fit(policy=policy, queries=self.used, score=round(score, 4))


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
            fitting = Fitting(suite, name_of(track), scenario, queries)
            if not routers:
                found = fitting.recipes(rounds)
            elif name.startswith("sb3_"):
                found = {name: {place: fitting.learner(name, runs)}}
            elif name in ARGUMENTS:
                found = {name: {place: fitting.argument(name)}}
            else:
                found = {name: {place: fitting.router(name)}}
            add_fits(out, queries, found)
            say(f"{place}: {next(iter(found[name].values())).policy}")


def enter_fit(path: Path, text: str, places: Sequence[str], budget_queries: int) -> None:
    """Add a policy that was fitted elsewhere, for places "track/scenario".

    The text is POLICY=PLAYS:QUERIES, or POLICY=PLAYS,PLAYS:QUERIES of several trainings.

    Raises:
        InfraMindError: The text is not of that form, a name no policy, or `add_fits` refuses.
    """
    policy, _, rest = text.partition("=")
    plays, _, queries = rest.rpartition(":")
    if not policy or not plays or not queries.isdecimal():
        raise ConfigError(
            f"--enter: {text!r} is not POLICY=PLAYS:QUERIES, for example "
            "bid_price=bid_price:runs/x/best:9000000."
        )
    names = tuple(plays.split(","))
    for name in (policy, *names):
        resolve_policy(name)
    fit = Fit(policy=names if len(names) > 1 else plays, queries=int(queries))
    add_fits(path, budget_queries, {policy: dict.fromkeys(places, fit)})
