"""A cluster of live servers: episodes, decision intervals and phases, on the wall clock.

All records are read and written on the caller's thread, while it is in a method of the cluster.
Threads that run phases, and the loop of the connections, put their events into a queue.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, RootModel

from inframind_gym.configs import StrictModel
from inframind_gym.envs.core import check_actions
from inframind_gym.envs.placement import PlacementSimulation
from inframind_gym.errors import InfraMindError
from inframind_gym.files import read_json, replace_text
from inframind_gym.live.backend import Connections
from inframind_gym.live.client import LoopThread
from inframind_gym.live.config import PlacementLiveConfig, ServerAddress, require_live
from inframind_gym.live.placement import events
from inframind_gym.live.placement.instance import (
    Instance,
    VllmServer,
    instance_pool,
    served_models,
)
from inframind_gym.live.placement.traffic import Records, Traffic
from inframind_gym.simulator.jit import Bound
from inframind_gym.simulator.placement.state import (
    ABSENT,
    ACTIVE,
    DRAINING,
    LOAD,
    LOADING,
    OFFLOAD,
    SLEEP,
    SLEEPING,
    SLEPT,
    VANISHING,
    WAKE,
    WAKING,
    is_moving,
)
from inframind_gym.simulator.server.pool import load_pool

_log = logging.getLogger(__name__)
_KEPT: Final = 1000  # transitions
_PHASES: Final = {LOADING: "load", WAKING: "wake", SLEEPING: "sleep", VANISHING: "stop"}
_STABLE: Final = {ACTIVE: "active", SLEPT: "slept"}
_SEEN: Final = {"wake_s": WAKE, "sleep_s": SLEEP, "load_s": LOAD, "offload_s": OFFLOAD}
_Seconds = Annotated[float, Field(ge=0.0, le=86_400.0, allow_inf_nan=False)]


class ModelTimes(StrictModel):
    """Averages of one model's phases, and what was served under its alias."""

    model: str
    wake_s: _Seconds
    sleep_s: _Seconds
    load_s: _Seconds
    offload_s: _Seconds


class _Times(RootModel[dict[str, ModelTimes]]):
    """Content of STATE/POOL+placement/times.json: a placement that begins averages on from it."""


class Transition(NamedTuple):
    """One phase that ended, for people and logs."""

    time_s: float  # of the episode
    gpu: int  # the first of the block
    model: str
    phase: str  # "load", "wake", "sleep" or "stop"; "lost": its server died or hung
    took_s: float
    now: str  # "active", "slept" or "absent"
    why: str = ""  # it failed

    def __str__(self) -> str:
        where = f"{self.time_s:7.1f} s  GPU {self.gpu}  {self.model}"
        if self.phase == "lost":
            return f"{where}: {self.why}"
        if self.why:
            return f"{where}: {self.phase} failed after {self.took_s:.2f} s, {self.now}: {self.why}"
        return f"{where}: {self.phase} took {self.took_s:.2f} s, {self.now}"


