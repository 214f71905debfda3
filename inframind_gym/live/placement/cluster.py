"""A cluster of live servers: episodes and decision intervals, on the wall clock.

All records are read and written on the caller's thread, and only while it is in here. Threads that
go through phases, and the loop of the connections, put their events into a queue.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.checks import check_actions
from inframind_gym.envs.placement.simulation import PlacementSimulation
from inframind_gym.errors import ConfigError, InfraMindError, unknown
from inframind_gym.live.client import ChatResult
from inframind_gym.live.config import PlacementLiveConfig, instance_pool, served_models
from inframind_gym.live.loop import LoopThread
from inframind_gym.live.placement import events
from inframind_gym.live.placement.conductor import Conductor, Transition
from inframind_gym.live.placement.instance import Instance
from inframind_gym.live.placement.records import Records
from inframind_gym.live.placement.traffic import Traffic
from inframind_gym.live.servers import Connections
from inframind_gym.live.settings import LiveSettings, ServerAddress, require_live
from inframind_gym.simulator.placement.state import ABSENT, ACTIVE, DAG, SLEPT, ClusterParams
from inframind_gym.simulator.server.pool import load_pool

# What needs psutil is imported when servers are started.
if TYPE_CHECKING:
    from inframind_gym.live.placement.server import VllmServer

_log = logging.getLogger(__name__)

MakeServer = Callable[[int, int], "VllmServer"]  # leader, model


class LivePlacement(PlacementSimulation):
    """A cluster of live servers behind the interface of the simulated one.

    Args:
        config: its settings.
        make_server: makes the server of a model on the block that begins at a GPU; None: vLLM on
            this machine.
        on_transition: called with every phase that ended.

    Attributes:
        pool: how models are served.
        traffic: calls on their way.
        conductor: instances and their transitions.
        late_decisions: those that came more than a routing interval after the snapshot that they
            were made from; of the episode.
        unrouted_s: time in which nothing was routed and no answer was taken because `step` and
            `decide` were called late; of the episode.

    Raises:
        ConfigError: pool, cluster or demand cannot be used, or not together.
        InfraMindError: the extra `live` is not installed; in methods, the cluster is not open.
    """

    def __init__(
        self,
        config: PlacementLiveConfig,
        make_server: MakeServer | None = None,
        on_transition: Callable[[Transition], None] = lambda transition: None,
    ) -> None:
        require_live()
        self.pool = load_pool(config.pool)
        super().__init__(config, 1)
        self.served = served_models(self.pool, self.cluster_config, self.cards)
        self._live = config
        checks = config.live.model_dump(include={"health_s", "answer_s", "misses"})
        # No retries of the client: the cluster sends calls again, wherever their model is awake.
        self._settings = LiveSettings(retries=0, sampling=config.sampling, **checks)
        self._make_server = make_server or self._vllm_server
        self._loop: LoopThread | None = None  # there is one while servers may run
        self._lock = contextlib.ExitStack()
        self._takes_calls = False  # from outside
        self._answers: set[Future[ChatResult]] = set()  # of calls from outside, not yet there
        self._snapshot_s = 0.0  # when masks and observation were written last
        self.late_decisions, self.unrouted_s = 0, 0.0
        self._observation = self.observations()
        self._records = Records(self)
        self.traffic = Traffic(
            self._records, self.served, config.live, lambda g, m: self.conductor.instance(g, m)
        )
        self.conductor = Conductor(
            self._records,
            tuple(card.alias for card in self.cards),
            config.live,
            self._make_instance,
            self.traffic.take_back,
            on_transition,
        )

    def _build_world(self) -> ClusterParams:
        """Append a graph of one call to the others, for calls from outside."""
        world = super()._build_world()
        single = np.zeros(1, DAG)
        single["calls"] = 1
        return world._replace(dag=np.concatenate([world.dag, single]))

    # Episodes

    def start(
        self,
        rows: NDArray[np.int64],
        generators: list[np.random.Generator],
        observations: NDArray[np.float32],
    ) -> None:
        """Begin an episode, its clock at 0.

        The first brings up what the setting `initial` says and waits for it. A later one takes the
        models as they are; calls of the one before are given up, transitions are waited for.

        Raises:
            InfraMindError: another process has a placement of this pool, or no server came up.
        """
        first = self._loop is None
        if not first:
            self._abandon()
        found, seen = self.state.instance.copy(), self.state.seen_s.copy()
        super().start(rows, generators, observations)  # draws the jobs, and who begins awake
        wanted = self._awake()
        self._records.write(events.CLEAR)
        if first:
            self._bring_up(wanted)
            found, seen = self.state.instance.copy(), self.state.seen_s.copy()
            self._records.write(events.CLEAR)
        self._put_back(found)
        self.state.seen_s[:] = seen
        self.conductor.transitions.clear()
        self.late_decisions, self.unrouted_s = 0, 0.0
        self._takes_calls = False
        self._records.start_clock()
        self._snapshot(observations)

    def begin(self, seed: int | None = None, *, jobs: bool = True) -> None:
        """As `start`, for callers that are no environment.

        Args:
            seed: of the demand's draws.
            jobs: let the demand's jobs come; without them all calls are those of `ask`.
        """
        self.start(np.zeros(1, np.int64), [np.random.default_rng(seed)], self._observation)
        if not jobs:
            self.state.arrival_s[0] = np.inf
            self._takes_calls = True

    def _awake(self) -> NDArray[np.int64]:
        """Return the choice that makes the models awake that are ACTIVE in the records."""
        action = np.zeros(self.num_gpus, np.int64)
        for g, m in np.argwhere(self.state.instance["state"][0] == ACTIVE).tolist():
            action[g : g + self.cards[m].tp_min] = m + 1
        return action

    def _put_back(self, found: NDArray[Any]) -> None:
        """Write the models that are there into empty records; none is in transition."""
        for g, m in np.argwhere(found["state"][0] != ABSENT).tolist():
            if found[0, g, m]["state"] == ACTIVE:
                self._records.write(events.AWAKE, g, m)
            else:
                self.state.instance[0, g, m]["state"] = SLEPT
            self.state.instance[0, g, m]["slept_before"] = found[0, g, m]["slept_before"]

    def _bring_up(self, wanted: NDArray[np.int64]) -> None:
        """Load models by a decision, and wait until they are up.

        Raises:
            InfraMindError: none came up.
        """
        self._open()
        self._records.start_clock()
        self._snapshot(self._observation)
        self._records.write(events.OPEN)
        self._records.write(events.DECIDE, action=wanted)
        self._settle()
        failed = [each for each in self.conductor.transitions if each.why]
        lines = "".join(f"\n  {each.model} on GPU {each.gpu}: {each.why}" for each in failed)
        if wanted.any() and not self._awake().any():
            self.close()
            raise InfraMindError(f"pool {self.pool.name!r}: no server came up:{lines}")
        if failed:
            _log.warning("going on without:%s", lines)

    def _settle(self) -> None:
        """Wait until no model is in transition."""
        self.conductor.advance()
        while self.state.episode[0]["moving"]:
            self._records.take_events((self._records.tick + 1) * self._records.tick_length_s)
            self._records.set_tick()
            self.conductor.advance()

    def _abandon(self) -> None:
        """Give up all calls, and wait for transitions."""
        self._takes_calls = False
        self.traffic.reset()
        for instance in self.conductor.instances.values():
            instance.give_up("the episode is over")
        self.state.server[0]["running"] = 0  # a drain has nothing to wait for
        self.state.server[0]["queued"] = 0
        self._settle()

    # Intervals

    def step(self, actions: NDArray[np.int64], observations: NDArray[np.float32]) -> None:
        """Carry out a decision, and go on until its interval is over.

        Between two steps nothing is done: a caller that decides slowly keeps calls waiting, which
        `late_decisions` and `unrouted_s` count. A decision that came late has the rest of its
        interval, at least one tick.

        Args:
            actions: (1, G).
            observations: (1, d), written.
        """
        last = self._open_interval()
        if self._note_late():
            self.unrouted_s += self._records.now_s - self._snapshot_s
        self._carry_out(actions[0])
        while self._records.tick < last:
            self._run_tick()
        self._records.write(events.CLOSE)
        self._snapshot(observations)

    def decide(self, action: NDArray[np.int64]) -> None:
        """As `step`, for callers that are no environment.

        Args:
            action: (G,) per GPU 0, or 1 + the model to make active.

        Raises:
            ActionError: it is not of that form.
        """
        self.step(self._checked(action), self._observation)

    def decide_by(self, make: Callable[[], NDArray[np.int64]]) -> None:
        """Let a decision be made, carry it out, and go on until its interval is over.

        It is made on a thread, and meanwhile calls are routed and answered, jobs come and phases
        end. A choice that is no longer open when the decision is made is illegal. The interval
        lasts until it is made and, in any case, as long as it should.

        Args:
            make: gives (G,), as of `decide`; may not touch the cluster.

        Raises:
            ActionError: the decision is not of that form.
            Exception: raised by `make`.
        """
        records, last = self._records, self._open_interval()
        pending = True

        def take(action: Any, error: BaseException | None) -> None:
            nonlocal pending
            if not pending:
                return
            pending = False
            if error is not None:
                raise error
            checked = self._checked(action)
            self._note_late()
            records.write(events.SNAPSHOT)  # what was open may not be so by now
            self.conductor.close_blocks(self.state.mask[0])
            self._carry_out(checked[0])

        def run() -> None:
            try:
                records.put(partial(take, make(), None))
            except BaseException as error:
                records.put(partial(take, None, error))

        threading.Thread(target=run, name="placement-decision", daemon=True).start()
        try:
            while records.tick < last or pending:
                self._run_tick()
        finally:
            pending = False
        records.write(events.CLOSE)
        self._snapshot(self._observation)

    def _checked(self, action: Any) -> NDArray[np.int64]:
        """Return a decision from outside as (1, G); compiled code checks no bounds."""
        return check_actions(action, np.full(self.num_gpus, len(self.cards) + 1, np.int64), 1)

    def _open_interval(self) -> int:
        """Begin an interval, and return the tick at which it is to end."""
        self._require_open()
        records = self._records
        last = max(records.tick + self.config.ticks, records.clock_tick + 1)
        records.end_s = last * records.tick_length_s
        records.write(events.OPEN)
        return last

    def _note_late(self) -> bool:
        """Count this decision if it is late, and return whether it is."""
        late = self._records.now_s - self._snapshot_s > self._records.tick_length_s
        self.late_decisions += late
        return late

    def _carry_out(self, action: NDArray[np.int64]) -> None:
        self._records.write(events.DECIDE, action=action)
        self.conductor.advance()

    def _run_tick(self) -> None:
        """Route, and take events until the next tick."""
        records, episode = self._records, self.state.episode[0]
        records.write(events.ROUTE, now_s=records.now_s)
        self.traffic.send()
        records.take_events((records.tick + 1) * records.tick_length_s)
        records.set_tick()
        now_s = records.tick * records.tick_length_s
        while self.state.arrival_s[0, episode["next_job"]] <= now_s:
            self.traffic.add_job(int(episode["next_job"]))
        self.conductor.advance()
        if self._takes_calls:
            episode["jobs_done"] = 0  # their records are not read: this leaves room for new ones

    @property
    def observation(self) -> NDArray[np.float32]:
        """(1, d) as of the last `begin` or `decide`."""
        return self._observation.copy()

    def _snapshot(self, observations: NDArray[np.float32]) -> None:
        """Write masks and observation."""
        self._records.write(events.SNAPSHOT, observation=observations[0])
        self.conductor.close_blocks(self.state.mask[0])
        self._snapshot_s = self._records.now_s

    # Calls from outside

    def ask(
        self, model: str, messages: Sequence[Mapping[str, str]], max_tokens: int
    ) -> Future[ChatResult]:
        """Ask a model, wherever it is awake, as soon as it is; from any thread.

        The call is taken up and sent while `decide` or `decide_by` goes on. Needs
        `begin(jobs=False)`.

        Args:
            model: alias.
            messages: of the chat.
            max_tokens: of the answer.

        Returns:
            The answer; also a `ChatResult` that was not answered after all retries.

        Raises:
            ConfigError: there is no such model.
            InfraMindError: jobs come by themselves in this episode.
        """
        names = [card.alias for card in self.cards]
        if model not in names:
            raise ConfigError(unknown("model", model, names))
        self._require_open()
        if not self._takes_calls:
            raise InfraMindError("calls from outside need an episode begun by begin(jobs=False)")
        answer: Future[ChatResult] = Future()
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)

        def add() -> None:
            if self._takes_calls:
                self.traffic.add_call(names.index(model), (messages, max_tokens), answer)
            else:
                answer.cancel()

        self._records.put(add)
        return answer

    # Servers

    def _make_instance(self, g: int, m: int) -> Instance:
        """Return a new instance of a model on the block that begins at a GPU; nothing runs yet."""

        def changed(_: int, up: bool, *__: object) -> None:
            self._records.put(lambda: self.conductor.server_changed(g, m, up))

        def connect(address: ServerAddress) -> Connections:
            if self._loop is None:
                raise InfraMindError("the cluster was closed")
            poll_s = self.pool.metrics_poll_s
            return Connections(
                (address,), self._settings, self._loop, poll_s=poll_s, on_change=changed
            )

        return Instance(f"{self.cards[m].alias} on GPU {g}", self._make_server(g, m), connect)

    def _vllm_server(self, g: int, m: int) -> VllmServer:
        from inframind_gym.live.placement.server import VllmServer

        pool = instance_pool(self.pool, self.cluster_config, self.served[m], self.cards[m], g)
        return VllmServer(pool, self._live.live, self._live.state, self._live.python)

    def _require_open(self) -> None:
        if self._loop is None:
            raise InfraMindError("the cluster is closed, or was never begun: begin an episode")

    def _open(self) -> None:
        """Take the pool for this process, and end what an earlier run that was killed has left.

        Raises:
            InfraMindError: another process has it.
        """
        from inframind_gym.live.started import StartedServers

        pool = StartedServers(f"{self.pool.name}+placement", self._live.state)
        with contextlib.ExitStack() as lock:
            lock.enter_context(pool.locked())
            self._loop = LoopThread("placement")
            self._lock = lock.pop_all()
        atexit.register(self.close)
        self.conductor.cancelled = False
        for m, card in enumerate(self.cards):
            for g in range(0, self.num_gpus - card.tp_min + 1, card.tp_min):
                self.conductor.instance(g, m).server.stop()

    def close(self) -> None:
        """Stop every server that was started, with all its processes. May be called twice.

        KeyboardInterrupt is put off until they are gone.
        """
        if self._loop is None:
            return
        atexit.unregister(self.close)
        self.conductor.cancelled = True
        interrupted = False
        stop = threading.Thread(target=self.conductor.stop_all, name="placement-close")
        stop.start()
        while stop.is_alive():
            try:
                stop.join()
            except KeyboardInterrupt:
                interrupted = True
        self._takes_calls = False
        self.traffic.reset()
        for answer in list(self._answers):  # of calls that were not even taken up
            answer.cancel()
        loop, self._loop = self._loop, None
        loop.stop()
        self._lock.close()
        if interrupted:
            raise KeyboardInterrupt

    def __enter__(self) -> LivePlacement:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def summary(self, e: int) -> dict[str, float | int]:
        """As of the simulated cluster, and failed answers, lost calls and late decisions."""
        ours = {
            "failed_calls": self.traffic.failed,
            "lost_calls": self.traffic.lost,
            "late_decisions": self.late_decisions,
            "unrouted_s": self.unrouted_s,
        }
        return {**super().summary(e), **ours}
