"""What calls ask of a server.

A call of a job asks for as many tokens as the demand has drawn: the prompt is filler of about that
length, and with `ignore_eos` (the default of `sampling`) the answer is exactly as long. A call from
outside (`LivePlacement.ask`) asks what it was given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import numpy as np

from inframind_gym.live.vllm.client import ChatRequest, ChatResult
from inframind_gym.simulator.placement.state import Cluster, World

_SPARE: Final = 64  # tokens of chat templates, and of error in our estimate
_WORD: Final = "the "  # one token to most tokenizers
# What sending again does not help.
HOPELESS: Final = frozenset({"too_long", "rejected", "fault", "cancelled"})
# What was not the call's fault: its server left before it was answered.
BLAMELESS: Final = frozenset({"down"})


@dataclass(slots=True, eq=False)
class Flight:
    """A request on its way to the server of a model at the leader `place`."""

    identity: int
    place: int
    model: int


@dataclass(slots=True)
class JobCalls:
    """What the calls of one job ask."""

    prompt: list[int]  # tokens
    output: list[int]
    asked: tuple[Sequence[Mapping[str, str]], int] | None = None  # from outside: messages, tokens
    answer: Future[ChatResult] | None = None


def drawn_tokens(world: World, cluster: Cluster, slot: int) -> JobCalls:
    """Tokens of the calls of the job that has just been drawn into `slot`."""
    calls = int(world.dag[cluster.job[0, slot]["dag"]]["calls"])
    prompt, output = cluster.prompt[:calls], cluster.output[:calls]
    return JobCalls(np.rint(prompt).astype(int).tolist(), output.astype(int).tolist())


def chat_request(
    job: JobCalls, call: int, *, max_model_len: int, limit_s: float, priority: int
) -> ChatRequest:
    """What is sent for a call.

    Args:
        job: that it is of.
        call: which.
        max_model_len: tokens that the model takes, prompt and answer together.
        limit_s: for the answer.
        priority: for the server's queue, lower first.
    """
    if job.asked is not None:
        messages, max_tokens = job.asked
    else:
        max_tokens = max(1, min(job.output[call], max_model_len // 2))
        prompt = max(1, min(job.prompt[call], max_model_len - max_tokens - _SPARE))
        messages = [{"role": "user", "content": _WORD * prompt}]
    return ChatRequest(
        server=0,
        messages=messages,
        max_tokens=max_tokens,
        limit_s=limit_s,
        priority=priority,
    )