@contextlib.contextmanager
def _interrupts_put_off() -> Iterator[None]:
    """Delay SIGINT until the end of the block, on the main thread, which is the one to get it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received:
            signal.raise_signal(signal.SIGINT)


class LivePlacement(PlacementSimulation):
    """A cluster of live servers behind the interface of the simulated one.

        with LivePlacement(PlacementLiveConfig(pool="cpu-tiny")) as cluster:
            cluster.reset(rows, [rng], seen)  # brings up the models that an episode begins with
            cluster.step(rows, policy.act_batch(seen, cluster.contexts(rows), rows), seen)

    Calls are routed and answered while the cluster is in `step`.

    Args:
        config: its settings.
        make_server: makes the server of a model on the block that begins at a GPU; None: vLLM on
            this machine.
        on_transition: called with every phase that ended.

    Attributes:
        pool: how models are served.
        traffic: calls on their way.
        transitions: of the episode, the last 1,000.

    Raises:
        ConfigError: pool, cluster or demand cannot be used, or not together.
        InfraMindError: the extra `live` is not installed; in methods, the cluster is not open.
    """

    def __init__(
        self,
        config: PlacementLiveConfig,
        make_server: Callable[[int, int], VllmServer] | None = None,
        on_transition: Callable[[Transition], None] = lambda transition: None,
    ) -> None:
        require_live()
        self.pool = load_pool(config.pool)
        super().__init__(config, 1)
        self.served = served_models(self.pool, self.cluster_config, self.cards)
        self._live, self._limits = config, config.live
        self._make_server = make_server or self._vllm_server
        self._on_transition = on_transition
        self._loop: LoopThread | None = None  # there is one while servers may run
        self._lock = contextlib.ExitStack()
        self._cancelled = False  # starts under way are to be given up
        self.transitions: deque[Transition] = deque(maxlen=_KEPT)
        self._instances: dict[tuple[int, int], Instance] = {}  # by leader and model
        self._times_file = Path()  # of the pool that is open
        self._records = Records(self)
        self.traffic = Traffic(self._records, self.served, self._limits, self.instance)

    # Episodes

    def reset(
        self,
        rows: NDArray[np.int64],
        generators: Sequence[np.random.Generator],
        observations: NDArray[np.float32],
        *,
        first: bool = True,
    ) -> None:
        """Begin an episode, its clock at 0.

        The first brings up what the setting `initial` says and waits for it. A later one takes the
        models as they are; calls of the one before are given up, transitions are waited for.

        Raises:
            InfraMindError: another process has a placement of this pool, or no server came up.
        """
        closed = self._loop is None
        if not closed:  # give up all calls, and wait for transitions
            self.traffic.reset()
            for instance in self._instances.values():
                instance.give_up("the episode is over")
            self.state.server[0]["running"] = 0  # a drain has nothing to wait for
            self.state.server[0]["queued"] = 0
            self._settle()
        instances, seen_s = self.state.instance.copy(), self.state.seen_s.copy()
        super().reset(rows, generators, observations)  # draws the jobs, and who begins awake
        wanted = np.zeros(self.num_gpus, np.int64)
        for g, m in np.argwhere(self.state.instance["state"][0] == ACTIVE).tolist():
            wanted[g : g + self.cards[m].tp_min] = m + 1
        events.clear(self.state, 0)
        if closed:
            self._bring_up(wanted)
            instances, seen_s = self.state.instance.copy(), self.state.seen_s.copy()
            events.clear(self.state, 0)
        for g, m in np.argwhere(instances["state"][0] != ABSENT).tolist():
            if instances[0, g, m]["state"] == ACTIVE:
                events.begin_awake(self.state, 0, g, m)
            else:
                self.state.instance[0, g, m]["state"] = SLEPT
            self.state.instance[0, g, m]["slept_before"] = instances[0, g, m]["slept_before"]
        self.state.seen_s[:] = seen_s
        self.transitions.clear()
        self._records.start_clock()
        self._snapshot(observations)

    def _bring_up(self, wanted: NDArray[np.int64]) -> None:
        """Take the pool for this process, end what a killed one has left, load models."""
        from inframind_gym.live.processes import StartedServers

        for rule, *like in (  # nothing is to be compiled while the clock runs
            (events.begin_interval, 0.0, wanted),
            (events.end_interval, self.terms[0]),
            (events.route, 0.0),
            (events.add_job, 0),
            (events.call_ended, 0, 0, 0.0, False),
            (events.wait_again, 0, 0, 0.0),
            (events.carry_on,),
            (events.phase_ended, 0, 0, False, 0.0),
            (events.go_away, 0, 0),
            (events.begin_awake, 0, 0),
        ):
            Bound(rule).prepare((self.state, 0, *like))
        pool = StartedServers(f"{self.pool.name}+placement", self._live.state)
        with contextlib.ExitStack() as lock:
            lock.enter_context(pool.locked())
            self._times_file = pool.folder / "times.json"
            self._loop = LoopThread("placement")
            self._lock = lock.pop_all()
        atexit.register(self.close)
        self._cancelled = False
        self._read_times()
        for m, card in enumerate(self.cards):
            for g in range(0, self.num_gpus - card.tp_min + 1, card.tp_min):
                self.instance(g, m).server.stop()
        self._records.start_clock()
        self._snapshot(self.observations())
        events.begin_interval(self.state, 0, 0.0, wanted)
        self._settle()
        failed = [each for each in self.transitions if each.why]
        lines = "".join(f"\n  {each.model} on GPU {each.gpu}: {each.why}" for each in failed)
        if wanted.any() and not (self.state.instance["state"][0] == ACTIVE).any():
            self.close()
            raise InfraMindError(f"pool {self.pool.name!r}: no server came up:{lines}")
        if failed:
            _log.warning("going on without:%s", lines)

    def _settle(self) -> None:
        """Wait until no model is in transition."""
        self._advance()
        while self.state.episode[0]["moving"]:
            self._records.run_tick()
            self._advance()

    # Intervals

    def step(
        self, rows: NDArray[np.int64], actions: NDArray[np.int64], observations: NDArray[np.float32]
    ) -> None:
        """Carry out a decision, and go on until its interval is over.

        Between two steps nothing is done: a caller that decides slowly keeps calls waiting. A
        decision that came late has the rest of its interval, at least one tick.

        Args:
            rows: of the environment, (1,).
            actions: (1, G) per GPU 0, or 1 + the model to make active.
            observations: (1, d), written.

        Raises:
            ActionError: an action is not of that form.
        """
        if self._loop is None:
            raise InfraMindError("the cluster is closed, or was never begun: begin an episode")
        # Compiled code checks no bounds.
        action = check_actions(actions, np.full(self.num_gpus, len(self.cards) + 1, np.int64), 1)
        records = self._records
        last = max(records.tick + self.config.ticks, records.clock_tick + 1)
        events.begin_interval(self.state, 0, last * records.tick_length_s, action[0])
        self._advance()
        while records.tick < last:  # route, and take events until the next tick
            events.route(self.state, 0, records.now_s)
            self.traffic.send()
            records.run_tick()
            now_s, episode = records.tick * records.tick_length_s, self.state.episode[0]
            while self.state.arrival_s[0, episode["next_job"]] <= now_s:
                self.traffic.add_job(int(episode["next_job"]))
            self._advance()
        events.end_interval(self.state, 0, self.terms[0])
        self._snapshot(observations)
        self._report()

    def _snapshot(self, observations: NDArray[np.float32]) -> None:
        """Write masks and observation; close blocks to models that failed on them just now."""
        events.write_mask(self.state, 0)
        events.observe(self.state, 0, observations[0])
        now_s = time.monotonic()
        for (g, m), instance in self._instances.items():
            if now_s < instance.closed_until_s and self._state(g, m) != ACTIVE:
                self.state.mask[0, g : g + self.cards[m].tp_min, m + 1] = False

    # Phases, begun by the records and ended by the servers; and servers that are lost

    def instance(self, g: int, m: int) -> Instance:
        """Return the instance of a model on the block that begins at a GPU."""
        if (g, m) in self._instances:
            return self._instances[g, m]

        def changed(_: int, up: bool, *__: object) -> None:
            self._records.put(lambda: self._server_changed(g, m, up))

        def connect(address: ServerAddress) -> Connections:
            if self._loop is None:
                raise InfraMindError("the cluster was closed")
            limits, poll_s = self._limits, self.pool.metrics_poll_s
            return Connections((address,), limits, self._loop, poll_s=poll_s, on_change=changed)

        name = f"{self.cards[m].alias} on GPU {g}"
        self._instances[g, m] = Instance(name, self._make_server(g, m), connect)
        return self._instances[g, m]

    def _vllm_server(self, g: int, m: int) -> VllmServer:
        pool = instance_pool(self.pool, self.cluster_config, self.served[m], self.cards[m], g)
        return VllmServer(pool, self._limits, self._live.state, self._live.python)

    def _state(self, g: int, m: int) -> int:
        return int(self.state.instance[0, g, m]["state"])

    def _advance(self) -> None:
        """Start the threads of the phases that have begun in the records."""
        events.carry_on(self.state, 0)
        states = self.state.instance["state"][0]
        for g, m in np.argwhere(is_moving(states)).tolist():
            state, instance = int(states[g, m]), self.instance(g, m)
            if state in _PHASES and not instance.busy:
                instance.busy = True
                name, run = f"placement-{_PHASES[state]}", partial(self._run_phase, instance, g, m)
                instance.phase = threading.Thread(None, run, name, (state,), daemon=True)
                instance.phase.start()

    def _run_phase(self, instance: Instance, g: int, m: int, state: int) -> None:
        """Go through a phase; on its thread."""
        took_s, why = instance.run(state, lambda: self._cancelled)
        self._records.put(lambda: self._phase_ended(instance, g, m, state, took_s, why))

    def _phase_ended(
        self, instance: Instance, g: int, m: int, state: int, took_s: float, why: str
    ) -> None:
        if self._instances.get((g, m)) is not instance:
            return  # of a cluster that was closed meanwhile
        instance.busy = False
        events.phase_ended(self.state, 0, g, m, bool(why), took_s)
        if why and state in (WAKING, LOADING):
            instance.closed_until_s = time.monotonic() + self._limits.backoff_s
        elif not why:
            self._write_times()
        now = _STABLE.get(self._state(g, m), "absent")
        self._note(g, m, _PHASES[state], took_s, now, why)

    def _note(self, g: int, m: int, phase: str, took_s: float, now: str, why: str) -> None:
        """Report a phase that ended, and go on with those that waited for it."""
        time_s, alias = self._records.now_s, self.cards[m].alias
        transition = Transition(time_s, g, alias, phase, took_s, now, why)
        self.transitions.append(transition)
        if why:
            _log.warning("%s", transition)
        self._on_transition(transition)
        self._advance()

    def _server_changed(self, g: int, m: int, up: bool) -> None:
        """Check a server that was seen to go down, unless this cluster is the cause."""
        state, instance = self._state(g, m), self.instance(g, m)
        if up or instance.busy or state not in (ACTIVE, DRAINING, SLEPT):
            return

        def check() -> None:
            if instance.is_gone(serves=state != SLEPT):
                self._records.put(lost)

        def lost() -> None:
            """Take back the calls of a server that is gone, and end what is left of it."""
            same = self._instances.get((g, m)) is instance and self._state(g, m) == state
            if same and not instance.busy:
                if state != SLEPT:
                    self.traffic.take_back(g)
                events.go_away(self.state, 0, g, m)
                why = "its server died, hangs, or was put to sleep"
                self._note(g, m, "lost", 0.0, "absent", why)

        threading.Thread(target=check, name="placement-check", daemon=True).start()

    def _read_times(self) -> None:
        """Begin with the times that were learned before, of the same weights."""
        if not self._times_file.exists():
            return
        try:
            known = _Times.model_validate(read_json(self._times_file)).root
        except ValueError as error:
            _log.warning("learned times are not used: %s: %s", self._times_file, error)
            return
        for m, (card, model) in enumerate(zip(self.cards, self.served, strict=True)):
            times = known.get(card.alias)
            if times is not None and times.model == model.name:
                for name, kind in _SEEN.items():
                    self.state.seen_s[0, m, kind] = getattr(times, name)

    def _write_times(self) -> None:
        times = {}
        for m, (card, model) in enumerate(zip(self.cards, self.served, strict=True)):
            seen = {name: float(self.state.seen_s[0, m, kind]) for name, kind in _SEEN.items()}
            times[card.alias] = ModelTimes(model=model.name, **seen)
        try:
            replace_text(self._times_file, _Times(times).model_dump_json(indent=1) + "\n")
        except InfraMindError as error:  # a full disk ends no run
            _log.warning("learned times are not kept: %s", error)

    # The end

    def close(self) -> None:
        """Stop every server that was started, with all its processes. May be called twice.

        KeyboardInterrupt is put off until they are gone.
        """
        if self._loop is None:
            return
        self._cancelled = True

        def stop(instance: Instance) -> None:
            # A start is given up by itself, an end is what is wanted; a sleep or wake may hang.
            if instance.phase is not None and instance.phase.name.endswith(("-load", "-stop")):
                instance.phase.join()
            _, why = instance.run(VANISHING, lambda: True)
            if why:
                _log.error("%s: %s", instance.name, why)

        with _interrupts_put_off():
            with ThreadPoolExecutor(max(len(self._instances), 1)) as threads:
                for instance in self._instances.values():
                    try:
                        threads.submit(stop, instance)
                    except RuntimeError:  # the interpreter ends, and starts no threads
                        stop(instance)
            self._instances = {}
            self.traffic.reset()
            loop, self._loop = self._loop, None
            loop.stop()
            self._lock.close()
            atexit.unregister(self.close)

    def __enter__(self) -> LivePlacement:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def summary(self, e: int) -> dict[str, float | int]:
        """As of the simulated cluster, and failed answers and lost calls."""
        ours = {"failed_calls": self.traffic.failed, "lost_calls": self.traffic.lost}
        return {**super().summary(e), **ours}
