"""`inframind/team`: a whole workflow for one question.

Each workflow is a stream of one query on a stage of its own; the policy is one for all of them, and
sees the calls of the whole gateway.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from inframind_gym.errors import InfraMindError
from inframind_gym.live.config import LiveConfig
from inframind_gym.live.gateway.answers import JSON, RequestError, bad_request
from inframind_gym.live.gateway.asked import AUTO, CHAT, Asked
from inframind_gym.live.gateway.desk import typical_tasks
from inframind_gym.live.gateway.upstream import EVENTS, ClientAnswer
from inframind_gym.live.gateway.workflow import Played, Stage
from inframind_gym.live.simulation import compile_driver
from inframind_gym.policies import resolve_policy

if TYPE_CHECKING:
    from inframind_gym.live.gateway.gateway import Gateway

_BEAT_S: Final = 5.0  # between two comments of a stream whose answer is not there yet
# Fields that ask for what no workflow gives: leaving them out silently would be a wrong answer.
_REFUSED: Final = (
    *("tools", "tool_choice", "functions", "function_call", "logprobs", "top_logprobs"),
    *("response_format", "structured_outputs", "stop", "audio", "modalities"),
)


class Teams:
    """Workflows of a gateway.

    Args:
        gateway: whose servers they use.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        policy, lock = resolve_policy(gateway.config.policy), threading.Lock()
        count = gateway.config.limits.max_teams
        stages = [Stage(gateway, policy, lock) for _ in range(count)]
        self._idle: queue.SimpleQueue[Stage] = queue.SimpleQueue()
        for stage in stages:
            self._idle.put(stage)
        first = stages[0]
        self._tasks = typical_tasks(first.loop.tasks)
        policy.reset(first.loop.policy_spec(), [gateway.config.seed])
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
        _check_fields(asked)
        question = question_of(asked.body["messages"])
        up = self.gateway.usable()
        if not up:
            raise RequestError(503, "no_server", "no server is up", retry_after_s=5.0)
        expected_s, soonest = self.gateway.predict(asked, self.gateway.telemetry(), up)
        self.gateway.admit(asked, float(expected_s[soonest]))  # the shortest workflow is one call
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

        def over(played: asyncio.Future[Played]) -> None:
            self._idle.put(stage)
            if not played.cancelled():
                played.exception()  # of a workflow that was given up: nobody else asks for it

        running.add_done_callback(over)
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


def _check_fields(asked: Asked) -> None:
    """Refuse the fields that a workflow cannot honour.

    Raises:
        RequestError: 400; names the field.
    """
    given = [name for name in _REFUSED if asked.body.get(name)]
    if asked.body.get("n") not in (None, 1):
        given.append("n")
    if given:
        raise bad_request(
            f"{given[0]}: inframind/team answers with one text and takes no such field: leave it "
            f"out, or ask {AUTO} or a model by its name",
            "unsupported_field",
            given[0],
        )


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
    kinds = EVENTS if asked.stream else [JSON]
    told = {"x-request-id": asked.request_id}
    if played is not None:
        told |= {"x-inframind-plan": played.plan, "x-inframind-model": played.models}
    return [*kinds, *((name.encode(), value.encode()) for name, value in told.items())]


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
