"""Fit a server card to the first part of a request log.

All requests are simulated: their arrivals and token counts are a simulator's input. Only the times
measured on the first part of the log, the *fitted* requests, are compared with the simulation; the
times of the others are never read.

The constants of the step cost are found by `minimise`. How the server schedules (async scheduling,
prefix caching) is not in the log: the choice that explains the fitted requests better is taken.
What departs from vLLM's defaults or from the roofline, or costs one more constant, must explain
them clearly better. Weak priors hold what a log is silent about.

Two limits may be left open. If more requests than `max_num_seqs` ran at once, the server has
several data-parallel engines. If requests waited for the KV cache, its size is one more constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from cmaes import CMA
from numpy.typing import NDArray

from inframind_gym.calibration.request_log import RequestLog
from inframind_gym.errors import InfraMindError, require_within
from inframind_gym.simulator.server.open_loop import replay_requests
from inframind_gym.simulator.server.pool import Evidence, ServerCard, StepCost
from inframind_gym.simulator.server.state import card_record

Vector = NDArray[np.float64]
BASIC: Final = ("base_s", "per_kv_token_s", "per_new_token_s")  # constants of every card
EXTRA: Final = (("per_attention_unit_s",), ("per_seq_s",), ("sparse_s", "sparse_tokens"))
LEAST_FITTED: Final = 8  # requests
_WIDTH: Final = 4096  # of a transformer; those of today are not far from it
_EXPLAINED: Final = 0.002  # mismatch that needs no better explanation
_GAIN_OF_CHANGE: Final = 0.15  # share of the mismatch, for one more constant or another option
_GAIN_OF_BLOCK: Final = 0.05  # the same, for a longer head that all prompts share
_EVALUATIONS: Final = 2000  # of a search; fewer in a log of more requests than _LONG_LOG
_LONG_LOG: Final = 2000
_MOST: Final = 1 << 24  # upper bound of every limit
_JITTER: Final = 20  # steps; a request that just misses one is late by that much of TTFT's scale
_LEAST: Final = {"base_s": 1e-7, "sparse_tokens": 1.0}
_ROOFLINE_POWER: Final = 8.0
# Ratios of constants, their medians and the weight of a squared logarithm: computing takes as long
# as reading the weights at some 220 tokens, reading cached tokens at 125,000. So it is for dense
# models of 8 to 32 billion parameters; a factor of ten weighs as half a percent of mismatch does.
_PRIORS: Final = (("per_new_token_s", "base_s", 1 / 220), ("per_kv_token_s", "base_s", 8e-6))
_PRIOR_WEIGHT: Final = 0.001
_SILENT: Final = 0.05  # share of the mismatch; a constant that costs less is not identified
_NOTHING: Final = 0.01  # smallest ratio to its median that a prior tells from 0


def minimise(
    function: Callable[[Vector], float],
    start: Vector,
    *,
    spread: float,
    evaluations: int,
    seed: int,
    samples: int | None = None,
) -> tuple[Vector, float]:
    """Find a point where `function` is small, by CMA-ES.

    A simulated schedule jumps when a request just misses a step, so derivatives mislead; this
    strategy needs none (N. Hansen, "The CMA Evolution Strategy: A Tutorial", arXiv 1604.00772).

    Args:
        function: Of a vector (d,); may be infinite where it is undefined.
        start: (d,) centre of the first samples, itself tried.
        spread: Standard deviation of the first samples, the same for every variable.
        evaluations: Number of calls of `function`, at most and roughly.
        seed: Of the samples: the same seed gives the same result.
        samples: Points of a generation; default: twice the package's own.

    Returns:
        The best point tried, (d,), and its value.
    """
    samples = samples or 4 + 2 * int(3 * np.log(len(start) + 1))
    strategy = CMA(np.array(start, np.float64), spread, seed=seed, population_size=samples)
    best, least = np.array(start, np.float64), function(start)
    history = [least]
    for _ in range(evaluations // samples):
        points = [strategy.ask() for _ in range(samples)]
        values = [function(point) for point in points]
        strategy.tell(list(zip(points, values, strict=True)))
        if min(values) < least:
            least = min(values)
            best = points[values.index(least)]
        history.append(least)
        # No thousandth gained in 60 generations, or the search has converged.
        stalled = len(history) > 60 and least > 0.999 * history[-61]
        if stalled or np.ptp(points, axis=0).max() < 1e-6:
            break
    return best, least


@dataclass(frozen=True)
class Limits:
    """Launch options of the server, as far as they are known."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_kv_blocks: int | None = None  # None: fitted if the log shows a full cache, else plenty
    block_size: int = 16
    data_parallel_size: int | None = None  # None: as many engines as the log needs

    def check(self, log: RequestLog) -> None:
        """Check ranges, and that every request of the log fits.

        Raises:
            InfraMindError: A limit is out of range or a request exceeds it.
        """
        for name, value in asdict(self).items():
            if value is not None:
                require_within(value, 1, _MOST, name.replace("_", "-"))
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InfraMindError(
                f"max-num-batched-tokens ({self.max_num_batched_tokens}) must be at least "
                f"max-num-seqs ({self.max_num_seqs}): a step emits one token for every request"
            )
        needed = -(-(log.prompt_tokens + log.output_tokens) // self.block_size)
        worst = int(np.argmax(needed))
        if self.num_kv_blocks is not None and needed[worst] > self.num_kv_blocks - 1:
            raise InfraMindError(
                f"{log.name}: request {log.ids[worst]!r} needs {needed[worst]} KV blocks and "
                f"num-kv-blocks is {self.num_kv_blocks}, of which one is reserved"
            )


@dataclass(frozen=True)
class Options:
    """Scheduling options of the server that a log does not state."""

    async_scheduling: bool = False
    prefix_caching: bool = False
    prefix_blocks: int = 0  # of the head that all prompts share
    roofline_power: float = _ROOFLINE_POWER


@dataclass(frozen=True)
class Calibration:
    """A card fitted to a log, and the log as the card predicts it."""

    log: RequestLog
    card: ServerCard
    limits: Limits
    fitted: int  # number of fitted requests, the first of the log
    fit_fraction: float
    mismatch: float
    submit_s: NDArray[np.float64]  # (n,) arrivals on the engine's clock
    served: NDArray[Any]  # (n,) SERVED, on the same clock
    parameters: dict[str, float | int | bool]  # fitted constants and chosen options
    evaluations: int  # simulations of the log


def calibrate(log: RequestLog, limits: Limits, *, fit_fraction: float = 0.5) -> Calibration:
    """Fit a server card to the first part of a log, a share in (0, 1), and predict the whole.

    Raises:
        InfraMindError: The fraction is out of range or leaves too few requests, or a request does
            not fit the limits.
    """
    require_within(fit_fraction, 0.001, 0.999, "fit-fraction")
    fitted = round(fit_fraction * len(log))
    if fitted < LEAST_FITTED or fitted == len(log):
        raise InfraMindError(
            f"{log.name}: {fitted} of {len(log)} requests would be fitted; at least "
            f"{LEAST_FITTED} are needed, and at least one to check against: take a longer log or "
            "another fit-fraction"
        )
    limits.check(log)
    trial = _Trial(log, limits, fitted)
    best = _choose(trial)
    options, card = best.options, trial.card(best.options, best.constants)
    served = trial.replay(card_record(card))
    sequences, new_tokens = load_range(card, log.prompt_tokens, served, fitted)
    # Constants that could be half or twice as large: others make up for them.
    silent, enough = [], max((1.0 + _SILENT) * best.mismatch, _EXPLAINED)
    for name, value in best.constants.items():
        others = {other: of for other, of in best.constants.items() if other != name}
        for factor in (0.5, 2.0):
            held = {name: factor * value}
            if trial.search(options, others, spread=0.1, held=held).mismatch < enough:
                silent.append(name)
                break
    evidence = Evidence(sequences=sequences, new_tokens=new_tokens, not_identified=tuple(silent))
    parameters = {name: getattr(card, name, value) for name, value in best.constants.items()}
    if limits.data_parallel_size is None and trial.engines > 1:
        parameters["data_parallel_size"] = trial.engines
    parameters["roofline_power"] = options.roofline_power
    parameters["async_scheduling"] = options.async_scheduling
    if trial.contended:  # without evictions the log does not decide the others
        parameters["prefix_caching"] = options.prefix_caching
        parameters["shared_prefix_blocks"] = options.prefix_blocks
    card = card.model_copy(update={"evidence": evidence})
    facts = (log, card, limits, fitted, fit_fraction, best.mismatch, trial.submit_s, served)
    return Calibration(*facts, parameters, trial.evaluations)


@dataclass(frozen=True)
class _Candidate:
    """Options, the constants found for them with their priors, and the mismatch without those."""

    options: Options
    constants: dict[str, float]
    mismatch: float

    def beats(self, other: _Candidate, gain: float) -> bool:
        """Return whether a share `gain` of a simpler candidate's mismatch is explained."""
        return self.mismatch < (1.0 - gain) * other.mismatch and other.mismatch > _EXPLAINED


def _choose(trial: _Trial) -> _Candidate:
    """Return the candidate that explains the fitted requests best without needless constants.

    Where the log hardly decides, vLLM's defaults hold: async scheduling and prefix caching.
    """
    found = [_choose_caching(trial, _first(trial, Options(switch))) for switch in (True, False)]
    best = _prefer_async(*found)
    options = best.options
    best = trial.search(options, best.constants, spread=0.2)
    if best.mismatch > _EXPLAINED:
        summed = _first(trial, replace(options, roofline_power=1.0))
        if summed.beats(best, _GAIN_OF_CHANGE):
            best, options = summed, summed.options
    switched = [replace(options, async_scheduling=switch) for switch in (True, False)]
    for extra in EXTRA if best.mismatch > _EXPLAINED else ():
        richer = _prefer_async(*(_first(trial, each, extra) for each in switched))
        if richer.beats(best, _GAIN_OF_CHANGE):
            best = richer
    best = trial.search(best.options, best.constants, spread=0.1)
    flipped = replace(best.options, async_scheduling=not best.options.async_scheduling)
    return _prefer_async(best, trial.search(flipped, best.constants, spread=0.2))


def _prefer_async(one: _Candidate, other: _Candidate) -> _Candidate:
    """Return the candidate with async scheduling, unless the other is clearly better."""
    default, change = (one, other) if one.options.async_scheduling else (other, one)
    return change if change.beats(default, _GAIN_OF_CHANGE) else default


def _first(trial: _Trial, options: Options, extra: tuple[str, ...] = ()) -> _Candidate:
    """Return the best constants, the basic ones and `extra`, of searches from several starts."""
    found = (trial.search(options, start, spread=0.5) for start in trial.starts(extra))
    return min(found, key=lambda candidate: candidate.mismatch + _implausible(candidate.constants))


def _choose_caching(trial: _Trial, plain: _Candidate) -> _Candidate:
    """Choose prefix caching, and the length of a head that all prompts share, if it matters."""
    if not trial.contended:
        return plain
    best: _Candidate | None = None
    blocks = 0
    while blocks <= trial.most_prefix_blocks:
        options = replace(plain.options, prefix_caching=True, prefix_blocks=blocks)
        found = trial.search(options, (best or plain).constants, spread=0.3)
        if best is not None and not found.beats(best, _GAIN_OF_BLOCK):
            break
        best = found
        blocks = max(1, 2 * blocks)
    assert best is not None
    return plain if plain.beats(best, _GAIN_OF_CHANGE) else best


class _Trial:
    """The log, simulated under given options and constants, and the mismatch of its first part."""

    def __init__(self, log: RequestLog, limits: Limits, fitted: int) -> None:
        self.limits = limits
        self.evaluations = 0
        self.contended = False  # whether a simulation has ever evicted a request
        self.submit_s = log.submit_s(fitted)
        self._fitted = fitted
        self._prompt_tokens = log.prompt_tokens
        self._output_tokens = log.output_tokens
        self._server = np.zeros(len(log), np.int64)
        largest = int((log.prompt_tokens + log.output_tokens).max())
        self._blocks_each = -(-largest // limits.block_size)
        engines = -(-most_running(log, fitted) // limits.max_num_seqs)
        self.engines = limits.data_parallel_size or max(1, engines)
        slots = self.engines * limits.max_num_seqs
        self._blocks_held: int | None = None  # in one engine, by requests that filled its cache
        if limits.num_kv_blocks is None and cache_was_full(log, fitted, slots):
            held = most_blocks(log, fitted, limits.block_size)
            self._blocks_held = max(-(-held // self.engines), self._blocks_each)
        # Nothing else is taken from the measured times.
        self._first_token_s = log.first_token_s[:fitted]
        self._finish_s = log.last_token_s[:fitted]
        self._ttft_s = np.maximum(self._first_token_s - self.submit_s[:fitted], 1e-6)
        self._e2e_s = self._finish_s - self.submit_s[:fitted]
        self._steps = np.maximum(log.output_tokens[:fitted] - 1, 1)
        self._tpot_s = (self._finish_s - self._first_token_s) / self._steps
        self._timed = (log.output_tokens[:fitted] > 1) & (self._tpot_s > 0)
        if not self._timed.any():
            raise InfraMindError(
                f"{log.name}: no fitted request emitted more than one token: the duration of "
                "decoding cannot be fitted"
            )
        self._ttft_scale_s = self._ttft_s.mean() + _JITTER * np.median(self._tpot_s[self._timed])
        since_s = log.scheduled_s[:fitted] if log.has_schedule else self.submit_s[:fitted]
        waited_s = np.maximum(self._first_token_s - since_s, 1e-6)
        self._prefill_s = waited_s / log.prompt_tokens[:fitted]
        self._typical = next(self.starts())

    def card(self, options: Options, constants: dict[str, float]) -> ServerCard:
        """Return the server card of these options and constants."""
        limits, blocks = self.limits, self.limits.num_kv_blocks
        step = {name: v for name, v in constants.items() if name in StepCost.model_fields}
        # In a transformer of width d, a token costs 24 d² multiplications and additions a layer by
        # itself and 4 d for each token of its context: 1 / (6 d) as many.
        step.setdefault("per_attention_unit_s", constants["per_new_token_s"] / (6 * _WIDTH))
        if "num_kv_blocks" in constants:
            least = self._blocks_each + options.prefix_blocks + 1
            blocks = max(round(constants["num_kv_blocks"]), least)
        elif blocks is None:  # room for everything
            blocks = limits.max_num_seqs * self._blocks_each + options.prefix_blocks + 1
        return ServerCard(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            num_kv_blocks=blocks,
            block_size=limits.block_size,
            data_parallel_size=self.engines,
            max_model_len=self._blocks_each * limits.block_size,
            async_scheduling=options.async_scheduling,
            prefix_caching=options.prefix_caching,
            shared_prefix_tokens=options.prefix_blocks * limits.block_size,
            step=StepCost(**step, roofline_power=options.roofline_power),
        )

    def replay(self, record: NDArray[Any]) -> NDArray[Any]:
        """Serve the whole log: (n,) SERVED."""
        self.evaluations += 1
        return replay_requests(
            record, self._server, self.submit_s, self._prompt_tokens, self._output_tokens
        )

    def search(
        self,
        options: Options,
        start: dict[str, float],
        *,
        spread: float,
        held: dict[str, float] | None = None,
    ) -> _Candidate:
        """Find constants near `start`, beside those `held`, that meet the fitted requests."""
        evaluations = max(200, _EVALUATIONS * _LONG_LOG // max(len(self._server), _LONG_LOG))
        evaluations = evaluations if held is None else evaluations // 5
        names = list(start)
        values = np.array([start[name] for name in names])
        scale = np.maximum(values, [0.2 * self._typical.get(name, 0.0) for name in names])

        def constants(point: NDArray[np.float64]) -> dict[str, float]:
            found = np.maximum(np.abs(point) * scale, [_LEAST.get(name, 0.0) for name in names])
            return dict(zip(names, found.tolist(), strict=True)) | (held or {})

        def mismatch(point: NDArray[np.float64]) -> float:
            tried = constants(point)
            record = card_record(self.card(options, tried))
            return self._mismatch(self.replay(record)) + _implausible(tried)

        point, least = minimise(
            mismatch, values / scale, spread=spread, evaluations=evaluations, seed=0
        )
        found = constants(point)
        return _Candidate(options, found, least - _implausible(found))

    def _mismatch(self, served: NDArray[Any]) -> float:
        """Return the relative errors of e2e, TTFT, TPOT and, with little weight, log TTFT, added.

        The last one counts requests that did not wait, too.
        """
        mine = served[: self._fitted]
        self.contended = self.contended or bool(served["evictions"].any())
        first_s, finish_s = mine["first_token_s"], mine["finish_s"]
        e2e = np.abs(finish_s - self._finish_s).mean() / self._e2e_s.mean()
        ttft = np.abs(first_s - self._first_token_s).mean() / self._ttft_scale_s
        tpot_s = (finish_s - first_s) / self._steps
        tpot = np.abs(tpot_s[self._timed] / self._tpot_s[self._timed] - 1.0).mean()
        ttft_s = np.maximum(first_s - self.submit_s[: self._fitted], 1e-6)
        log_ttft = np.abs(np.log(ttft_s / self._ttft_s)).mean()
        return float(e2e + ttft + tpot + 0.05 * log_ttft)

    @property
    def most_prefix_blocks(self) -> int:
        """The largest possible head that all prompts share, in blocks."""
        spare = (self.limits.num_kv_blocks or self._blocks_held or 0) - 1 - self._blocks_each
        return min(int(self._prompt_tokens.min() - 1) // self.limits.block_size, spare)

    def starts(self, extra: tuple[str, ...] = ()) -> Iterator[dict[str, float]]:
        """Yield starting points, estimated from the fitted requests' own times.

        A decoding step takes the TPOT: a part of it whatever the load, a part for reading the
        cached tokens of the requests that ran at once. A prompt token takes at most the time from
        scheduling to the first token, over the prompt's length. `extra` constants are beyond the
        BASIC ones.
        """
        tpot_s = float(np.median(self._tpot_s[self._timed]))
        busy_s = float((self._finish_s - self._first_token_s).sum())
        span_s = float(self._finish_s.max() - self._first_token_s.min())
        slots = self.engines * self.limits.max_num_seqs
        at_once = float(np.clip(busy_s / max(span_s, 1e-9), 1.0, slots))
        prompt = float(self._prompt_tokens[: self._fitted].mean())
        context = prompt + 0.5 * float(self._output_tokens[: self._fitted].mean())
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
                "num_kv_blocks": float(self._blocks_held or 0),
            }
            cache = () if self._blocks_held is None else ("num_kv_blocks",)
            yield {name: start[name] for name in (*BASIC, *cache, *extra)}


def _implausible(constants: dict[str, float]) -> float:
    """Return how far the constants are from their priors."""
    ratios = [constants[name] / constants[of] / median for name, of, median in _PRIORS]
    return _PRIOR_WEIGHT * sum(math.log(max(ratio, _NOTHING)) ** 2 for ratio in ratios)


# Requests of a log that ran or waited at once: evidence of the server's limits. A request runs from
# `scheduled_s` to `last_token_s`, evicted or not. With first come, first served nobody who comes
# later runs while a request waits: what is said of the first `n` requests needs no other.


def count_at(start_s: Vector, end_s: Vector, times: Vector) -> NDArray[np.int64]:
    """Count the intervals [start, end) that contain each time."""
    begun = np.searchsorted(np.sort(start_s), times, side="right")
    ended = np.searchsorted(np.sort(end_s), times, side="right")
    return (begun - ended).astype(np.int64)


def most_running(log: RequestLog, n: int) -> int:
    """Return the most of the first `n` requests that ran at once; 0 if the log does not say."""
    start_s = log.scheduled_s[:n]
    known = log.has_schedule
    return int(count_at(start_s, log.last_token_s[:n], start_s).max()) if known else 0


def starved_s(log: RequestLog, n: int, slots: int) -> float:
    """Return the time in which the KV cache alone can have kept the first `n` requests waiting, s.

    A request waited, for longer than a few steps, fewer than `slots` ran, and none of them was in
    its prefill: the steps computed one token for each, so the token budget was not full either.
    """
    if not log.has_schedule:
        return 0.0
    first_s, last_s = log.first_token_s[:n], log.last_token_s[:n]
    scheduled_s, steps = log.scheduled_s[:n], np.maximum(log.output_tokens[:n] - 1, 1)
    patience_s = 4.0 * float(np.median((last_s - first_s) / steps))
    since_s = np.minimum(log.queued_s[:n] + patience_s, scheduled_s)
    times = np.unique(np.concatenate([since_s, scheduled_s, first_s, last_s]))
    lasts_s = np.diff(times)
    middle_s = times[:-1] + 0.5 * lasts_s
    starved = count_at(since_s, scheduled_s, middle_s) > 0
    starved &= count_at(scheduled_s, last_s, middle_s) < slots
    starved &= count_at(scheduled_s, first_s, middle_s) == 0
    return float(lasts_s[starved].sum())


def cache_was_full(log: RequestLog, n: int, slots: int) -> bool:
    """Return True if the KV cache kept the first `n` requests waiting for long."""
    span_s = float(log.last_token_s[:n].max() - log.queued_s[0])
    return starved_s(log, n, slots) > max(1.0, 0.1 * span_s)


def most_blocks(log: RequestLog, n: int, block_size: int) -> int:
    """Return the most KV blocks that the first `n` requests held, if tokens came at an even pace.

    Evicted requests hold none and are counted: under pressure it is somewhat too large.
    """
    most = 0
    scheduled_s, first_s, last_s = log.scheduled_s[:n], log.first_token_s[:n], log.last_token_s[:n]
    lasts_s = np.maximum(last_s - first_s, 1e-9)
    for now_s in scheduled_s:
        running = (scheduled_s <= now_s) & (last_s > now_s)
        done = np.clip((now_s - first_s) / lasts_s, 0.0, 1.0)
        tokens = (log.prompt_tokens[:n] + done * log.output_tokens[:n])[running]
        most = max(most, int(np.ceil(tokens / block_size).sum()))
    return most


def load_range(
    card: ServerCard, prompt_tokens: NDArray[np.int64], served: NDArray[Any], n: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the load of a simulation until the first `n` requests have ended.

    Returns:
        Fewest and most sequences at once, without the extreme hundredths of the busy time; fewest
        and most new tokens of a step: those of a step that admits, if all of them fit one.
    """
    start_s, end_s = served["admitted_s"], served["finish_s"]
    times = np.unique(np.concatenate([start_s, end_s]))
    times = times[times <= end_s[:n].max()]
    running, lasts_s = count_at(start_s, end_s, times[:-1]), np.diff(times)
    order = np.argsort(running)
    order = order[running[order] > 0]
    share = np.cumsum(lasts_s[order]) / lasts_s[order].sum()
    fewest, most = (int(running[order][np.searchsorted(share, at)]) for at in (0.01, 0.99))
    instants, which = np.unique(start_s, return_inverse=True)
    admitted = np.bincount(which, prompt_tokens)[instants <= times[-1]]
    budget = card.data_parallel_size * card.max_num_batched_tokens
    return (fewest, most), (fewest, max(most, min(int(admitted.max()), budget)))
