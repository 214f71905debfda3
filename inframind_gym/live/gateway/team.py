"""`inframind/team`: a whole workflow for one question, on the loop of the live environments.

Each workflow is a stream of one query. The policy is one for all of them, and sees the calls of the
whole gateway.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import anyio.to_thread
import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.backend import BackendSimulation
from inframind_gym.errors import InfraMindError
from inframind_gym.live.backend import VllmBackend
from inframind_gym.live.client import ChatResult
from inframind_gym.live.config import LiveConfig
from inframind_gym.live.gateway.choose import ROW, act, make_loop, ordinal, typical_tasks
from inframind_gym.live.gateway.gateway import AUTO, Gateway
from inframind_gym.live.gateway.guard import RequestError
from inframind_gym.live.gateway.proxy import EVENTS, JSON, ClientAnswer
from inframind_gym.live.gateway.request import CHAT, Query
from inframind_gym.live.prompts import Message, Prompts
from inframind_gym.live.simulation import compile_driver
from inframind_gym.policies import Policy, requires_of, resolve_policy
from inframind_gym.simulator.workflow.backend import Call
from inframind_gym.simulator.workflow.dispatch import BEGIN, DECISION, STEP
from inframind_gym.simulator.workflow.state import START
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from inframind_gym.tasks.taskset import TaskSet

_BEAT_S: Final = 5.0  # between two comments of a stream whose answer is not there yet
# Fields that ask for what no workflow gives: leaving them out silently would be a wrong answer.
_REFUSED: Final = (
    *("tools", "tool_choice", "functions", "function_call", "logprobs", "top_logprobs"),
    *("response_format", "structured_outputs", "stop", "audio", "modalities"),
)


class Played(NamedTuple):
    """Result of a workflow."""

    text: str
    plan: str  # topology and agents
    models: str
    prompt_tokens: int
    output_tokens: int


class Teams:
    """Workflows of a gateway.

    Args:
        gateway: whose servers they use.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        policy, lock = resolve_policy(gateway.config.policy), threading.Lock()
        self._idle: deque[Workflow] = deque(
            Workflow(gateway, policy, lock) for _ in range(gateway.config.limits.max_teams)
        )
        loop = self._idle[0].loop
        self._tasks = typical_tasks(loop.tasks)
        policy.reset(loop.policy_spec(), [gateway.config.seed])
        compile_driver(LiveConfig(pool=gateway.config.pool, workload=gateway.config.workload))
        self._count = 0

    async def answer(self, query: Query, out: ClientAnswer) -> None:
        """Answer a request with the result of a workflow.

        Raises:
            RequestError: it is none for a team, all are busy, or it has no answer.
        """
        gateway, limits = self._gateway, self._gateway.config.limits
        question = _question(query, gateway.config.speed)
        up = gateway.usable()
        if not up:
            raise RequestError(503, "no_server", "no server is up", retry_after_s=5.0)
        expected_s, soonest = gateway.predict(query, gateway.telemetry(), up)
        gateway.admit(query, float(expected_s[soonest]))  # the shortest workflow is one call
        if not self._idle:
            words = f"{limits.max_teams} workflows are under way"
            raise RequestError(429, "all_teams_busy", words, retry_after_s=5.0)
        workflow = self._idle.popleft()
        workflow.abandoned = False
        task = self._tasks.get(query.domain, next(iter(self._tasks.values())))
        number, self._count = self._count, self._count + 1

        def play() -> Played:
            try:
                return workflow.play(query, question, task, number)
            finally:
                self._idle.append(workflow)

        running = asyncio.ensure_future(anyio.to_thread.run_sync(play, abandon_on_cancel=True))
        left_s = limits.answer_s - (time.monotonic() - query.arrived_s)
        try:
            async with asyncio.timeout(max(left_s, 0.001)):
                played = await self._wait(running, query, out)
        except InfraMindError as error:
            raise RequestError(502, "team_failed", str(error)) from None
        except (asyncio.CancelledError, TimeoutError) as error:
            running.cancel()
            asyncio.get_running_loop().run_in_executor(None, workflow.abandon)
            if isinstance(error, TimeoutError):
                raise RequestError(502, "team_failed", "no answer in time") from None
            raise
        await _send(played, query, out)

    async def _wait(
        self, running: asyncio.Future[Played], query: Query, out: ClientAnswer
    ) -> Played:
        """Wait for the result; a stream gets comments meanwhile, which keep proxies awake."""
        while not (await asyncio.wait([running], timeout=_BEAT_S if query.stream else None))[0]:
            if not out.status:
                await out.start(200, EVENTS | {"x-request-id": query.request_id})
            await out.write(b": working\n\n")
        return running.result()


def _question(query: Query, speed: float) -> str:
    """Return the text of a chat: its last message, what came before it above.

    Raises:
        RequestError: 400; the request wants what no workflow gives.
    """
    if query.path != CHAT:
        raise RequestError(400, "not_for_teams", f"inframind/team answers {CHAT} alone")
    if speed != 1.0:
        words = "inframind/team runs in real time: start the gateway without --speed"
        raise RequestError(400, "not_for_teams", words)
    given = [name for name in _REFUSED if query.body.get(name)]
    given += ["n"] * (query.body.get("n") not in (None, 1))
    if given:
        raise RequestError(
            400,
            "unsupported_field",
            f"{given[0]}: inframind/team answers with one text and takes no such field: leave it "
            f"out, or ask {AUTO} or a model by its name",
            param=given[0],
        )
    texts = []
    for message in query.body["messages"]:
        content = message.get("content")
        if isinstance(content, list):  # parts
            parts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "\n".join(part for part in parts if isinstance(part, str))
        if not isinstance(content, str) or not content.strip():
            words = "inframind/team reads messages of text alone"
            raise RequestError(400, "invalid_request", words, param="messages")
        texts.append((str(message.get("role")), content))
    if len(texts) == 1:
        return texts[0][1]
    return "\n\n".join(f"[{role}]\n{text}" for role, text in texts)


