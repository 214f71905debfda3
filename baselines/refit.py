"""Fit the fixed recipes to the scenarios of tracks: ``python -m benchmarks refit``.

Every topology with up to three agents, every model and strategy plays on the validation split, at
all loads of the scenario, in streams whose warm-up and patience end early. The best go on to longer
streams, and the best of these to whole ones, as the benchmark plays them. The budget counts every
simulated query, warm-up included. Where it does not allow one stream of the first round for every
recipe, as many are drawn as it allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from baselines.recipes import candidates
from inframind_gym.errors import unknown
from inframind_gym.evaluation.errors import BenchmarkError
from inframind_gym.evaluation.family import Cell, Place, name_of
from inframind_gym.evaluation.queries import names_of
from inframind_gym.evaluation.scenarios import Fit, add_fits, load_refits, load_track
from inframind_gym.evaluation.track_board import SCORE
from inframind_gym.evaluation.tracks import TRACKS, Stream, TrackPlayer, TrackSuite
from inframind_gym.policies import BasePolicy, Contexts, PolicySpec, resolve_policy
from inframind_gym.progress import say
from inframind_gym.simulator.workflow.topology import TOPOLOGIES

POLICIES: Final = ("fixed_recipe", "fixed_recipe_by_rate")
_MOST_PLACES: Final = 500_000  # queries of all rows of an environment


class Budget:
    """Simulated queries that a fit may use.

    Args:
        queries: All of them.

    Attributes:
        used: Those that it has used.
    """

    def __init__(self, queries: int) -> None:
        self.queries, self.used = queries, 0


class _Recipes(BasePolicy):
    """Plays a recipe in every row: actions (E, 9)."""

    name = "recipes"
    requires: Mapping[str, Any] = MappingProxyType({"level": "joint"})
    carries_out_any_plan = False

    def __init__(self, actions: NDArray[np.int64]) -> None:
        self.actions = actions

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the actions of `rows`."""
        return self.actions[rows]


class _Player(TrackPlayer):
    """Plays recipes, one in each of its rows, in the streams of a round."""

    recipes: _Recipes
    round: Round

    def at(self, cell: Cell) -> Stream:
        return _played(self.suite, cell.place, self.round)

    def plays(self, cell: Cell) -> str:
        return self.recipes.name  # whatever the row

    def policy(self, cells: Sequence[Cell]) -> _Recipes:
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


