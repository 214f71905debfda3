"""One attempt at a log: simulate it under given options and constants, compare, search.

All requests are simulated: when they arrive and how many tokens they have is what a simulator is
told. But only what was measured on the first part of the log, the *fitted* requests, is compared
with the simulation; the times of the others are never looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.calibration.cmaes import minimise
from inframind_gym.calibration.log import RequestLog
from inframind_gym.errors import InfraMindError
from inframind_gym.simulator.server.pool import ServerCard, StepCost
from inframind_gym.simulator.server.replay import replay_requests
from inframind_gym.simulator.server.state import card_record

BASIC: Final = ("base_s", "per_kv_token_s", "per_new_token_s")
_WIDTH: Final = 4096
_EXPLAINED: Final = 0.002  # mismatch that asks for no better explanation
_EVALUATIONS: Final = 2000  # of a search; fewer in a log of more than so many requests:
_LONG_LOG: Final = 2000
_MOST: Final = 1 << 24  # a limit or a length beyond is no server's
_JITTER: Final = 20  # steps; a request that just misses one is late by that much of TTFT's scale
_LEAST: Final = {"base_s": 1e-7, "sparse_tokens": 1.0}


@dataclass(frozen=True)
class Limits:
    """What the server was started with, as far as it is known."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_kv_blocks: int | None = None  # None: the cache never filled up
    block_size: int = 16


@dataclass(frozen=True)
class Options:
    """How the server schedules."""

    async_scheduling: bool = False
    prefix_caching: bool = False
    prefix_blocks: int = 0  # of the head that all prompts share

    def chosen(self, contended: bool) -> dict[str, float | int | bool]:
        """The options that were chosen by what the log shows."""
        chosen: dict[str, float | int | bool] = {"async_scheduling": self.async_scheduling}
        if contended:
            chosen["prefix_caching"] = self.prefix_caching
            chosen["shared_prefix_blocks"] = self.prefix_blocks
        return chosen


@dataclass(frozen=True)
class Candidate:
    """Options, the constants found for them, and what they leave unexplained."""

    options: Options
    constants: dict[str, float]
    mismatch: float

    def beats(self, other: Candidate, gain: float) -> bool:
        """Whether this explains more than a simpler one, by a share of what that leaves open."""
        return self.mismatch < (1.0 - gain) * other.mismatch and other.mismatch > _EXPLAINED


def complete(constants: dict[str, float]) -> dict[str, float]:
    """The constants of a step with that of prefill attention, if it was not fitted on its own.

    In a transformer of width d, a token costs 24 d² multiplications and additions a layer by itself
    and 4 d for each token of its context: 1 / (6 d) as many, and d is not far from 4,096.
    """
    return {"per_attention_unit_s": constants["per_new_token_s"] / (6 * _WIDTH)} | constants


