"""Runs cells of tracks: streams whose middle is scored, on simulated servers."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.cells import Place
from inframind_gym.benchmark.errors import PolicyFailedError
from inframind_gym.benchmark.routing.records import Names, columns_of
from inframind_gym.benchmark.routing.rollout import ENV_IDS, Simulator, names_of
from inframind_gym.benchmark.routing.window import Window, with_unanswered
from inframind_gym.benchmark.tracks.metrics import TrackLayout, track_columns
from inframind_gym.benchmark.tracks.suite import Played, TrackCell, TrackSuite
from inframind_gym.envs.routing.vector import StreamVectorEnv
from inframind_gym.policies import Policy, requires_of, resolve_policy
from inframind_gym.policies.oracle import work_of_calls
from inframind_gym.progress import say
from inframind_gym.simulator.server.state import cards, linear_cards
from inframind_gym.simulator.workflow.state import COMPLETED


def env_kwargs(suite: TrackSuite, played: Played, policy: Policy) -> dict[str, Any]:
    """Return the JSON arguments of the environment in which a policy meets a scenario."""
    scenario = played.scenario
    faults = [fault.model_dump(mode="json", exclude_none=True) for fault in scenario.faults]
    return {
        "pool": scenario.pool,
        "workload": scenario.workload,
        "tasks": suite.tasks,
        "split": suite.split,
        "arrivals": scenario.arrivals,
        "budget_s": list(scenario.drawn_s),
        "num_queries": played.num_queries,
        "execution": "parallel",
        "observation": "index",
        "record_calls": True,
        **({"faults": faults} if faults else {}),
    } | requires_of(policy)


def env_spec(suite: TrackSuite, played: Played, policy: Policy) -> dict[str, Any]:
    """Return the JSON spec of the single environment in which a policy meets a scenario."""
    spec = copy.deepcopy(gym.spec(ENV_IDS["surrogate"]))
    rate_per_min = played.scenario.base_rate_per_min(played.rate_per_min)
    spec.kwargs.update(env_kwargs(suite, played, policy), arrival_rate_per_min=rate_per_min)
    return dict(json.loads(spec.to_json()))


def work_s_of(env: StreamVectorEnv, row: int) -> NDArray[np.float64]:
    """Return the GPU-seconds (N,) that the finished calls of each query of a row took.

    That of a call is its share of steps as full as its server allows, on every GPU of the server.
    """
    pool = env.simulation.pool
    work_s = np.zeros((env.simulation.num_queries, len(pool.models)))
    work_of_calls(linear_cards(cards(pool)), env.calls(row), work_s)
    return np.asarray(work_s @ [len(model.all_gpus) for model in pool.models], np.float64)


@dataclass
class TrackSimulator(Simulator):
    """Makes environments and runs batches of cells in them; the windows are scored.

    A policy that cannot play a scenario, for example on models that it was not made for, leaves
    all its queries there unanswered. One that can play none is left out.

    Attributes:
        suite: The suite.
    """

    suite: TrackSuite  # type: ignore[assignment]
    _refused: dict[str, set[Place]] = field(default_factory=dict, init=False)

    def ask(self, cell: TrackCell) -> None:  # type: ignore[override]
        """Make the policy and the environment of a cell; raise if no place is left for it."""
        try:
            super().ask(cell)  # type: ignore[arg-type]
        except PolicyFailedError as error:
            refused = self._refused.setdefault(cell.policy, set())
            if cell.place[:2] not in refused:
                say(f"{error}\nIts queries of {cell.track}/{cell.scenario} stay unanswered.")
            refused.add(cell.place[:2])
            if refused >= {place[:2] for place in self.suite.places()}:
                raise

    def run(self, cells: Sequence[TrackCell]) -> Iterator[list[Any]]:  # type: ignore[override]
        """Run cells of one scenario; yields each with its layout and columns."""
        together: dict[str, list[TrackCell]] = {}
        for cell in cells:
            together.setdefault(self._plays(cell), []).append(cell)
        for own in together.values():
            before = self.began
            try:
                yield from super().run(own)  # type: ignore[arg-type]
            except PolicyFailedError:
                if self.began != before:
                    raise
                yield self._unanswered(own)

    def _unanswered(self, cells: Sequence[TrackCell]) -> list[Any]:
        """Return the episodes of a policy that cannot play: no query has an answer."""
        kwargs = env_kwargs(self.suite, self._at(cells[0]), resolve_policy("random"))
        env = self._environment(kwargs, len(cells))
        env.reset(seed=[cell.episode_seed for cell in cells], options=self._options(cells))
        self.began = time.monotonic()
        window, names = self._window(env, cells), names_of(env)
        none = np.zeros(window.count, COMPLETED)
        self.progress(len(cells) * window.count)
        return [self._finished(env, cell, i, none, names, window) for i, cell in enumerate(cells)]

    def _at(self, cell: TrackCell) -> Played:
        return self.suite.at(*cell.place)

    def _plays(self, cell: TrackCell) -> str:
        """Return the policy, with arguments, that plays a cell."""
        return self.suite.policy_at(cell)

    def _policy(self, cell: TrackCell) -> Policy:  # type: ignore[override]
        return resolve_policy(self._plays(cell))

    def _kwargs(self, cell: TrackCell, policy: Policy) -> dict[str, Any]:  # type: ignore[override]
        return env_kwargs(self.suite, self._at(cell), policy)

    def _options(self, cells: Sequence[TrackCell]) -> dict[str, Any]:  # type: ignore[override]
        places = map(self._at, cells)
        rates = [at.scenario.base_rate_per_min(at.rate_per_min) for at in places]
        return {"arrival_rate_per_min": np.array(rates)}

    def _window(  # type: ignore[override]
        self, env: StreamVectorEnv, cells: Sequence[TrackCell]
    ) -> Window:
        played = self._at(cells[0])
        arrival_s = env.simulation.state.arrival_s
        return Window.steady(arrival_s, played.count, played.longest_s)

    def _finished(  # type: ignore[override]
        self,
        env: StreamVectorEnv,
        cell: TrackCell,
        row: int,
        done: NDArray[np.void],
        names: Names,
        window: Window,
    ) -> Any:
        """Return the columns of a row's scored queries."""
        played, first = self._at(cell), int(window.first[row])
        done = with_unanswered(done, env.simulation, row, first, played.longest_s)
        work_s = work_s_of(env, row)[done["query"]]
        columns = columns_of(done, names)
        models = self.suite.models  # of all pools
        of_pool = np.array([*(models.index(alias) for alias in names.layout.models), -1], np.int8)
        for name in ("model", "final_model"):
            columns[name] = of_pool[columns[name]]
        layout = TrackLayout(models, names.layout.strategies, names.layout.topologies)
        return cell, layout, columns | track_columns(played, columns, work_s)