async def _send(played: Played, query: Query, out: ClientAnswer) -> None:
    """Send an answer as OpenAI's API has it."""
    usage = {
        "prompt_tokens": played.prompt_tokens,
        "completion_tokens": played.output_tokens,
        "total_tokens": played.prompt_tokens + played.output_tokens,
    }
    about: dict[str, Any] = {
        "id": f"chatcmpl-{query.request_id}",
        "created": int(time.time()),
        "model": query.model,
    }
    headers = {
        "x-request-id": query.request_id,
        "x-inframind-plan": played.plan,
        "x-inframind-model": played.models,
    }
    message = {"role": "assistant", "content": played.text}
    if not query.stream:
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = about | {"object": "chat.completion", "choices": [choice], "usage": usage}
        await out.whole(200, headers | JSON, json.dumps(body).encode())
        return
    if not out.status:
        await out.start(200, headers | EVENTS)
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    if query.shows_usage:
        chunks.append({"choices": [], "usage": usage})
    for chunk in chunks:
        event = about | {"object": "chat.completion.chunk"} | chunk
        await out.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await out.write(b"data: [DONE]\n\n", more=False)


class OpenPrompts(Prompts):
    """Prompts on a question whose answer has no prescribed form.

    Args:
        tasks: of the loop; the question takes the place of any of them.
        question: the client's.
    """

    def __init__(self, tasks: TaskSet, question: str) -> None:
        super().__init__(replace(tasks.select([0]), texts=(question,)))

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
class _Backend(VllmBackend):
    """A backend whose calls count as the gateway's."""

    gateway: Any = None
    lead_s: float = 0.0  # see `Query.lead_s`
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
        line = super()._record(call, result, None)  # nobody has graded it
        return line | {"error": result.status if result.error else None}  # nor a server's words

    def _uncount(self, call: Call) -> None:
        if call.id in self._counted:
            self._counted.discard(call.id)
            self.gateway.in_flight[call.model] -= 1


class _Loop(BackendSimulation):
    """A loop whose policy sees the calls of the whole gateway as its own."""

    gateway: Any = None

    def show(
        self,
        seen: NDArray[np.float32],
        observations: NDArray[np.float32],
        *,
        charged: bool = False,
    ) -> None:
        """Write what a step ends with; see `BackendSimulation.show`."""
        in_flight = self.state.in_flight[0]
        own = in_flight.copy()
        in_flight[:] = self.gateway.in_flight
        super().show(seen, observations, charged=charged)
        in_flight[:] = own


class Workflow:
    """Plays one workflow at a time.

    Args:
        gateway: whose servers it uses.
        policy: of all workflows.
        lock: held while the policy is asked.
    """

    def __init__(self, gateway: Gateway, policy: Policy, lock: threading.Lock) -> None:
        self._gateway, self._policy, self._lock = gateway, policy, lock
        self.backend: _Backend | None = None
        self.abandoned = False
        self._make_backend: Any = None
        self.loop = make_loop(
            gateway.config,
            requires_of(policy),
            lambda _, __: self._make_backend(),
            one_call=False,
            cls=_Loop,
        )
        self.loop.gateway = gateway
        self._observations, self._start = self.loop.observations(), np.zeros(1, START)

    def play(self, query: Query, question: str, task: int, number: int) -> Played:
        """Play a workflow to its end; on a thread.

        Raises:
            InfraMindError: it has no answer.
        """
        gateway, loop, start, shown = self._gateway, self.loop, self._start, self._observations
        actions = np.zeros((1, loop.action_size), np.int64)
        final: list[str] = []

        def keep(_: int, text: str) -> bool:
            final.append(text)
            return True

        def make_backend() -> _Backend:
            if self.abandoned:
                raise InfraMindError("the client went away")
            self.backend = _Backend(
                gateway.servers,
                gateway.beginning,
                OpenPrompts(loop.tasks, question),
                judge=keep,
                episode=number,
                priorities=gateway.pool.scheduler != "fcfs",
                gateway=gateway,
                lead_s=query.lead_s,
            )
            return self.backend

        self.backend, self._make_backend = None, make_backend
        loop.state.arrival_s[0, 0] = gateway.now_s()
        loop.state.task[0, 0] = task
        start["num_queries"], start["models_up"] = 1, loop.models_up
        left_s = query.budget_s - (time.monotonic() - query.arrived_s)
        start["budget_s"] = max(left_s, 1e-3)
        try:
            loop.drive(BEGIN, ROW, start, actions, shown)
            while loop.status[0] == DECISION:
                loop.decisions["query"] = ordinal(number)
                with self._lock:
                    actions[0] = act(self._policy, loop, shown)
                loop.drive(STEP, ROW, start, actions, shown)
            if not final:
                raise InfraMindError("the workflow has no answer: its deciding call failed")
            done = loop.completed(0)[-1]
        finally:
            loop.close()
        models = done["model"][: int(done["num_nodes"])].tolist()
        return Played(
            text=final[-1],
            plan=f"{TOPOLOGIES[done['topology']]} {done['num_agents']}",
            models=", ".join(loop.pool.aliases[m] for m in models),
            prompt_tokens=int(done["prompt_tokens"]),
            output_tokens=int(done["output_tokens"]),
        )

    def abandon(self) -> None:
        """Give up what is in flight; on any thread."""
        self.abandoned = True
        if self.backend is not None:
            self.backend.close()
