"""Records and clock of a live cluster, and its calls: sent when routed, again when they failed.

Everything here runs on the cluster's thread, except `Records.put`. A call of a job asks for as many
tokens as the demand has drawn: the prompt is filler of about that length, and with `ignore_eos`
(the default of `live.sampling`) the answer is exactly as long.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from inframind_gym.envs.placement import PlacementSimulation
from inframind_gym.live.chat import ChatResult
from inframind_gym.live.config import LiveLimits
from inframind_gym.live.placement import events
from inframind_gym.live.placement.instance import Instance
from inframind_gym.simulator.placement.state import NONE
from inframind_gym.simulator.server.pool import ModelConfig

_log = logging.getLogger(__name__)
_SPARE: Final = 64  # tokens of chat templates, and error of the estimate
_WORD: Final = "the "  # one token to most tokenizers


class Records:
    """The records of a simulation, written by events of live servers; their clock and queue."""

    def __init__(self, simulation: PlacementSimulation) -> None:
        self.state = simulation.state
        self.tick_length_s = simulation.config.routing_interval_s
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.start_clock()

    def start_clock(self) -> None:
        """Set the clock to 0."""
        self.began_s, self.epoch_s = time.monotonic(), time.time()

    @property
    def now_s(self) -> float:
        """Time since the episode began."""
        return time.monotonic() - self.began_s

    @property
    def tick(self) -> int:
        """The last tick in the records."""
        return int(self.state.episode[0]["tick"])

    @property
    def clock_tick(self) -> int:
        """The last tick by the clock."""
        return int(self.now_s / self.tick_length_s + 1e-9)

    def put(self, event: Callable[[], None]) -> None:
        """Have a function called on the cluster's thread, soon; from any thread."""
        self._events.put(event)

    def run_tick(self) -> None:
        """Call what was `put`, until the next tick; write the clock's tick into the records."""
        until_s = (self.tick + 1) * self.tick_length_s
        while True:
            try:
                event = self._events.get(timeout=max(until_s - self.now_s, 0.0))
            except queue.Empty:
                break
            event()
        self.state.episode[0]["tick"] = max(self.tick, self.clock_tick)


@dataclass
class Traffic:
    """The calls in a cluster.

    `served` are the pool's entries of the models, (M,); `instance_of` is the instance of a model on
    the block that begins at a GPU.
    """

    records: Records
    served: Sequence[ModelConfig]
    limits: LiveLimits
    instance_of: Callable[[int, int], Instance]
    failed: int = 0  # answers of the episode that did not come, or were cut
    lost: int = 0  # calls of the episode that were given up
    _flights: dict[int, tuple[int, int]] = field(default_factory=dict)  # request: leader, model
    _tokens: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # by slot: of calls
    _tries: dict[int, int] = field(default_factory=dict)  # by request: those that failed before

    def add_job(self, ordinal: int) -> None:
        """Let a job of the demand arrive."""
        slot = int(events.add_job(self.records.state, 0, ordinal))
        state = self.records.state
        state.episode[0]["next_job"] += 1
        calls = int(state.world.dag[state.job[0, slot]["dag"]]["calls"])
        prompts, outputs = np.rint(state.prompt[:calls]).astype(int), state.output[:calls]
        self._tokens[slot] = [*zip(prompts.tolist(), outputs.astype(int).tolist(), strict=True)]

    def send(self) -> None:
        """Send what was routed."""
        state, places = self.records.state, self.records.state.queue.shape[2]
        for g in range(state.server.shape[1]):
            server = state.server[0, g]
            if server["model"] == NONE:
                continue
            ring = (int(server["queue_head"]) + np.arange(int(server["queued"]))) % places
            there = [*state.run_request[0, g, : int(server["running"])], *state.queue[0, g, ring]]
            for identity in map(int, there):
                if identity not in self._flights:
                    self._send_one(identity, g, int(server["model"]))

    def _send_one(self, identity: int, g: int, m: int) -> None:
        records, flight = self.records, (g, m)
        self._flights[identity] = flight
        request = records.state.request[0, identity]
        deadline_s = float(records.state.job[0, request["job"]]["deadline_s"])
        if not np.isfinite(deadline_s):
            deadline_s = float(request["ready_s"])
        prompt, max_tokens = self._tokens[int(request["job"])][int(request["call"])]
        room = self.served[m].server.max_model_len
        max_tokens = max(1, min(max_tokens, room // 2))
        prompt = max(1, min(prompt, room - max_tokens - _SPARE))
        messages = [{"role": "user", "content": _WORD * prompt}]
        priority = round((records.epoch_s + deadline_s) * 1e6)

        def ended(result: ChatResult) -> None:
            records.put(lambda: self._ended(identity, flight, result))

        limit_s = self.limits.call_s
        self.instance_of(g, m).send(ended, messages, max_tokens, limit_s, priority=priority)

    def _ended(self, identity: int, flight: tuple[int, int], result: ChatResult) -> None:
        """Take the result of a call: it is done, waits again, or is lost."""
        records = self.records
        if self._flights.get(identity) is not flight:
            return  # it was taken back, or its episode is over
        del self._flights[identity]
        lost = False
        at_s = min(max(result.finish_s - records.began_s, 0.0), records.now_s)
        if not result.answered:
            self.failed += 1
            _log.info("a call failed (%s): %s", result.status, result.reason)
            # One whose server left before it was answered is not to blame.
            tries = self._tries.get(identity, 0) + (result.status != "down")
            self._tries[identity] = tries
            hopeless = not result.retryable and result.status != "timeout"
            lost = hopeless or tries > self.limits.retries
            if not lost:
                events.wait_again(records.state, 0, flight[0], identity, at_s)
                return
            self.lost += 1
            _log.warning("a call is lost (%s): %s", result.status, result.reason)
        slot = int(records.state.request[0, identity]["job"])
        events.call_ended(records.state, 0, flight[0], identity, at_s, lost)
        self._tries.pop(identity, None)
        if not records.state.job[0, slot]["left"]:
            del self._tokens[slot]

    def take_back(self, g: int) -> None:
        """Let the calls on their way to the server at leader `g` wait for another one."""
        now_s = self.records.now_s
        for identity, (place, m) in list(self._flights.items()):
            if place == g:
                del self._flights[identity]
                self.failed += 1
                events.wait_again(self.records.state, 0, g, identity, now_s)
                self.instance_of(g, m).give_up("its server leaves")

    def reset(self) -> None:
        """Drop all calls."""
        self._flights, self._tokens, self._tries = {}, {}, {}
        self.failed = self.lost = 0