def fit_recipes(
    suite: TrackSuite, track: str, scenario: str, queries: int, rounds: Sequence[Round] = ROUNDS
) -> dict[str, dict[str, Fit]]:
    """Return the recipes for a scenario: one for all of its loads, and one for each.

    Args:
        suite: Of the validation split.
        track: Name of a track.
        scenario: Of the track; with `fit_on` the recipe is chosen on the track's scenarios of
            those workloads.
        queries: Budget of all.
        rounds: Of the search.

    Returns:
        Policy -> place -> fit, as `Refits.fits` has them.

    Raises:
        BenchmarkError: The budget does not allow three recipes, or no scenario of the track has a
            workload of `fit_on`.
    """
    loads = suite.at(track, scenario, 1.0).track.loads
    sources, budget = _sources(suite, track, scenario), Budget(queries)
    spec, actions = _recipes(suite, (track, sources[0], loads[0]))
    actions = np.random.default_rng(0).permutation(actions)
    places = [[(track, one, load) for one in sources] for load in loads]
    scores = np.zeros((len(actions), len(loads)))
    for of in rounds:
        once = sum(_played(suite, place, of).arrivals for own in places for place in own)
        left = queries - budget.used
        share = left if of is rounds[-1] else left // 2  # longer streams need the rest
        if share < once:
            raise BenchmarkError(
                f"{track}/{scenario}: a recipe takes {once:,} queries in round {of.number + 1} of "
                f"{len(rounds)}, and {share:,} of {queries:,} are left for it."
            )
        actions = actions[: share // once]  # the best of the round before come first
        episodes = min(of.episodes, share // once // len(actions))
        scores = _round(suite, places, actions, of._replace(episodes=episodes), budget)
        if of is not rounds[-1]:
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


def _round(
    suite: TrackSuite,
    places: Sequence[Sequence[tuple[str, str, float]]],
    actions: NDArray[np.int64],
    of: Round,
    budget: Budget,
) -> NDArray[np.float64]:
    """Return the scores (C, L) of actions, means over the places of each of L loads."""
    at_loads = [[_play(suite, place, actions, of, budget) for place in own] for own in places]
    return np.asarray(np.mean(at_loads, axis=1).T, np.float64)


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
        raise BenchmarkError(f"{track}/{scenario}: no scenario has a workload of its fit_on.")
    return found


def _recipes(suite: TrackSuite, place: Place) -> tuple[PolicySpec, NDArray[np.int64]]:
    """Return the facts of a scenario's pool, and the actions (C, 9) of all recipes."""
    kwargs = suite.env_kwargs(place, resolve_policy("random"))
    env: Any = gym.make_vec(TRACKS.env_id, num_envs=1, **kwargs).unwrapped
    spec: PolicySpec = env.policy_spec()
    return spec, candidates(spec.num_actions)


def _play(
    suite: TrackSuite,
    place: tuple[str, str, float],
    actions: NDArray[np.int64],
    of: Round,
    budget: Budget,
) -> NDArray[np.float64]:
    """Return the mean score over the bound (C,) of actions in the same episodes at a place."""
    played = _played(suite, place, of)
    informed = played.limits.informed[place[2]]
    first = suite.seed_list[0] + 1000 * (of.number + 1)  # no round plays the episodes of another
    seeds = np.tile(first + np.arange(of.episodes), len(actions)).tolist()
    chosen = np.repeat(actions, of.episodes, axis=0)
    player, scores = _Player(suite), np.zeros(len(chosen))
    layout = TRACKS.layout({"names": names_of(suite.models)})
    player.round = of
    at_once = max(1, _MOST_PLACES // played.num_queries)
    for start in range(0, len(chosen), at_once):
        player.recipes = _Recipes(chosen[start : start + at_once])
        rows = range(start, min(start + at_once, len(chosen)))
        cells = [TRACKS.cell(str(row), *place, seed=seeds[row]) for row in rows]
        for cell, columns in player.run(cells):
            sums = layout.table(columns).sum(axis=0)
            scores[int(cell.policy)] = layout.evaluate(sums)[SCORE]
    budget.used += len(chosen) * played.arrivals
    each = scores.reshape(len(actions), of.episodes)
    return np.asarray(each.mean(axis=1) / informed, np.float64)


def _leading(scores: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the indices of scores (C, L) that go on, the best over all loads first."""
    order = [np.argsort(-scores.mean(axis=1), kind="stable")[:count]]
    order += [np.argsort(-at, kind="stable")[: max(1, count // 4)] for at in scores.T]
    return np.array(list(dict.fromkeys(np.concatenate(order).tolist())), np.int64)


def _fit(spec: PolicySpec, action: NDArray[np.int64], budget: Budget, score: float) -> Fit:
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
            raise BenchmarkError(f"{track}: {unknown('scenario', scenario, tuple(known))}")
        found += [(track, one) for one in ((scenario,) if scenario else known)]
    return found


def refit_places(
    places: Sequence[tuple[str, str]], queries: int, out: Path, rounds: Sequence[Round] = ROUNDS
) -> None:
    """Fit the recipes to scenarios, and write each into a file as soon as it is found.

    A scenario that the file has is passed over, so that the command can be given again.

    Args:
        places: Tracks and scenarios.
        queries: Budget of a scenario.
        out: File of refits.
        rounds: Of the search.

    Raises:
        InfraMindError: A fit is not possible, or the file has another budget.
    """
    suite = TrackSuite(
        name="refit",
        policies=("fixed_recipe",),
        tracks=tuple(dict.fromkeys(track for track, _ in places)),
        split="val",
    )
    known = load_refits(out).fits.get("fixed_recipe", {}) if out.is_file() else {}
    for track, scenario in dict.fromkeys(places):
        if f"{name_of(track)}/{scenario}" in known:
            continue
        found = fit_recipes(suite, name_of(track), scenario, queries, rounds)
        add_fits(out, queries, found)
        say(f"{track}/{scenario}: {next(iter(found['fixed_recipe'].values())).policy}")
