"""Calls on their way: sent when they were routed, sent again when they failed.

A call of a job asks for as many tokens as the demand has drawn: the prompt is filler of about that
length, and with `ignore_eos` (the default of `sampling`) the answer is exactly as long. A call from
outside (`LivePlacement.ask`) brings its own messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from inframind_gym.errors import InfraMindError
from inframind_gym.live.client import ChatRequest, ChatResult
from inframind_gym.live.config import LiveLimits
from inframind_gym.live.placement import events
from inframind_gym.live.placement.instance import Instance
from inframind_gym.live.placement.records import Records
from inframind_gym.simulator.placement.state import NONE, ClusterParams, ClusterState
from inframind_gym.simulator.server.pool import ModelConfig

_log = logging.getLogger(__name__)
_SPARE: Final = 64  # tokens of chat templates, and error of the estimate
_WORD: Final = "the "  # one token to most tokenizers
_HOPELESS: Final = frozenset({"too_long", "rejected", "fault", "cancelled"})  # fail every time
_BLAMELESS: Final = frozenset({"down"})  # its server left before it was answered

Asked = tuple[Sequence[Mapping[str, str]], int]  # messages, tokens of the answer


@dataclass(slots=True, eq=False)
class _Flight:
    """A request on its way to the server of a model at the leader `place`."""

    identity: int
    place: int
    model: int


@dataclass(slots=True)
class JobCalls:
    """Contents of the calls of one job."""

    prompt: list[int]  # tokens
    output: list[int]
    asked: Asked | None = None  # from outside
    answer: Future[ChatResult] | None = None

    def request(self, call: int, max_model_len: int, limit_s: float, priority: int) -> ChatRequest:
        """Return the request of a call to a model that takes `max_model_len` tokens in all."""
        if self.asked is not None:
            messages, max_tokens = self.asked
        else:
            max_tokens = max(1, min(self.output[call], max_model_len // 2))
            prompt = max(1, min(self.prompt[call], max_model_len - max_tokens - _SPARE))
            messages = [{"role": "user", "content": _WORD * prompt}]
        return ChatRequest(0, messages, max_tokens, limit_s, priority=priority)


def drawn_tokens(world: ClusterParams, cluster: ClusterState, slot: int) -> JobCalls:
    """Return the calls of the job that has just been drawn into `slot`."""
    calls = int(world.dag[cluster.job[0, slot]["dag"]]["calls"])
    prompt, output = cluster.prompt[:calls], cluster.output[:calls]
    return JobCalls(np.rint(prompt).astype(int).tolist(), output.astype(int).tolist())


@dataclass
class Traffic:
    """The calls in a cluster.

    Args:
        records: of the cluster.
        served: (M,) the pool's entries of the models.
        limits: of calls.
        instance_of: the instance of a model on the block that begins at a GPU.

    Attributes:
        failed: answers that did not come, or were cut; of the episode.
        lost: calls that were given up; of the episode.
    """

    records: Records
    served: Sequence[ModelConfig]
    limits: LiveLimits
    instance_of: Callable[[int, int], Instance]
    failed: int = 0
    lost: int = 0
    _flights: dict[int, _Flight] = field(default_factory=dict)  # by request
    _jobs: dict[int, JobCalls] = field(default_factory=dict)  # by slot of the job
    _tries: dict[int, int] = field(default_factory=dict)  # by request: those that failed before

    def add_job(self, ordinal: int) -> None:
        """Let a job of the demand arrive."""
        slot = self.records.write(events.JOB, number=ordinal)
        self.records.state.episode[0]["next_job"] += 1
        self._jobs[slot] = drawn_tokens(self.records.world, self.records.state, slot)

    def add_call(self, m: int, asked: Asked, answer: Future[ChatResult]) -> None:
        """Let a call arrive from outside."""
        episode = self.records.state.episode[0]
        here = int(episode["used_jobs"]) - int(episode["free_jobs"])
        if here + int(episode["jobs_done"]) >= self.records.state.job.shape[1]:
            message = f"{here} calls wait, and there is no room for more: slow down"
            answer.set_exception(InfraMindError(message))
            return
        slot = self.records.write(events.CALL, model=m, now_s=self.records.now_s)
        self._jobs[slot] = JobCalls([], [], asked, answer)

    def send(self) -> None:
        """Send what was routed."""
        state = self.records.state
        places = state.queue.shape[2]
        for g in range(state.server.shape[1]):
            server = state.server[0, g]
            if server["model"] == NONE:
                continue
            ring = (int(server["queue_head"]) + np.arange(int(server["queued"]))) % places
            there = [*state.run_request[0, g, : int(server["running"])], *state.queue[0, g, ring]]
            for identity in map(int, there):
                if identity not in self._flights:
                    flight = _Flight(identity, g, int(server["model"]))
                    self._flights[identity] = flight
                    self._send_one(flight)

    def _send_one(self, flight: _Flight) -> None:
        records = self.records
        request = records.state.request[0, flight.identity]
        deadline_s = float(records.state.job[0, request["job"]]["deadline_s"])
        if not np.isfinite(deadline_s):
            deadline_s = float(request["ready_s"])
        chat = self._jobs[int(request["job"])].request(
            int(request["call"]),
            self.served[flight.model].server.max_model_len,
            self.limits.call_s,
            round((records.epoch_s + deadline_s) * 1e6),
        )
        self.instance_of(flight.place, flight.model).send(
            chat, lambda result: records.put(lambda: self._ended(flight, result))
        )

    def _ended(self, flight: _Flight, result: ChatResult) -> None:
        """Take the result of a call."""
        identity, records = flight.identity, self.records
        if self._flights.get(identity) is not flight:
            return  # it was taken back, or its episode is over
        del self._flights[identity]
        event = events.DONE if result.answered else self._after_failure(identity, result)
        slot = int(records.state.request[0, identity]["job"])
        at_s = min(max(result.finish_s - records.began_s, 0.0), records.now_s)
        records.write(event, flight.place, number=identity, now_s=at_s)
        if event == events.BACK:
            return
        self._tries.pop(identity, None)
        if not records.state.job[0, slot]["left"]:
            answer = self._jobs.pop(slot).answer
            if answer is not None and answer.set_running_or_notify_cancel():
                answer.set_result(result)

    def _after_failure(self, identity: int, result: ChatResult) -> int:
        """Return the event that follows a failed call: it waits again, or is lost."""
        self.failed += 1
        _log.info("a call failed (%s): %s", result.status, result.error)
        if result.status not in _BLAMELESS:
            self._tries[identity] = self._tries.get(identity, 0) + 1
        if result.status not in _HOPELESS and self._tries.get(identity, 0) <= self.limits.retries:
            return events.BACK
        self.lost += 1
        _log.warning("a call is lost (%s): %s", result.status, result.error)
        return events.LOST

    def take_back(self, g: int) -> None:
        """Let the calls on their way to the server at leader `g` wait for another one."""
        now_s = self.records.now_s
        for flight in [each for each in self._flights.values() if each.place == g]:
            del self._flights[flight.identity]
            self.failed += 1
            self.records.write(events.BACK, g, number=flight.identity, now_s=now_s)
            self.instance_of(g, flight.model).give_up("its server leaves")

    def reset(self) -> None:
        """Drop all calls; answers to calls from outside are cancelled."""
        for job in self._jobs.values():
            if job.answer is not None:
                job.answer.cancel()
        self._flights, self._jobs, self._tries = {}, {}, {}
        self.failed = self.lost = 0
