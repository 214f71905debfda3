"""`inframind/team`: a whole workflow for one question, by the rules of the live environments.

Each workflow is a stream of one query; its calls are tasks on the gateway's event loop. All
workflows share one policy, which sees the calls of the whole gateway.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.live import BackendSimulation, compile_loop
from inframind_gym.envs.routing_config import EnvConfig
from inframind_gym.errors import InfraMindError
from inframind_gym.live.backend import completion_of
from inframind_gym.live.chat import ChatResult
from inframind_gym.live.client import cancel_all
from inframind_gym.live.gateway.choose import (
    Decision,
    TimedPolicy,
    make_simulation,
    typical_tasks,
    workload_for,
)
from inframind_gym.live.gateway.gateway import AGAIN_S, Gateway
from inframind_gym.live.gateway.proxy import EVENTS, Exchange
from inframind_gym.live.gateway.request import Query
from inframind_gym.live.guard import RequestError
from inframind_gym.live.prompts import Message, Prompts
from inframind_gym.policies import requires_of, resolve_policy
from inframind_gym.simulator.workflow.backend import Call, Completion, Telemetry
from inframind_gym.simulator.workflow.backend_loop import BackendLoop
from inframind_gym.simulator.workflow.dispatch import BEGIN, DECISION, STEP
from inframind_gym.simulator.workflow.state import START
from inframind_gym.simulator.workflow.topology import FINAL, TOPOLOGIES
from inframind_gym.tasks import TaskSet

_BEAT_S: Final = 5.0  # between two comments in a stream that has no answer yet
_PATIENCE_S: Final = 5.0  # of a workflow while all servers are down
_RETRIES: Final = 2  # of a call that failed
# Fields that no workflow can honour: to ignore them silently would give a wrong answer.
_REFUSED: Final = (
    *("tools", "tool_choice", "functions", "function_call", "logprobs", "top_logprobs"),
    *("response_format", "structured_outputs", "stop", "audio", "modalities"),
)
# Fields that every call of a workflow is sent with.
_SAMPLING: Final = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "logit_bias", "chat_template_kwargs"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)


class Teams:
    """Workflows of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        config = gateway.config
        self._gateway, policy, self._count = gateway, resolve_policy(config.policy), 0
        requires, count = requires_of(policy), config.limits.max_teams
        self._idle = deque(make_simulation(config, requires, one_call=False) for _ in range(count))
        self._tasks = typical_tasks(self._idle[0].tasks)
        self._timed = TimedPolicy(policy, self._idle[0], config.limits.policy_s)
        self._timed.reset()
        compile_loop(EnvConfig(pool=config.pool, workload=workload_for(config)))

    async def answer(self, exchange: Exchange) -> None:
        """Answer a request with the result of a workflow, as OpenAI's API has it.

        Raises:
            RequestError: a team cannot answer it, all are busy, or the workflow fails.
        """
        gateway, limits, query = self._gateway, self._gateway.config.limits, exchange.query
        question = _question(query)
        every = (1 << len(gateway.pool.models)) - 1
        gateway.look(query, every, 0, admit=True)  # the shortest workflow is one call
        if not self._idle:
            words = f"{limits.max_teams} workflows are under way"
            raise RequestError(429, "all_teams_busy", words, retry_after_s=5.0)
        left_s = limits.answer_s - (time.monotonic() - query.arrived_s)
        simulation = self._idle.popleft()
        playing = asyncio.ensure_future(self._play(simulation, query, question))
        try:
            async with asyncio.timeout(max(left_s, 0.001)):
                # Comments in the stream meanwhile keep proxies from closing it.
                beat_s = _BEAT_S if query.stream else None
                while not (await asyncio.wait([playing], timeout=beat_s))[0]:
                    if not exchange.http:
                        await exchange.start(200, EVENTS | {"x-request-id": query.request_id})
                    await exchange.write(b": working\n\n")
            final, done = playing.result()
        except RequestError:
            raise
        except InfraMindError as error:
            up = gateway.watcher.up
            status, again_s = (502, None) if up else (503, AGAIN_S)
            raise RequestError(status, "team_failed", str(error), retry_after_s=again_s) from None
        except TimeoutError:
            raise RequestError(502, "team_failed", "no answer in time") from None
        finally:
            await cancel_all([playing])
            self._idle.append(simulation)
        models = done["model"][: int(done["num_nodes"])].tolist()
        headers = {
            "x-request-id": query.request_id,
            "x-inframind-plan": f"{TOPOLOGIES[done['topology']]} {done['num_agents']}",
            "x-inframind-model": ", ".join(gateway.pool.aliases[m] for m in models),
        }
        read, written = int(done["prompt_tokens"]), int(done["output_tokens"])
        usage = {"prompt_tokens": read, "completion_tokens": written}
        usage["total_tokens"] = read + written
        about: dict[str, Any] = {"model": query.model, "created": int(time.time())}
        about |= {"id": f"chatcmpl-{query.request_id}"}
        about |= {"object": "chat.completion.chunk" if query.stream else "chat.completion"}
        part = "delta" if query.stream else "message"
        choice = {"index": 0, part: {"role": "assistant", "content": final.text}}
        choice["finish_reason"] = final.finish_reason
        events = [about | {"choices": [choice]}]
        if not query.stream:
            await exchange.whole(200, headers, json.dumps({**events[0], "usage": usage}).encode())
            return
        if not exchange.http:
            await exchange.start(200, headers | EVENTS)
        if query.shows_usage:
            events.append({**about, "choices": [], "usage": usage})
        data = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        await exchange.write(f"{data}data: [DONE]\n\n".encode(), more=False)

    async def _play(
        self, simulation: BackendSimulation, query: Query, question: str
    ) -> tuple[ChatResult, np.void]:
        """Play a workflow to its end; return answer and COMPLETED record; or an InfraMindError."""
        gateway, number, self._count = self._gateway, self._count, self._count + 1
        calls = _Calls(gateway, query, _OpenPrompts(simulation.tasks, question), number)
        start, action = np.zeros(1, START), np.zeros(len(simulation.highs), np.int64)
        start["num_queries"], start["models_up"] = 1, simulation.models_up
        waited_s = (time.monotonic() - query.arrived_s) * gateway.config.speed
        start["budget_s"] = max(query.budget_s - waited_s, 1e-3)
        state, seen = simulation.state, simulation.observations()
        state.arrival_s[0, 0], state.task[0, 0] = calls.now_s(), self._tasks[query.domain]
        try:
            loop = BackendLoop(state, start, calls, retries=_RETRIES, patience_s=_PATIENCE_S)
            event = await calls.drive(loop, BEGIN, action)
            while event == DECISION:
                simulation.show(loop.read_metrics(), seen)
                load = calls.telemetry(), gateway.in_flight
                action = self._timed.ask(*load, simulation.decisions, number)
                event = await calls.drive(loop, STEP, action)
            if calls.final.status == "too_long":
                words = "the messages leave a model of the workflow no room for an answer"
                raise RequestError(400, "context_length_exceeded", words)
            if calls.final.status == "rejected" and calls.refused is not None:
                raise calls.refused
            if calls.final.text is None:
                raise InfraMindError("the workflow has no answer: its deciding call failed")
            return calls.final, simulation.completed(0)[-1]
        finally:
            await cancel_all(calls.open)


