"""`inframind/team`: a whole workflow for one question, on the loop of the live environments.

Each workflow is a stream of one query over a backend of its own; the policy is one for all of them,
and sees the calls of the whole gateway.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.checks import check_actions
from inframind_gym.envs.routing.actions import action_space
from inframind_gym.envs.routing.backend_simulation import BackendSimulation
from inframind_gym.envs.routing.simulation import Leg
from inframind_gym.errors import InfraMindError
from inframind_gym.live.backend import VllmBackend
from inframind_gym.live.client import ChatResult
from inframind_gym.live.config import LiveConfig
from inframind_gym.live.gateway.answers import JSON, RequestError
from inframind_gym.live.gateway.asked import CHAT, Asked
from inframind_gym.live.gateway.desk import make_stage, ordinal, typical_tasks
from inframind_gym.live.gateway.upstream import ClientAnswer
from inframind_gym.live.prompts import Message, Prompts
from inframind_gym.live.simulation import compile_driver
from inframind_gym.policies import requires_of, resolve_policy
from inframind_gym.simulator.workflow.backend import Call
from inframind_gym.simulator.workflow.dispatch import BEGIN, DECISION, STEP
from inframind_gym.simulator.workflow.state import START
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from inframind_gym.tasks.taskset import TaskSet

if TYPE_CHECKING:
    from inframind_gym.live.gateway.gateway import Gateway

_ROW: Final = np.zeros(1, np.int64)
_BEAT_S: Final = 5.0  # between two comments of a stream whose answer is not there yet


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


class _Stage:
    """A loop that plays one workflow at a time."""

    def __init__(self, teams: Teams, requires: Mapping[str, Any]) -> None:
        self.teams = teams
        self.backend: _TeamBackend | None = None
        self.question, self.number = "", 0
        self.abandoned = False
        self.loop = make_stage(
            *(teams.gateway.config, requires, lambda _, __: self._open()), one_call=False, cls=_Loop
        )
        self.loop.gateway = teams.gateway
        self._leg = Leg(
            *(STEP, _ROW, np.zeros(1, START), np.zeros((1, self.loop.action_size), np.int64)),
            *(*self.loop.buffers(), np.zeros(1), np.zeros(1)),
        )
        choices = action_space(self.loop)
        self._highs = np.atleast_1d(np.asarray(getattr(choices, "nvec", getattr(choices, "n", 0))))

    def play(self, asked: Asked, question: str, task: int, number: int) -> Played:
        """Play a workflow to its end; on a thread.

        Raises:
            InfraMindError: it has no answer.
        """
        self.question, self.number, self.backend = question, number, None
        leg, state = self._leg, self.loop.state
        state.arrival_s[0, 0] = self.teams.gateway.now_s()
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
        with self.teams.lock:
            given = self.teams.policy.act_batch(leg.observations, leg.contexts, _ROW)
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
        gateway = self.teams.gateway

        def keep(_: int, text: str) -> bool:
            backend.final.append(text)
            return True

        backend = _TeamBackend(
            *(gateway.servers, gateway.beginning, OpenPrompts(self.loop.tasks, self.question)),
            judge=keep,
            episode=self.number,
            priorities=gateway.pool.scheduler != "fcfs",
            gateway=gateway,
        )
        self.backend = backend
        return backend


class Teams:
    """Workflows of a gateway.

    Args:
        gateway: whose servers they use.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.policy = resolve_policy(gateway.config.policy)
        self.lock = threading.Lock()
        requires = requires_of(self.policy)
        count = gateway.config.limits.max_teams
        self._idle: queue.SimpleQueue[_Stage] = queue.SimpleQueue()
        stages = [_Stage(self, requires) for _ in range(count)]
        for stage in stages:
            self._idle.put(stage)
        first = stages[0]
        self._tasks = typical_tasks(first.loop.tasks)
        self.policy.reset(first.loop.policy_spec(), [gateway.config.seed])
        compile_driver(LiveConfig(pool=gateway.config.pool, workload=gateway.config.workload))
        self._threads = ThreadPoolExecutor(2 * count, "team")  # some give up others
        self._count = 0

    def close(self) -> None:
        """Wait for no workflow."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def answer(self, asked: Asked, out: ClientAnswer) -> None:
        """Answer a request with the result of a workflow.

        Raises:
            RequestError: it is none for a team, all are busy, or it has no answer.
        """
        if asked.path != CHAT or self.gateway.config.speed != 1.0:
            raise RequestError(
                *(400, "not_for_teams"),
                f"inframind/team answers {CHAT} alone, on servers in real time",
            )
        if not self.gateway.usable():
            raise RequestError(503, "no_server", "no server is up", retry_after_s=5.0)
        question = question_of(asked.body["messages"])
        try:
            stage = self._idle.get_nowait()
        except queue.Empty:
            raise RequestError(
                *(429, "all_teams_busy"),
                f"{self.gateway.config.limits.max_teams} workflows are under way",
                retry_after_s=5.0,
            ) from None
        stage.abandoned = False
        task = self._tasks.get(asked.domain, next(iter(self._tasks.values())))
        self._count += 1
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(
            self._threads, stage.play, asked, question, task, self._count - 1
        )
        running.add_done_callback(lambda _: self._idle.put(stage))
        try:
            played = await self._wait(running, asked, out)
        except asyncio.CancelledError:
            self._threads.submit(stage.abandon)
            raise
        except InfraMindError as error:
            failed = RequestError(502, "team_failed", str(error))
            if out.status:
                await out.cut(failed.content())
                return
            raise failed from None
        await _send(played, asked, out)

    async def _wait(self, running: Any, asked: Asked, out: ClientAnswer) -> Played:
        """Wait for the result; a stream gets comments meanwhile, which keep proxies awake."""
        while True:
            done, _ = await asyncio.wait([running], timeout=_BEAT_S if asked.stream else None)
            if done:
                played: Played = running.result()
                return played
            if not out.status:
                await out.start(200, _headers(asked, None))
            await out.write(b": working\n\n")


def question_of(messages: Sequence[Any]) -> str:
    """Return the text of a chat: its last message, what came before it above."""
    texts = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):  # parts
            parts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "\n".join(part for part in parts if isinstance(part, str))
        if not isinstance(content, str) or not content.strip():
            raise RequestError(
                400, "invalid_request", "inframind/team reads messages of text alone"
            )
        texts.append((str(message.get("role")), content))
    if len(texts) == 1:
        return texts[0][1]
    before = "\n\n".join(f"[{role}]\n{text}" for role, text in texts[:-1])
    return f"{before}\n\n[{texts[-1][0]}]\n{texts[-1][1]}"


def _headers(asked: Asked, played: Played | None) -> list[tuple[bytes, bytes]]:
    kind = (b"content-type", b"text/event-stream; charset=utf-8") if asked.stream else JSON
    told = {"x-request-id": asked.request_id}
    if played is not None:
        told |= {"x-inframind-plan": played.plan, "x-inframind-model": played.models}
    return [kind, *((name.encode(), value.encode()) for name, value in told.items())]


async def _send(played: Played, asked: Asked, out: ClientAnswer) -> None:
    """Send an answer as OpenAI's API has it."""
    usage = {
        "prompt_tokens": played.prompt_tokens,
        "completion_tokens": played.output_tokens,
        "total_tokens": played.prompt_tokens + played.output_tokens,
    }
    about: dict[str, Any] = {
        "id": f"chatcmpl-{asked.request_id}",
        "created": int(time.time()),
        "model": asked.model,
    }
    if not asked.stream:
        message = {"role": "assistant", "content": played.text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = about | {"object": "chat.completion", "choices": [choice], "usage": usage}
        await out.whole(200, _headers(asked, played), json.dumps(body).encode())
        return
    if not out.status:
        await out.start(200, _headers(asked, played))
    delta = {"role": "assistant", "content": played.text}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    if asked.shows_usage:
        chunks.append({"choices": [], "usage": usage})
    for chunk in chunks:
        event = about | {"object": "chat.completion.chunk"} | chunk
        await out.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await out.write(b"data: [DONE]\n\n", more=False)