class Trial:
    """Simulates the log under given constants and compares the fitted requests."""

    def __init__(self, log: RequestLog, limits: Limits, fitted: int) -> None:
        self.limits = limits
        self.fitted = fitted
        self.evaluations = 0
        self.contended = False  # whether a simulation has ever evicted a request
        self.submit_s = log.submit_s(fitted)
        self.prompt_tokens = log.prompt_tokens
        self.output_tokens = log.output_tokens
        self._server = np.zeros(len(log), np.int64)
        largest = int((log.prompt_tokens + log.output_tokens).max())
        self._blocks_each = -(-largest // limits.block_size)
        # What follows is all that is taken from the measured times.
        self._first_token_s = log.first_token_s[:fitted]
        self._finish_s = log.last_token_s[:fitted]
        self._ttft_s = np.maximum(self._first_token_s - self.submit_s[:fitted], 1e-6)
        self._e2e_s = self._finish_s - self.submit_s[:fitted]
        self._steps = np.maximum(log.output_tokens[:fitted] - 1, 1)
        self._tpot_s = (self._finish_s - self._first_token_s) / self._steps
        self._timed = (log.output_tokens[:fitted] > 1) & (self._tpot_s > 0)
        if not self._timed.any():
            raise InfraMindError(
                f"{log.name}: no fitted request emitted more than one token: how long decoding "
                "takes cannot be told"
            )
        self._ttft_scale_s = self._ttft_s.mean() + _JITTER * np.median(self._tpot_s[self._timed])
        since_s = log.scheduled_s[:fitted] if log.tells_schedule else self.submit_s[:fitted]
        waited = np.maximum(self._first_token_s - since_s, 1e-6)
        self._prefill_s = waited / log.prompt_tokens[:fitted]
        self._typical = next(self.starts())

    def card(self, options: Options, constants: dict[str, float]) -> ServerCard:
        """The server card of these options and constants."""
        limits = self.limits
        blocks = limits.num_kv_blocks
        if blocks is None:  # room for everything
            blocks = limits.max_num_seqs * self._blocks_each + options.prefix_blocks + 1
        return ServerCard(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            num_kv_blocks=blocks,
            block_size=limits.block_size,
            max_model_len=self._blocks_each * limits.block_size,
            async_scheduling=options.async_scheduling,
            prefix_caching=options.prefix_caching,
            shared_prefix_tokens=options.prefix_blocks * limits.block_size,
            step=StepCost(**complete(constants)),
        )

    def simulate(self, options: Options, constants: dict[str, float]) -> NDArray[Any]:
        """Serve the whole log: (n,) SERVED."""
        return self._replay(card_record(self.card(options, constants)))

    def _replay(self, record: NDArray[Any]) -> NDArray[Any]:
        self.evaluations += 1
        return replay_requests(
            record, self._server, self.submit_s, self.prompt_tokens, self.output_tokens
        )

    def search(self, options: Options, start: dict[str, float], *, spread: float) -> Candidate:
        """Find constants near `start` under which the fitted requests are met."""
        evaluations = max(200, _EVALUATIONS * _LONG_LOG // max(len(self._server), _LONG_LOG))
        names = list(start)
        values = np.array([start[name] for name in names])
        scale = np.maximum(values, [0.2 * self._typical.get(name, 0.0) for name in names])
        record = card_record(self.card(options, start))

        def constants(point: NDArray[np.float64]) -> dict[str, float]:
            found = np.maximum(np.abs(point) * scale, [_LEAST.get(name, 0.0) for name in names])
            return dict(zip(names, found.tolist(), strict=True))

        def mismatch(point: NDArray[np.float64]) -> float:
            for name, value in complete(constants(point)).items():
                record[name] = value
            return self.mismatch(self._replay(record))

        point, least = minimise(
            mismatch, values / scale, spread=spread, evaluations=evaluations, seed=0
        )
        return Candidate(options, constants(point), least)

    def mismatch(self, served: NDArray[Any]) -> float:
        """How far a simulation is off the fitted requests: relative errors, added up.

        The mean absolute errors of e2e and TTFT relative to their means, of TPOT to each one; and
        with little weight that of log TTFT, so that requests that did not wait count, too.
        """
        mine = served[: self.fitted]
        submit_s = self.submit_s[: self.fitted]
        self.contended = self.contended or bool(served["evictions"].any())
        first_s, finish_s = mine["first_token_s"], mine["finish_s"]
        e2e = np.abs(finish_s - self._finish_s).mean() / self._e2e_s.mean()
        ttft = np.abs(first_s - self._first_token_s).mean() / self._ttft_scale_s
        tpot_s = (finish_s - first_s) / self._steps
        tpot = np.abs(tpot_s[self._timed] / self._tpot_s[self._timed] - 1.0).mean()
        ttft_s = np.maximum(first_s - submit_s, 1e-6)
        log_ttft = np.abs(np.log(ttft_s / self._ttft_s)).mean()
        return float(e2e + ttft + tpot + 0.05 * log_ttft)

    def most_prefix_blocks(self) -> int:
        """Blocks that a head which all prompts share can have at most."""
        spare = (self.limits.num_kv_blocks or 0) - 1 - self._blocks_each
        return min(int(self.prompt_tokens.min() - 1) // self.limits.block_size, spare)

    def starts(self, extra: tuple[str, ...] = ()) -> Iterator[dict[str, float]]:
        """Constants to start from, from roughly what the fitted requests' own times say.

        A decoding step takes the TPOT, part of it whatever the load, part of it for reading the
        cached tokens of as many requests as ran at once; a prompt token takes at most the time from
        scheduling to the first token, over the prompt's length.

        Args:
            extra: Constants to start from beside the three that every card has.
        """
        tpot_s = float(np.median(self._tpot_s[self._timed]))
        busy_s = float((self._finish_s - self._first_token_s).sum())
        span_s = float(self._finish_s.max() - self._first_token_s.min())
        at_once = float(np.clip(busy_s / max(span_s, 1e-9), 1.0, self.limits.max_num_seqs))
        prompt = float(self.prompt_tokens[: self.fitted].mean())
        context = prompt + 0.5 * float(self.output_tokens[: self.fitted].mean())
        token_s = float(np.quantile(self._prefill_s, 0.25))
        for base, read, compute in ((0.5, 0.4, 0.5), (0.8, 0.15, 0.25), (0.3, 0.3, 0.8)):
            start = {
                "base_s": base * tpot_s,
                "per_kv_token_s": read * tpot_s / (at_once * context),
                "per_new_token_s": compute * token_s,
                "per_attention_unit_s": 0.1 * compute * token_s / prompt,
                "per_seq_s": 0.3 * base * tpot_s / at_once,
                "sparse_s": 0.5 * base * tpot_s,
                "sparse_tokens": 16.0,
            }
            yield {name: start[name] for name in (*BASIC, *extra)}


def check_sizes(log: RequestLog, limits: Limits) -> None:
    """Refuse limits that are out of range or that a request of the log exceeds."""
    for name in ("max_num_seqs", "max_num_batched_tokens", "num_kv_blocks", "block_size"):
        value = getattr(limits, name)
        if value is not None and not 1 <= value <= _MOST:
            raise InfraMindError(
                f"{name.replace('_', '-')} must be between 1 and {_MOST:,}, not {value}"
            )
    if limits.max_num_batched_tokens < limits.max_num_seqs:
        raise InfraMindError(
            f"max-num-batched-tokens ({limits.max_num_batched_tokens}) must be at least "
            f"max-num-seqs ({limits.max_num_seqs}): a step emits one token for every request"
        )
    if limits.num_kv_blocks is None:
        return
    needed = -(-(log.prompt_tokens + log.output_tokens) // limits.block_size)
    worst = int(np.argmax(needed))
    if needed[worst] > limits.num_kv_blocks - 1:
        raise InfraMindError(
            f"{log.name}: request {log.ids[worst]!r} needs {needed[worst]} KV blocks and "
            f"num-kv-blocks is {limits.num_kv_blocks}, of which one is reserved: the server "
            "cannot have served it; check num-kv-blocks and block-size"
        )
