"""Five fake servers, a pool over them and a sweep on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from inframind_gym.envs.core import checked_arguments
from inframind_gym.envs.live import BackendSimulation
from inframind_gym.envs.routing_config import EnvConfig
from inframind_gym.live.backend import Judge, VllmBackend, VllmServers
from inframind_gym.live.config import LiveSettings
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.workflow.backend import Call, Completion
from tests.live.vllm_server.fake import Answer, FakeServer, Script

QUICK: dict[str, Any] = {"retry_wait_s": 0.01, "health_s": 0.02, "answer_s": 1.0}


class Prompts:
    """Messages that tell what they are made of."""

    def __init__(self) -> None:
        self.seen: list[tuple[Call, dict[int, str], int]] = []

    def messages(
        self, call: Call, answers: Mapping[int, str], limit_tokens: int
    ) -> Sequence[Mapping[str, str]]:
        self.seen.append((call, dict(answers), limit_tokens))
        content = f"{call.query}/{call.node}/{call.phase}: {'; '.join(answers.values())}"
        return [{"role": "user", "content": content}]


def right_if_42(task: int, text: str) -> bool:
    return "42" in text


def pool_at(urls: Sequence[str], poll_s: float = 0.1) -> PoolConfig:
    """The measured testbed's pool, with its models at these addresses."""
    pool = load_pool("b200-2gpu")
    models = tuple(
        model.model_copy(update={"url": url, "port": None})
        for model, url in zip(pool.models, urls, strict=True)
    )
    return pool.model_copy(update={"models": models, "metrics_poll_s": poll_s})


@contextlib.contextmanager
def five(script: Script = lambda request, number: Answer("42")) -> Iterator[list[FakeServer]]:
    """A server for each model of the pool."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(FakeServer(script, model=model.name))
            for model in load_pool("b200-2gpu").models
        ]


def pool_file(folder: Path, urls: Sequence[str]) -> str:
    """A file of `pool_at`."""
    path = folder / "pool.yaml"
    content = pool_at(urls).model_dump(mode="json", exclude_none=True)
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


@contextlib.contextmanager
def live(
    servers: Sequence[FakeServer], *, log: Path | None = None, poll_s: float = 0.1, **settings: Any
) -> Iterator[VllmServers]:
    """A pool whose servers are all up."""
    config = pool_at([server.url for server in servers], poll_s)
    with VllmServers(config, LiveSettings(**(QUICK | settings)), log=log) as pool:
        pool.watcher.wait_up(10.0)
        yield pool


@contextlib.contextmanager
def opened(
    answer: Answer | Script | None = None,
    judge: Judge | None = None,
    *,
    prompts: Prompts | None = None,
    log: Path | None = None,
    **settings: Any,
) -> Iterator[tuple[VllmBackend, VllmServers, list[FakeServer]]]:
    """An episode on five servers that answer all the same, or by a script."""
    script = answer if callable(answer) else lambda *_: answer or Answer("42")
    with five(script) as servers, live(servers, log=log, **settings) as pool:
        yield pool.open(prompts or Prompts(), judge), pool, servers


def wait_for(backend: VllmBackend, count: int) -> list[Completion]:
    done: list[Completion] = []
    while len(done) < count:
        done += backend.wait(None)
    return done


def ask(backend: VllmBackend, *calls: Call) -> list[Completion]:
    """Submit calls, and wait for all of them."""
    for each in calls:
        backend.submit(each)
    return wait_for(backend, len(calls))


def call(number: int = 0, **changes: Any) -> Call:
    fields: dict[str, Any] = {"id": number, "task": 7, "topology": 2, "strategy": 1, "role": 3}
    fields |= dict.fromkeys(("query", "node", "phase", "model"), 0)
    fields |= {"priority": 50.0, "deadline_s": 50.0, "prompt_tokens": 100, "max_tokens": 16}
    return Call(**(fields | {"reads": (), "sources": ()} | changes))


def sweep_on(
    pool: VllmServers, prompts: Prompts, *, retries: int = 0, **arguments: Any
) -> BackendSimulation:
    """A driven simulation over a pool."""
    defaults: dict[str, Any] = {"num_queries": 12, "record_calls": True, "agents": {}}
    return BackendSimulation(
        checked_arguments(EnvConfig, defaults | arguments),
        lambda made, key: pool.open(prompts, right_if_42, scheduler=made.scheduler),
        one_query=False,
        retries=retries,
    )
