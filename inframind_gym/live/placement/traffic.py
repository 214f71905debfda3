"""Calls on their way: sent when they were routed, sent again when they failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from inframind_gym.errors import InfraMindError
from inframind_gym.live.placement import events
from inframind_gym.live.placement.calls import (
    BLAMELESS,
    HOPELESS,
    Flight,
    JobCalls,
    chat_request,
    drawn_tokens,
)
from inframind_gym.live.placement.config import LiveLimits
from inframind_gym.live.placement.link import Link
from inframind_gym.live.placement.records import Records
from inframind_gym.live.vllm.client import ChatResult
from inframind_gym.simulator.placement.state import NONE
from inframind_gym.simulator.server.pool import ModelConfig

_log = logging.getLogger(__name__)


class Traffic:
    """The calls in a cluster.

    Args:
        records: of the cluster.
        served: (M,) how each model is served.
        limits: of calls.
        link_of: the connections to the server of a model on the block that begins at a GPU.

    Attributes:
        failed: answers that did not come, or were cut; of the episode.
        lost: calls that were given up; of the episode.
    """

    def __init__(
        self,
        records: Records,
        served: Sequence[ModelConfig],
        limits: LiveLimits,
        link_of: Callable[[int, int], Link | None],
    ) -> None:
        self.failed = self.lost = 0
        self._records = records
        self._served = served
        self._limits = limits
        self._link_of = link_of
        self._flights: dict[int, Flight] = {}  # by request
        self._jobs: dict[int, JobCalls] = {}  # by slot of the job
        self._tries: dict[int, int] = {}  # by request: those that failed before

    # Calls come

    def job_comes(self, ordinal: int) -> None:
        """A job of the demand arrives."""
        slot = self._records.tell(events.JOB, number=ordinal)
        self._records.state.episode[0]["next_job"] += 1
        self._jobs[slot] = drawn_tokens(self._records.world, self._records.state, slot)

    def call_comes(
        self,
        m: int,
        asked: tuple[Sequence[Mapping[str, str]], int],
        answer: Future[ChatResult],
    ) -> None:
        """A call comes from outside."""
        episode = self._records.state.episode[0]
        here = int(episode["used_jobs"]) - int(episode["free_jobs"])
        if here + int(episode["jobs_done"]) >= self._records.state.job.shape[1]:
            message = f"{here} calls wait, and there is no room for more: slow down"
            answer.set_exception(InfraMindError(message))
            return
        slot = self._records.tell(events.CALL, model=m, now_s=self._records.now_s)
        self._jobs[slot] = JobCalls([], [], asked, answer)

    # Calls go

    def send(self) -> None:
        """Send what was routed."""
        state = self._records.state
        places = state.queue.shape[2]
        for g in range(state.server.shape[1]):
            server = state.server[0, g]
            if server["model"] == NONE:
                continue
            ring = (int(server["queue_head"]) + np.arange(int(server["queued"]))) % places
            there = [*state.run_request[0, g, : int(server["running"])], *state.queue[0, g, ring]]
            for identity in map(int, there):
                if identity not in self._flights:
                    flight = Flight(identity, g, int(server["model"]))
                    self._flights[identity] = flight
                    self._send_one(flight)

    def _send_one(self, flight: Flight) -> None:
        records = self._records
        request = records.state.request[0, flight.identity]
        deadline_s = float(records.state.job[0, request["job"]]["deadline_s"])
        if not np.isfinite(deadline_s):
            deadline_s = float(request["ready_s"])
        link = self._link_of(flight.place, flight.model)
        assert link is not None  # it is ACTIVE
        chat = chat_request(
            self._jobs[int(request["job"])],
            int(request["call"]),
            max_model_len=self._served[flight.model].server.max_model_len,
            limit_s=self._limits.call_s,
            priority=round((records.epoch_s + deadline_s) * 1e6),
        )
        link.send(chat, lambda result: records.put(lambda: self._ended(flight, result)))

    def _ended(self, flight: Flight, result: ChatResult) -> None:
        """A call was answered, or not."""
        identity, records = flight.identity, self._records
        if self._flights.get(identity) is not flight:
            return  # it was taken back, or its episode is over
        del self._flights[identity]
        event = events.DONE if result.answered else self._after_failure(identity, result)
        slot = int(records.state.request[0, identity]["job"])
        at_s = min(max(result.finish_s - records.began_s, 0.0), records.now_s)
        records.tell(event, flight.place, number=identity, now_s=at_s)
        if event == events.BACK:
            return
        self._tries.pop(identity, None)
        if not records.state.job[0, slot]["left"]:
            answer = self._jobs.pop(slot).answer
            if answer is not None and answer.set_running_or_notify_cancel():
                answer.set_result(result)

    def _after_failure(self, identity: int, result: ChatResult) -> int:
        """What becomes of a call that failed: it waits again, or is lost."""
        self.failed += 1
        _log.info("a call failed (%s): %s", result.status, result.error)
        if result.status not in BLAMELESS:
            self._tries[identity] = self._tries.get(identity, 0) + 1
        hopeless = result.status in HOPELESS
        if hopeless or self._tries.get(identity, 0) > self._limits.retries:
            self.lost += 1
            _log.warning("a call is lost (%s): %s", result.status, result.error)
            return events.LOST
        return events.BACK

    def take_back(self, g: int) -> None:
        """Let the calls on their way to the server at leader `g` wait for another one."""
        now_s = self._records.now_s
        for flight in [each for each in self._flights.values() if each.place == g]:
            del self._flights[flight.identity]
            self.failed += 1
            self._records.tell(events.BACK, g, number=flight.identity, now_s=now_s)
            link = self._link_of(g, flight.model)
            if link is not None:
                link.give_up("its server leaves")

    def forget(self) -> None:
        """Nothing is on its way any more, and nobody waits for an answer."""
        for job in self._jobs.values():
            if job.answer is not None:
                job.answer.cancel()
        self._flights, self._jobs, self._tries = {}, {}, {}
        self.failed = self.lost = 0
