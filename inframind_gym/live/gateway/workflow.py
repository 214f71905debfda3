"""One workflow on the loop of the live environments."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.checks import check_actions
from inframind_gym.envs.routing.backend_simulation import BackendSimulation
from inframind_gym.envs.routing.simulation import Leg
from inframind_gym.errors import InfraMindError
from inframind_gym.live.backend import VllmBackend
from inframind_gym.live.client import ChatResult
from inframind_gym.live.gateway.asked import Asked
from inframind_gym.live.gateway.desk import highs, make_stage, ordinal
from inframind_gym.live.prompts import Message, Prompts
from inframind_gym.policies import Policy, requires_of
from inframind_gym.simulator.workflow.backend import Call
from inframind_gym.simulator.workflow.dispatch import BEGIN, DECISION, STEP
from inframind_gym.simulator.workflow.state import START
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from inframind_gym.tasks.taskset import TaskSet

if TYPE_CHECKING:
    from inframind_gym.live.gateway.gateway import Gateway

_ROW: Final = np.zeros(1, np.int64)


class Played(NamedTuple):
    """Result of a workflow."""

    text: str
    plan: str  # topology and agents
    models: str
    prompt_tokens: int
    output_tokens: int


class OpenPrompts(Prompts):
    """Prompts on a question whose answer has no prescribed form.

    Args:
        tasks: of the stage; the question takes the place of any of them.
        question: the client's.
    """

    def __init__(self, tasks: TaskSet, question: str) -> None:
        one = tasks.select([0])
        super().__init__(replace(one, texts=(question,)))

    def messages(self, call: Call, answers: Mapping[int, str], limit_tokens: int) -> list[Message]:
        """Return the messages of a call; see `Prompts.messages`."""
        return super().messages(replace(call, task=0), answers, limit_tokens)

    def check(self, call: Call) -> str:
        """Return how an agent checks its own answer."""
        return "Look for slips, and for what the question asks and the answer leaves out."

    def form(self, call: Call) -> str:
        """Return nothing: the question says what form it wants."""
        return ""


@dataclass(eq=False)
class _TeamBackend(VllmBackend):
    """A backend whose calls count as the gateway's."""

    gateway: Any = None
    lead_s: float = 0.0  # see `Asked.lead_s`
    final: list[str] = field(default_factory=list)  # the deciding call's answer
    _counted: set[int] = field(default_factory=set)

    def submit(self, call: Call) -> None:
        with self.gateway.counting:
            self.gateway.in_flight[call.model] += 1
            self._counted.add(call.id)
        super().submit(call)

    def close(self) -> None:
        super().close()
        with self.gateway.counting:
            for call, _ in self._open.values():
                self._uncount(call)

    def _finish(self, call: Call, result: ChatResult, right: bool | None) -> None:
        with self.gateway.counting:
            self._uncount(call)
        super()._finish(call, result, right)

    def _priority(self, call: Call) -> int | None:
        priority = super()._priority(call)
        return None if priority is None else priority - round(1e6 * self.lead_s)

    def _record(self, call: Call, result: ChatResult, right: bool | None) -> dict[str, Any]:
        return super()._record(call, result, None)  # nobody has graded it

    def _uncount(self, call: Call) -> None:
        if call.id in self._counted:
            self._counted.discard(call.id)
            self.gateway.in_flight[call.model] -= 1


class _Loop(BackendSimulation):
    """A loop whose policy sees the calls of the whole gateway as its own."""

    gateway: Any = None

    def show(self, seen: NDArray[np.float32], leg: Leg, *, charged: bool = False) -> None:
        """Write what a step ends with; see `BackendSimulation.show`."""
        in_flight = self.state.in_flight[0]
        own = in_flight.copy()
        in_flight[:] = self.gateway.in_flight
        super().show(seen, leg, charged=charged)
        in_flight[:] = own


class Stage:
    """Plays one workflow at a time.

    Args:
        gateway: whose servers it uses.
        policy: of all stages.
        lock: held while the policy is asked.
    """

    def __init__(self, gateway: Gateway, policy: Policy, lock: threading.Lock) -> None:
        self._gateway, self._policy, self._lock = gateway, policy, lock
        self.backend: _TeamBackend | None = None
        self.question, self.number, self.lead_s = "", 0, 0.0
        self.abandoned = False
        self.loop = make_stage(
            *(gateway.config, requires_of(policy), lambda _, __: self._open()),
            one_call=False,
            cls=_Loop,
        )
        self.loop.gateway = gateway
        self._leg = Leg(
            *(STEP, _ROW, np.zeros(1, START), np.zeros((1, self.loop.action_size), np.int64)),
            *(*self.loop.buffers(), np.zeros(1), np.zeros(1)),
        )
        self._highs = highs(self.loop)

    def play(self, asked: Asked, question: str, task: int, number: int) -> Played:
        """Play a workflow to its end; on a thread.

        Raises:
            InfraMindError: it has no answer.
        """
        self.question, self.number, self.lead_s = question, number, asked.lead_s
        self.backend = None
        leg, state = self._leg, self.loop.state
        state.arrival_s[0, 0] = self._gateway.now_s()
        state.task[0, 0] = task
        leg.starts["num_queries"], leg.starts["models_up"] = 1, self.loop.models_up
        left_s = asked.budget_s - (time.monotonic() - asked.arrived_s)
        leg.starts["budget_s"] = max(left_s, 1e-3)
        try:
            self.loop._drive(leg._replace(mode=BEGIN))
            while self.loop.status[0] == DECISION:
                leg.contexts["query"] = ordinal(number)
                leg.actions[0] = self._act(leg)
                self.loop._drive(leg)
            backend = self.backend
            assert backend is not None
            if not backend.final:
                raise InfraMindError("the workflow has no answer: its deciding call failed")
            query = self.loop.completed(0)[-1]
        finally:
            self.loop.close()
        nodes = int(query["num_nodes"])
        aliases = self.loop.pool.aliases
        return Played(
            text=backend.final[-1],
            plan=f"{TOPOLOGIES[query['topology']]} {query['num_agents']}",
            models=", ".join(aliases[m] for m in query["model"][:nodes].tolist()),
            prompt_tokens=int(query["prompt_tokens"]),
            output_tokens=int(query["output_tokens"]),
        )

    def _act(self, leg: Leg) -> NDArray[np.int64]:
        with self._lock:
            given = self._policy.act_batch(leg.observations, leg.contexts, _ROW)
        action: NDArray[np.int64] = check_actions(given, self._highs, 1)[0]
        return action

    def abandon(self) -> None:
        """Give up what is in flight; on any thread."""
        self.abandoned = True
        if self.backend is not None:
            self.backend.close()

    def _open(self) -> _TeamBackend:
        if self.abandoned:
            raise InfraMindError("the client went away")
        gateway = self._gateway

        def keep(_: int, text: str) -> bool:
            backend.final.append(text)
            return True

        backend = _TeamBackend(
            *(gateway.servers, gateway.beginning, OpenPrompts(self.loop.tasks, self.question)),
            judge=keep,
            episode=self.number,
            priorities=gateway.pool.scheduler != "fcfs",
            gateway=gateway,
            lead_s=self.lead_s,
        )
        self.backend = backend
        return backend
