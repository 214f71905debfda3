"""Counts what one environment after the other decides and what becomes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.router_metrics.present import Present, Values, present
from inframind_gym.envs.router_metrics.series import CallSeries, Series
from inframind_gym.envs.router_metrics.watched import Due, Watched
from inframind_gym.envs.routing.base import InfraMindEnv
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.simulator.workflow.state import PLAN_NODE
from inframind_gym.simulator.workflow.topology import TOPOLOGIES


class RouterMetrics:
    """Counts what one environment after the other decides and what becomes of it.

        metrics = RouterMetrics(env.simulation.pool.aliases)
        metrics.watch(env)
        env.reset(); metrics.began()
        env.step(action); metrics.stepped()

    To be called from the thread that steps the environment; the registry may be read from any.
    What is labelled with a model, a strategy or a topology has as many series as there are of them.

    Args:
        models: aliases of the pool's models.

    Attributes:
        models: as given.
        registry: holds the metrics, and nothing else.

    Raises:
        InfraMindError: prometheus-client is not installed.
    """

    def __init__(self, models: Sequence[str]) -> None:
        self.models = tuple(models)
        self._series = Series(self.models)
        self.registry = self._series.registry
        self._by_model: list[CallSeries] = []
        self._watched: Watched | None = None
        self._policy: object = None
        self._due: Due | None = None
        self._age_s = math.nan
        self._sweep = -1  # the key of the sweep whose calls are being read
        self._calls_read = 0
        self._failed: set[tuple[int, int, int]] = set()  # calls of the sweep that have
        self.registry.register(Present(self._present))

    # For whoever steps the environment

    def watch(self, env: InfraMindEnv | None, policy: object = None) -> None:
        """Look at this environment from now on; the counters go on.

        Args:
            env: a single environment; None: none.
            policy: who decides; its `name` and, where it has one, its multiplier λ are shown.

        Raises:
            ConfigError: its pool has other models.
        """
        if env is not None:
            aliases = tuple(env.simulation.pool.aliases)
            if aliases != self.models:
                raise ConfigError(
                    f"the metrics are of the models {', '.join(self.models)}; "
                    f"this environment has {', '.join(aliases)}"
                )
            if env.config.record_calls and not self._by_model:
                self._by_model = [self._series.of_model(alias) for alias in self.models]
        self._due, self._age_s = None, math.nan
        self._sweep, self._calls_read = -1, 0
        self._watched, self._policy = None if env is None else Watched(env), policy

    def follow(self, policy: object) -> None:
        """Show the name and the multiplier of a policy, or of what trains it."""
        self._policy = policy

    def began(self) -> None:
        """The environment was reset."""
        watched = self._now_watched()
        watched.begin()
        self._series.episodes.inc()
        self._look(watched)

    def stepped(self) -> None:
        """The environment was stepped: count what was decided and what has ended."""
        watched = self._now_watched()
        completed = watched.completed()
        if self._due is not None:
            self._count_decision(watched, self._due, completed)
        if completed is not None:
            self._count_queries(completed)
        self._look(watched)

    def _now_watched(self) -> Watched:
        if self._watched is None:
            raise InfraMindError("no environment is watched; call watch(env) first")
        return self._watched

    def _look(self, watched: Watched) -> None:
        """Note the decision that is due now, and count the calls that have ended."""
        sweep = watched.sweep
        if watched.records_calls:
            self._count_calls(watched)
        self._due = watched.due()
        self._age_s = float(sweep["now_s"]) - float(sweep["last_poll_s"])

    def _count_decision(self, watched: Watched, due: Due, completed: NDArray[Any] | None) -> None:
        slot, node = due.slot, due.node
        if watched.ordinal.item(slot) == due.query:
            topology, model = watched.topology[slot], watched.model[slot]
            strategy = watched.strategy[slot]
        else:  # the query is over, and another has taken its place
            found: Any = [] if completed is None else completed[completed["query"] == due.query]
            if not len(found):  # a wrapper has taken several steps as one
                return
            topology, model = found[0]["topology"], found[0]["model"]
            strategy = found[0]["strategy"]
        self._series.remaining_s.observe(due.remaining_s)
        if node == PLAN_NODE:
            self._series.plans.labels(TOPOLOGIES[topology]).inc()
        else:
            self._series.routes[model.item(node)][strategy.item(node)].inc()

    def _count_queries(self, completed: NDArray[Any]) -> None:
        for solved, latency_s, budget_s, cost in zip(
            *(completed[key].tolist() for key in ("solved", "latency_s", "budget_s", "cost")),
            strict=True,
        ):
            self._series.queries[solved][latency_s <= budget_s].inc()
            self._series.cost.observe(cost)
            self._series.latency_s.observe(latency_s)

    def _count_calls(self, watched: Watched) -> None:
        """Count the calls whose records have been added."""
        sweep = watched.sweep
        key, last = int(sweep["key"]), int(sweep["recorded_calls"])
        if key != self._sweep:
            self._sweep, self._calls_read = key, 0
            self._failed.clear()
        for row in range(self._calls_read, last):
            self._count_call(watched.call[row])
        self._calls_read = last

    def _count_call(self, record: np.void) -> None:
        of_model = self._by_model[record["model"]]
        if record["failed"] or self._failed:
            self._count_failure(record, of_model)
        if record["failed"]:
            of_model.failed.inc()
        elif record["truncated"]:
            of_model.truncated.inc()
        else:
            of_model.answered.inc()
        of_model.prompt_tokens.inc(int(record["prompt_tokens"]))
        of_model.output_tokens.inc(int(record["output_tokens"]))
        of_model.latency_s.observe(float(record["finish_s"]) - float(record["submit_s"]))

    def _count_failure(self, record: np.void, of_model: CallSeries) -> None:
        """Count a call that repeats one that failed, and note one that has failed itself."""
        call = int(record["query"]), int(record["node"]), int(record["phase"])
        if call in self._failed:
            of_model.again.inc()
        if record["failed"]:
            self._failed.add(call)

    # For whoever reads the registry, on any thread

    def _present(self) -> Values:
        return present(self._watched, self._policy, self._age_s)
