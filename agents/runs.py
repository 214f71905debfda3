"""Parts that trainings share: the world, seeds by use, folders to go on from, weights as arrays."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from inframind_gym.configs import Positive, PositiveInt, StrictModel
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.tracker import METRICS, Tracker
from inframind_gym.policies import checkpoint
from inframind_gym.progress import say
from inframind_gym.simulator import SIMULATOR_VERSION
from inframind_gym.simulator.server.pool import Scheduler

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from inframind_gym.envs.routing import StreamVectorEnv
    from inframind_gym.policies import Policy

Array = NDArray[Any]

STATE, BEST = "state", "best"  # folders of checkpoints: where to go on from, and what to use
ADAM_STATE: Final = ("exp_avg", "exp_avg_sq", "step")


class StreamWorld(StrictModel):
    """A pool and a workload whose streams a policy is trained in."""

    pool: str = "b200-2gpu"
    workload: str = "all"
    capacity_per_min: Positive | None = None  # load 1; None: that of the informed bound


class WorldChoice(StrictModel):
    """The environment that a policy is trained in.

    Keys are those of `inframind_gym.envs.routing_config.EnvConfig`. Budgets are drawn from the
    workload's tiers; tasks come from the split "train", and those of the validation from "val".
    """

    pool: str = "b200-2gpu"
    workload: str = "all"
    tasks: str = "builtin"
    arrivals: str | dict[str, Any] = "poisson"
    scheduler: Scheduler | None = None
    execution: Literal["parallel", "sequential"] | None = None
    agents: dict[str, Any] | None = None
    metrics_poll_s: Positive | None = None  # between two polls of the telemetry; None: the pool's

    def arguments(self, split: str) -> dict[str, Any]:
        """Keyword arguments of the environment."""
        return {**self.model_dump(), "split": split}

    def among(self, worlds: Sequence[StreamWorld]) -> list[StreamWorld]:
        """Return the worlds of a training, each with its capacity.

        A pool or a workload that is set chooses among `worlds`, or is a world of its own, whose
        capacity takes up to two minutes of one core.
        """
        named = {k: getattr(self, k) for k in ("pool", "workload") if k in self.model_fields_set}
        alone = StreamWorld(pool=self.pool, workload=self.workload)
        chosen = [w for w in worlds if named.items() <= w.model_dump().items()] or [alone]
        for i, place in enumerate(chosen):
            if place.capacity_per_min is None:
                from inframind_gym.evaluation.bounds import bound_of
                from inframind_gym.evaluation.scenarios import Scenario

                scenario = Scenario(workload=place.workload, pool=place.pool)
                capacity = bound_of(scenario).capacity_per_min()
                chosen[i] = place.model_copy(update={"capacity_per_min": capacity})
        return chosen


class EnvChoice(WorldChoice):
    """`WorldChoice` with the length of an episode and the observed telemetry."""

    num_queries: PositiveInt | None = None  # in one episode; without it the workload's
    system_features: tuple[Literal["queue", "e2e", "kv", "in_flight"], ...] = ("queue", "e2e")


def episodes(
    env: StreamVectorEnv, policy: Policy, seeds: Sequence[int], rates_per_min: Array
) -> tuple[Array, Array]:
    """Play exactly one episode in every row of an environment.

    Args:
        env: at level "joint", with observations by index.
        policy: plays all rows.
        seeds: (rows,) of the episodes and of the policy's draws.
        rates_per_min: (rows,) arrival rates.

    Returns:
        Rows (n,) and records (n,) COMPLETED of all queries, in the order of rows and queries.
    """
    options = {"arrival_rate_per_min": rates_per_min}
    observations, _ = env.reset(seed=list(seeds), options=options)
    policy.reset(env.policy_spec(), seeds)
    simulation, running, finished = env.simulation, np.ones(env.num_envs, np.bool_), []
    actions = np.zeros((env.num_envs, len(simulation.highs)), np.int64)
    while running.any():
        rows = np.flatnonzero(running)
        actions[rows] = policy.act_batch(observations[rows], env.contexts(rows), rows)
        simulation.step(rows, actions, observations)
        row, records = env.completed()
        finished.append((row[running[row]], records[running[row]]))
        running &= ~simulation.over()
    row, records = (np.concatenate(column) for column in zip(*finished, strict=True))
    order = np.lexsort((records["query"], row))
    return row[order], records[order]


@dataclass
class Run:
    """A training: its folder, seed, processes and trackers.

    Attributes:
        out: folder; the policy is written to `out/best`, metrics to `out/metrics.jsonl`.
        seed: same seed, same result.
        resume: go on from the state in `out`.
        track: "wandb", "tensorboard", or both.
        workers: processes that play.
        facts: what decides the result: configuration, seed and simulator version; see `begin`.
    """

    out: Path
    seed: int = 0
    resume: bool = False
    track: Sequence[str] = ()
    workers: int = 1
    facts: dict[str, Any] = field(default_factory=dict)

    def begin(self, config: StrictModel) -> tuple[dict[str, Array], dict[str, Any]] | None:
        """Record `facts`, and limit torch and BLAS to one thread: the matrices are small.

        Returns:
            The arrays and numbers that `save` wrote last; None of a new training.

        Raises:
            ConfigError: the folder holds a training and `resume` is not set, or another training;
                names the first key in which they differ.
        """
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        import_module("threadpoolctl").threadpool_limits(1)
        version = SIMULATOR_VERSION
        facts = {"config": config.model_dump(mode="json"), "seed": self.seed}
        self.facts = json.loads(json.dumps({**facts, "simulator_version": version}))
        if not checkpoint.exists(self.out / STATE):
            if self.resume:
                say(f"{self.out}: holds no state to go on from, this training begins.")
            elif (metrics := self.out / METRICS).is_file() and metrics.stat().st_size:
                raise ConfigError(
                    f"{self.out}: holds a training that was stopped before it saved a state; add "
                    "--resume to begin it again, or choose another --out."
                )
            return None
        if not self.resume:
            raise ConfigError(
                f"{self.out}: holds a training; add --resume to go on with it, or choose another "
                "--out."
            )
        arrays, numbers = checkpoint.load(self.out / STATE)
        saved = numbers.pop("run", {})
        with suppress(KeyError, ValidationError):  # keys that it lacks have their defaults
            complete = type(config).model_validate(saved["config"])
            saved["config"] = json.loads(json.dumps(complete.model_dump(mode="json")))
        if difference := _difference(saved, self.facts):
            raise ConfigError(
                f"{self.out}: the training there has another {difference}; resume it with its own "
                "configuration and seed, or choose another --out."
            )
        return arrays, numbers

    def save(self, arrays: checkpoint.Tensors, numbers: Mapping[str, Any]) -> None:
        """Write what the training goes on from."""
        checkpoint.save(self.out / STATE, arrays, {**numbers, "run": self.facts})

    def tracker(self, step: int) -> Tracker:
        """Return the writer of metrics, which goes on after a step."""
        tracker = Tracker(self.out, self.facts, self.track)
        tracker.rewind(step)  # metrics after the last state will be written again
        return tracker


def _difference(saved: Any, wanted: Any, path: str = "") -> str | None:
    """Return the first key in which two configurations differ, with both values."""
    if saved == wanted:
        return None
    if isinstance(saved, dict) and isinstance(wanted, dict):
        for key in {**saved, **wanted}:
            inside = f"{path}.{key}" if path else key
            if difference := _difference(saved.get(key), wanted.get(key), inside):
                return difference
    return f"{path} ({saved!r}, not {wanted!r})"


def seed_of(*key: int) -> int:
    """Return a seed in [0, 2^63) for a key, such as (seed of the training, use, update)."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def weights_of(net: nn.Module) -> dict[str, Array]:
    """Return copies of a network's weights, by their names."""
    return {name: value.detach().numpy().copy() for name, value in net.state_dict().items()}


def load_weights(net: nn.Module, arrays: Mapping[str, Array]) -> None:
    """Give a network the weights that `weights_of` returned."""
    import torch

    net.load_state_dict({name: torch.tensor(arrays[name]) for name in net.state_dict()})


def state_of(net: nn.Module, optimizer: Optimizer) -> dict[str, Array]:
    """Return copies of the weights, and of Adam's moments by "adam.<moment>.<parameter>"."""
    return weights_of(net) | {
        f"adam.{moment}.{name}": np.atleast_1d(optimizer.state[parameter][moment].numpy().copy())
        for name, parameter in net.named_parameters()
        for moment in ADAM_STATE
        if parameter in optimizer.state
    }


def load_state(net: nn.Module, optimizer: Optimizer, arrays: Mapping[str, Array]) -> None:
    """Give a network and its optimiser what `state_of` returned."""
    import torch

    load_weights(net, arrays)
    for name, parameter in net.named_parameters():
        if f"adam.step.{name}" in arrays:
            state = {m: torch.tensor(arrays[f"adam.{m}.{name}"]) for m in ADAM_STATE}
            optimizer.state[parameter] = state | {"step": state["step"].reshape(())}
