"""The loop of a training: plays rounds, feeds the learner, validates, saves and resumes."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from agents.inframind.config import InfraMindConfig
from agents.inframind.learner import Learner
from agents.inframind.progress import Progress
from agents.inframind.rollouts import Episodes, Shard, by_step, limit_threads
from agents.inframind.rounds import cut, round_rates, shard_config, validation_shard
from agents.resume import CODES
from agents.tracking import Tracker
from inframind_gym.benchmark.workers import MAX_ATTEMPTS, Fleet, WorkerDiedError
from inframind_gym.policies.checkpoint import part, prefixed, save

BEST: Final = "best."
LOG_EVERY: Final = 50  # updates


def train(
    config: InfraMindConfig,
    *,
    seed: int,
    out: Path,
    workers: int = 1,
    ray_address: str | None = None,
    resume: bool = False,
    resume_changed_code: bool = False,
    wandb: bool = False,
    tensorboard: bool = False,
    max_rounds: int | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train; the best policy is in `out/best`, the metrics in `out/metrics.jsonl`.

    Args:
        config: see there.
        seed: same seed, same result.
        out: folder of the training.
        workers: processes, or actors of a Ray cluster, for the shards.
        ray_address: of a Ray cluster.
        resume: go on from the last round in `out` that was finished.
        resume_changed_code: even if the training there was begun with other code.
        wandb: see `Tracker`, as for `tensorboard`.
        max_rounds: stop after so many rounds of this call; `resume` goes on.
        quiet: print nothing.

    Returns:
        The `Progress` as a dict.

    Raises:
        ConfigError: `out` holds a training and `resume` is not set, or one of another
            configuration, seed or code.
        WorkerDiedError: one round has lost workers three times.
    """
    limit_threads()
    run = {"config": config.model_dump(mode="json"), "seed": seed}
    progress = Progress.open(out, run, resume=resume, changed_code=resume_changed_code)
    shards = [shard_config(config, seed, i) for i in range(config.shards)]
    with (
        Fleet("agents.inframind.rollouts:Shard", shards, workers, ray_address) as fleet,
        Tracker(out, run, wandb=wandb, tensorboard=tensorboard) as tracker,
    ):
        learner = Learner(config, seed, fleet.call("facts")[0])
        validator = Shard(**validation_shard(config, seed))
        best = learner.weights()
        saved = progress.load(learner.restore)
        if saved is not None:
            best = part(saved, BEST)
            learner.scale_lr(progress.lr_scale)
            _save_best(out, learner, best, progress, run)
            tracker.rewind(progress.decisions)
            if len(progress.code) > 1:
                tracker.log(progress.decisions, {CODES: len(progress.code)})
        per_epoch = len(config.rates_per_min)
        rounds = 0
        while progress.round < config.epochs * per_epoch and not progress.stopped:
            _round(learner, fleet, tracker, progress)
            progress.round += 1
            if progress.round % per_epoch == 0:
                metrics = validate(learner, validator)
                value = metrics[f"validation/{config.validation.metric}"]
                if progress.judge(value, config.validation):
                    best = learner.weights()
                learner.scale_lr(progress.lr_scale)
                metrics |= {"charts/lr_scale": progress.lr_scale}
                tracker.log(progress.decisions, metrics)
                if not quiet:
                    _report(progress, metrics, learner)
                _save_best(out, learner, best, progress, run)
            tracker.flush()
            progress.save(*learner.state(), prefixed(best, BEST), run)
            rounds += 1
            if rounds == max_rounds:
                break
    return progress.as_dict()


def _round(learner: Learner, fleet: Fleet, tracker: Tracker, progress: Progress) -> None:
    """One sweep in every row; again from its start if a worker dies."""
    before = learner.state()
    for attempt in range(MAX_ATTEMPTS):
        try:
            _play_round(learner, fleet, tracker, progress)
            return
        except WorkerDiedError:
            if attempt == MAX_ATTEMPTS - 1:
                raise
            tracker.drop()
            learner.restore(*before)
            fleet.restart()


def _play_round(learner: Learner, fleet: Fleet, tracker: Tracker, progress: Progress) -> None:
    config = learner.config
    fleet.call("begin", progress.round, each=round_rates(config, learner.seed, progress.round))
    began, decisions, episodes = time.perf_counter(), 0, 0
    waiting: list[Episodes] = []
    window: list[dict[str, float]] = []
    # The shards play a phase while the learner learns from the one before.
    fleet.ask("play", learner.acting(), config.steps_per_phase)
    running = True
    while running:
        phases = fleet.results()
        running = any(phase.running for phase in phases)
        if running:
            fleet.ask("play", learner.acting(), config.steps_per_phase)
        decisions += sum(phase.decisions for phase in phases)
        finished = by_step([phase.episodes for phase in phases])
        episodes += len(finished)
        batches, rest = cut([*waiting, finished], config.batch_episodes, last=not running)
        waiting = [rest]
        window.extend(learner.update(batch) for batch in batches)
        if len(window) >= LOG_EVERY or not running:
            speed = decisions / (time.perf_counter() - began)
            mean = {key: float(np.mean([m[key] for m in window])) for key in window[0]}
            tracker.log(progress.decisions + decisions, mean | {"charts/SPS": speed})
            window = []
    progress.decisions += decisions
    progress.episodes += episodes
    progress.seconds += time.perf_counter() - began


def validate(learner: Learner, validator: Shard) -> dict[str, float]:
    """Solve rate, goodput, cost and violations on held-out tasks, without draws."""
    config = learner.config.validation
    rates = [config.rate_per_min] * config.rows
    done = validator.evaluate(learner.weights(), 0, rates)  # the same sweeps every time
    late = done.latency_s > done.budget_s
    return {
        "validation/solved": float(done.solved.mean()),
        "validation/goodput": float((done.solved * ~late).mean()),
        "validation/cost": float(done.cost.mean()),
        "validation/violation_rate": float(late.mean()),
        "validation/latency_s": float(done.latency_s.mean()),
    }


def policy_config(learner: Learner, progress: Progress, run: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of its policy and of how it was made."""
    return {
        "agent": "inframind",
        "network": learner.config.network(),
        "models": list(learner.facts["models"]),
        "strategies": list(learner.facts["strategies"]),
        "system_features": list(learner.config.env.system_features),
        "system_state": learner.config.executor.system_state,
        "multiplier": learner.multiplier.value,
        "training": {**run, **progress.as_dict()},
    }


def _save_best(
    out: Path, learner: Learner, best: Mapping[str, NDArray[Any]], progress: Progress, run: Any
) -> None:
    save(out / "best", best, policy_config(learner, progress, run))


def _report(progress: Progress, metrics: Mapping[str, float], learner: Learner) -> None:
    print(
        f"round {progress.round}: solved {metrics['validation/solved']:.3f}, goodput "
        f"{metrics['validation/goodput']:.3f}, late {metrics['validation/violation_rate']:.3f}, "
        f"lambda {learner.multiplier.value:.3f}, {progress.decisions} decisions, "
        f"{progress.decisions / progress.seconds:.0f}/s",
        file=sys.stderr,
        flush=True,
    )