class _Waiting(Exception):  # noqa: N818 (no error: the loop goes on when a call has ended)
    def __init__(self, until_s: float | None) -> None:
        self.until_s = until_s


class _Calls:
    """Calls of one workflow, a `Backend` whose `wait` raises `_Waiting` in place of blocking."""

    def __init__(self, gateway: Gateway, query: Query, prompts: Prompts, number: int) -> None:
        self._gateway, self._query, self._prompts = gateway, query, prompts
        self._name = f"{query.request_id}-{number}"
        self._texts: dict[int, str] = {}  # by node
        self.open: set[asyncio.Task[Completion]] = set()
        self._done: list[Completion] = []
        self.final = ChatResult(0.0)  # of the deciding call
        self.refused: RequestError | None = None  # by a server, the last one

    async def drive(self, loop: BackendLoop, mode: int, action: NDArray[np.int64]) -> int:
        """Enter a loop, and wait for its calls until its next event, see `BackendLoop.enter`."""
        go_on: Callable[[], int] = lambda: loop.enter(mode, action)  # noqa: E731
        while True:
            try:
                return go_on()
            except _Waiting as waiting:
                go_on, left_s = loop.go_on, None
                if waiting.until_s is not None:
                    left_s = (waiting.until_s - self.now_s()) / self._gateway.config.speed
                if not self.open:
                    await asyncio.sleep(max(left_s or 0.0, 0.0))
                    continue
                over, self.open = await asyncio.wait(
                    self.open, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                self._done += sorted((task.result() for task in over), key=lambda c: c.finish_s)

    def now_s(self) -> float:
        return self._gateway.now_s()

    def telemetry(self) -> Telemetry:
        return self._gateway.telemetry()

    def models_up(self) -> int:
        return self._gateway.watcher.up

    def submit(self, call: Call) -> None:
        self.open.add(asyncio.ensure_future(self._serve(call)))

    def wait(self, until_s: float | None) -> list[Completion]:
        done, self._done = self._done, []
        if not done and (until_s is None or self.now_s() < until_s) and (self.open or until_s):
            raise _Waiting(until_s)
        return done

    def close(self) -> None:
        for task in self.open:
            task.cancel()

    async def _serve(self, call: Call) -> Completion:
        """Serve one call; a failure is part of its completion."""
        gateway, result = self._gateway, ChatResult(time.monotonic())
        model, begun_s = gateway.pool.models[call.model], result.submit_s
        nodes = call.sources or call.reads
        answers = {node: self._texts[node] for node in nodes if node in self._texts}
        client, most = self._query, call.max_tokens
        if call.phase == FINAL and client.max_tokens is not None:
            most = min(most, client.max_tokens)
        try:
            room = model.server.max_model_len - most
            messages = self._prompts.messages(call, answers, room)
        except InfraMindError as error:
            result.end("too_long", str(error))
        else:
            sampling = {name: client.body[name] for name in _SAMPLING if name in client.body}
            query = replace(
                client,
                body=sampling | {"messages": messages, "max_tokens": most, "stream": True},
                model=model.alias,
                stream=True,
                max_tokens=most,
                request_id=f"{self._name}-{call.id}",
            )
            exchange = Exchange(gateway, query)
            decision = Decision(call.model, call.strategy, call.priority)
            try:
                await exchange.make(gateway.as_sent(query, decision, 0.0))
            except RequestError as refused:  # the result has the error, too
                self.refused = refused
            finally:
                exchange.log()
            result = exchange.result
            result.submit_s = begun_s
        if call.phase == FINAL:
            self.final = result
        elif result.text is not None:
            self._texts[call.node] = result.text
        completion = completion_of(call, result, result.answered, gateway.at_s)
        # One that stalled may do better elsewhere: the workflow has a time limit of its own.
        return replace(completion, retryable=result.retryable or result.status == "timeout")


class _OpenPrompts(Prompts):
    """Prompts for a client's question, whose answer has no prescribed form."""

    def __init__(self, tasks: TaskSet, question: str) -> None:
        super().__init__(replace(tasks.select([0]), texts=(question,)))

    def messages(self, call: Call, answers: Mapping[int, str], limit_tokens: int) -> list[Message]:
        return super().messages(replace(call, task=0), answers, limit_tokens)

    def check(self, call: Call) -> str:
        return "Look for slips, and for what the question asks and the answer leaves out."

    def form(self, call: Call) -> str:
        return ""  # the question says what form it wants


def _question(query: Query) -> str:
    """Return the text of a chat; a RequestError if it needs more than text."""
    wrong = [name for name in _REFUSED if query.body.get(name)]
    wrong += ["n"] * (query.choices != 1)
    if wrong:
        words = f"{wrong[0]}: inframind/team answers with one text and takes no such field"
        raise RequestError(400, "unsupported_field", words, param=wrong[0])
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
