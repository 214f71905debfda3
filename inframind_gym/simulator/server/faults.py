"""Faults: servers that go down, are slow or show old readings; clients that give up.

    faults:
      - {kind: down, model: qwen-14b, from_s: 60, to_s: 240}
      - {kind: slow, every_s: 600, lasts_s: 120, factor: 2}   # at random times, some model
      - {kind: telemetry, from_s: 300, to_s: 400, delay_s: 30}   # of all models; no delay_s: lost

A stream's faults (`Faults`) are known when it starts, as a list of changes of the servers'
conditions. What happens is what live servers show:

- A server that goes down loses its calls and all that they computed. It is closed to routers at
  once, as one that refuses connections is, and its metrics stand still. It comes back empty, and
  its metrics are read at once.
- A slower pace begins with the next step.
- The readings of a poll that are late arrive so many polls later; those that are lost never do.
  Health checks are not concerned.

A client aborts a call that takes longer than its time limit. All calls of a cluster have the same
limit, so they time out in the order in which they were sent: they are in a doubly linked list,
which an answered call leaves at once. vLLM learns of an abort between two steps. A waiting request
loses its place; a running one ends with the step under way, and all that it computed is lost.

At one instant faults come after the ends of steps and arrivals, then time-outs, then polls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from inframind_gym.configs import StrictModel, within
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.server.engine import (
    clear_work,
    cut_short,
    flush,
    next_end,
    release_request,
)
from inframind_gym.simulator.server.pool import PoolConfig
from inframind_gym.simulator.server.scheduler import remove
from inframind_gym.simulator.server.state import (
    DIRTY,
    FAR_CLOCK,
    FAULT,
    KV,
    LOST,
    NEVER_S,
    NEWEST,
    NEXT_FAULT,
    NO_REQUEST,
    OLDEST,
    QUEUE,
    TAKEN,
    Cluster,
)

MOST_DRAWN: Final = 64  # faults of one entry in a stream
MOST_LATE_POLLS: Final = 1000
LONGEST_S: Final = 1e6
_DRAW: Final = 0x0FA17  # sets these random numbers apart from others with the stream's key
_SPREAD: Final = 0.5  # a drawn fault lasts (1 ± this) times `lasts_s`, uniformly

Seconds = Annotated[float, within(0.001, LONGEST_S)]


class Fault(StrictModel):
    """A fault at a fixed time, or faults at random times."""

    # "down": the server loses its calls and is closed until it is back; "slow": its steps take
    # `factor` times as long; "telemetry": its readings are late or lost
    kind: Literal["down", "slow", "telemetry"]
    # alias. None: with drawn times a random model every time, of "telemetry" all models
    model: str | None = None
    # start of a fault at a fixed time
    from_s: Annotated[float, within(0.0, LONGEST_S)] | None = None
    to_s: Seconds | None = None  # its end
    # mean time from the end of a drawn fault to the next, exponentially distributed
    every_s: Seconds | None = None
    # mean length of a drawn fault, which is between half and one and a half of that
    lasts_s: Seconds | None = None
    factor: Annotated[float, within(0.01, 1000.0)] | None = None  # of "slow"
    # of "telemetry", rounded up to polls; None: the readings are lost
    delay_s: Seconds | None = None

    @model_validator(mode="after")
    def _check(self) -> Fault:
        fixed = (self.from_s is not None) + (self.to_s is not None)
        drawn = (self.every_s is not None) + (self.lasts_s is not None)
        if (fixed, drawn) not in ((2, 0), (0, 2)):
            raise ValueError("give from_s and to_s, or every_s and lasts_s for random times")
        if fixed and not self.from_s < self.to_s:  # type: ignore[operator]
            raise ValueError(f"to_s ({self.to_s:g}) must be after from_s ({self.from_s:g})")
        if fixed and self.kind != "telemetry" and self.model is None:
            raise ValueError(f'a fault "{self.kind}" at a fixed time needs a model')
        if (self.factor is not None) != (self.kind == "slow"):
            raise ValueError('factor belongs to "slow", and "slow" needs it')
        if self.delay_s is not None and self.kind != "telemetry":
            raise ValueError('delay_s belongs to "telemetry"')
        return self


class Faults:
    """The faults of streams on a pool.

    Args:
        faults: The entries.
        pool: The servers; readings are late by whole polls of it.
        usable: Bit mask of the models that are in service.

    Attributes:
        size: Most changes of conditions in a stream, the last at infinity; 0: there are no faults.
        late_polls: Polls by which readings are late at most, lost ones apart.

    Raises:
        ConfigError: A model that is not in the pool or is out of service, or readings that are
            late by too many polls.
    """

    def __init__(self, faults: Sequence[Fault], pool: PoolConfig, usable: int) -> None:
        self._faults = tuple(faults)
        self._in_service = tuple(m for m in range(len(pool.models)) if usable >> m & 1)
        self._models = [None if f.model is None else pool.index(f.model) for f in faults]
        self._late = [0] * len(faults)
        self.late_polls = self.size = 0
        for i, (fault, model) in enumerate(zip(faults, self._models, strict=True)):
            if model is not None and model not in self._in_service:
                raise ConfigError(f"faults: {fault.model} is one of down_models")
            touched = 1
            if fault.kind == "telemetry":
                touched = len(self._in_service) if model is None else 1
                self._late[i] = LOST
                if fault.delay_s is not None:
                    self._late[i] = math.ceil(fault.delay_s / pool.metrics_poll_s)
                    self.late_polls = max(self.late_polls, self._late[i])
            self.size += 2 * touched * (MOST_DRAWN if fault.from_s is None else 1)
        self.size += bool(faults)
        if self.late_polls > MOST_LATE_POLLS:
            raise ConfigError(
                f"faults: a delay_s of {self.late_polls} polls is too long, at most "
                f"{MOST_LATE_POLLS}; raise metrics_poll_s, or leave delay_s out for lost readings"
            )

    def changes(self, key: int, until_s: float) -> NDArray[Any]:
        """Return the changes of a stream.

        Args:
            key: Of the stream's random numbers.
            until_s: No drawn fault begins later.

        Returns:
            (F,) FAULT, F = `size`, by time; those that are not needed are at infinity.
        """
        out = np.zeros(self.size, FAULT)
        out["at_s"], out["pace"] = np.inf, 1.0
        spans = [span for i in range(len(self._faults)) for span in self._spans(i, key, until_s)]
        present: dict[int, tuple[float, int, int]] = {}  # condition of each model
        row = 0
        for at_s in sorted({time_s for _, _, from_s, to_s in spans for time_s in (from_s, to_s)}):
            active = [(i, models) for i, models, from_s, to_s in spans if from_s <= at_s < to_s]
            for m in self._in_service:
                entries = [i for i, models in active if m in models]
                condition = (
                    math.prod(self._faults[i].factor or 1.0 for i in entries),
                    max((self._late[i] for i in entries), default=0),
                    int(any(self._faults[i].kind == "down" for i in entries)),
                )
                if condition != present.get(m, (1.0, 0, 0)):
                    present[m] = condition
                    pace, late, down = condition
                    out[row] = (at_s, pace, late, m, down)
                    row += 1
        return out

    def _spans(
        self, i: int, key: int, until_s: float
    ) -> Iterator[tuple[int, tuple[int, ...], float, float]]:
        """Yield the faults of entry `i` in a stream: the entry, models, start and end, s."""
        fault, model = self._faults[i], self._models[i]
        rng = np.random.default_rng([_DRAW, i, key])
        times: list[tuple[float, float]] = []
        if fault.every_s is None or fault.lasts_s is None:
            times.append((fault.from_s or 0.0, fault.to_s or 0.0))
        else:
            time_s = rng.exponential(fault.every_s)
            while time_s <= until_s and len(times) < MOST_DRAWN:
                end_s = time_s + fault.lasts_s * rng.uniform(1.0 - _SPREAD, 1.0 + _SPREAD)
                times.append((time_s, end_s))
                time_s = end_s + rng.exponential(fault.every_s)
        for from_s, to_s in times:
            models = self._in_service if model is None else (model,)
            if model is None and fault.kind != "telemetry":
                models = (self._in_service[int(rng.integers(len(self._in_service)))],)
            yield i, models, from_s, to_s


# What faults do to servers, compiled

ABORTED = -1  # as `query` of a request that was aborted while it ran

# What happens next at the servers (`next_event`), in the order in which it does at one instant.
STRETCH_ENDS, OUTSIDE, CHANGES, TIMES_OUT, POLL = range(5)


@inner
def next_event(
    cluster: Cluster, e: int, now_s: float, outside_s: float, poll_s: float, limit_s: float
) -> tuple[int, float, int]:
    """Start the steps that begin now, and find what happens next.

    Args:
        now_s: the present.
        outside_s: time of the caller's own next event: an arrival, or where it wants to stop.
        poll_s: time of the next poll.
        limit_s: from submission to time-out, the same for all; infinity: none.

    Returns:
        Kind of the event, its time, and which server (STRETCH_ENDS) or request (TIMES_OUT) it is.
    """
    fault_s = NEVER_S
    if cluster.fault.shape[1] > 0:
        fault_s = cluster.fault[e, cluster.counts[e, NEXT_FAULT]].at_s
    others_s = min(fault_s, min(outside_s, poll_s))
    end_s, m = next_end(cluster, e)
    if cluster.counts[e, DIRTY] and min(end_s, others_s) > now_s:
        flush(cluster, e, now_s)
        end_s, m = next_end(cluster, e)
    timeout_s, oldest = NEVER_S, int(cluster.counts[e, OLDEST])
    if limit_s < NEVER_S and oldest != NO_REQUEST:
        timeout_s = cluster.request[e, oldest].submit_s + limit_s
    next_s = min(min(end_s, others_s), timeout_s)
    if end_s == next_s:
        return STRETCH_ENDS, next_s, m
    if outside_s == next_s:
        return OUTSIDE, next_s, 0
    if fault_s == next_s:
        return CHANGES, next_s, 0
    if timeout_s == next_s:
        return TIMES_OUT, next_s, oldest
    return POLL, next_s, 0


@inner
def watch(cluster: Cluster, e: int, identity: int, attempt: int) -> None:
    """Begin to wait for a request that has just been submitted; `attempt` counts from 1."""
    counts = cluster.counts[e]
    timer = cluster.timer[e, identity]
    timer.attempt = attempt
    timer.older = counts[NEWEST]
    timer.newer = NO_REQUEST
    if counts[NEWEST] == NO_REQUEST:
        counts[OLDEST] = identity
    else:
        cluster.timer[e, counts[NEWEST]].newer = identity
    counts[NEWEST] = identity
    timer.watched = 1


@inner
def unwatch(cluster: Cluster, e: int, identity: int) -> None:
    """Stop waiting for a request: take it out of the list, if it is there."""
    counts = cluster.counts[e]
    timer = cluster.timer[e, identity]
    if timer.watched == 0:
        return
    timer.watched = 0
    if timer.older == NO_REQUEST:
        counts[OLDEST] = timer.newer
    else:
        cluster.timer[e, timer.older].newer = timer.newer
    if timer.newer == NO_REQUEST:
        counts[NEWEST] = timer.older
    else:
        cluster.timer[e, timer.newer].older = timer.older


@inner
def abort(cluster: Cluster, e: int, identity: int, now_s: float) -> None:
    """Take a request that is not watched any more out of its server."""
    request = cluster.request[e, identity]
    m = int(request.server)
    server = cluster.server[e, m]
    card = cluster.card[m]
    for i in range(server.running):
        if cluster.running[e, m, i] == identity:  # it ends with the step under way
            request.query = ABORTED
            cut_short(cluster, e, m, now_s, 0)
            last = server.clock + server.steps
            if cluster.finish_clock[e, m, i] == FAR_CLOCK:
                server.partial = NO_REQUEST
                cluster.base_tokens[e, m, i] = request.computed - last
            cluster.finish_clock[e, m, i] = last
            server.next_finish = last
            return
    remove(cluster.waiting[e, m], server.waiting, identity)
    server.waiting -= 1
    if card.prefix_caching and request.evictions > 0:
        server.evicted -= 1
    server.finished += 1
    server.e2e_sum_s += now_s - request.submit_s
    if server.steps == 0:  # those behind it may fit
        cluster.counts[e, DIRTY] |= 1 << m
    elif server.waiting > 0 and server.running < card.max_num_seqs:
        cut_short(cluster, e, m, now_s, card.async_scheduling)
    release_request(cluster, e, identity)


@inner
def change_condition(cluster: Cluster, e: int, now_s: float, polls: int) -> int:
    """Apply the next change of a server's condition, now.

    The calls of a server that goes down are taken out of it; the caller has to end them.

    Returns:
        Its server m; m + M if the server has come back.
    """
    fault = cluster.fault[e, cluster.counts[e, NEXT_FAULT]]
    cluster.counts[e, NEXT_FAULT] += 1
    m = int(fault.model)
    condition = cluster.condition[e, m]
    came_back = condition.down == 1 and fault.down == 0
    if fault.down == 1 and condition.down == 0:
        empty_server(cluster, e, m)
    elif fault.pace != condition.pace:
        cut_short(cluster, e, m, now_s, 0)
    condition.down = fault.down
    condition.pace = fault.pace
    condition.late_polls = fault.late_polls
    if not came_back:
        return m
    slot = polls % cluster.reading.shape[1]
    cluster.reading[e, slot, QUEUE, m] = 0.0
    cluster.reading[e, slot, KV, m] = 0.0
    cluster.reading[e, slot, TAKEN, m] = now_s
    condition.shown = min(condition.shown, polls - 1)  # this reading is news
    return int(m + cluster.card.shape[0])


@inner
def is_down(cluster: Cluster, e: int, m: int) -> bool:
    """Return whether server `m` is down."""
    return bool(cluster.fault.shape[1] > 0 and cluster.condition[e, m].down == 1)


@inner
def forget_future(cluster: Cluster, e: int, identity: int, now_s: float) -> None:
    """Undo what the server had planned for a call that is lost: a first token after `now_s`."""
    request = cluster.request[e, identity]
    if request.first_token_s > now_s:
        request.first_token_s = np.nan


@inner
def empty_servers_down(cluster: Cluster, e: int) -> None:
    """Empty the servers that are down, after the caller has ended their calls."""
    for m in range(cluster.card.shape[0]):
        if cluster.condition[e, m].down == 1:
            empty_server(cluster, e, m)


@inner
def empty_server(cluster: Cluster, e: int, m: int) -> None:
    """Take all calls out of a server; the ids of watched ones are not released."""
    server = cluster.server[e, m]
    for i in range(server.running):
        identity = cluster.running[e, m, i]
        if cluster.request[e, identity].query == ABORTED:
            release_request(cluster, e, identity)
    clear_work(cluster, e, m)
    server.polled_finished = server.finished
    server.polled_e2e_sum_s = server.e2e_sum_s
    cluster.counts[e, DIRTY] |= 1 << m
