"""Stable-Baselines3 on every environment: PPO, A2C, DQN and sb3-contrib's MaskablePPO.

    inframind train sb3_ppo --seed 0 --out runs/sb3_ppo/seed0
    inframind bench run --suite starter --policies sb3_ppo:runs/sb3_ppo/seed0 --out results/ppo

A training may take turns on several environments, whose networks share their weights. The network
that acts is exported to `out/best`, weights as safetensors and a JSON file, which NumPy alone
plays. MaskablePPO finds the masks of closed actions through `action_masks` of the environment; the
others meet them at play alone, by the policy that plays them. A training that was stopped starts
again; one that has finished is left as it is.

Stable-Baselines3 knows rewards alone. A constraint on `info["cost"]` is a penalty: the agent is
paid reward - λ·cost, and λ is moved by dual ascent on the constraint that the mean cost of an
episode is at most a limit (InfraMind, arXiv 2606.11440, where the limit is 1), one step after every
batch of episodes:

    λ ← clip(λ + η·(mean episode cost - limit), 0, λ_max)

Costs have a heavy tail: under overload a query with a budget of 10 s may take 100 times that. A
step's penalty stops growing at `largest_step_cost`, for a query that is late is late; the update of
λ sees the costs as they are.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections import deque
from typing import Any, Final, Literal

import gymnasium as gym
import numpy as np
import sb3_contrib
import stable_baselines3
import torch
from numpy.typing import NDArray
from pydantic import Field
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize
from torch import nn

import inframind_gym  # noqa: F401
from agents.lagrangian import Multiplier
from agents.runs import BEST, Run
from baselines.placement_network import ScorerPolicy, export
from inframind_gym.configs import NonNegative, Positive, PositiveInt, StrictModel
from inframind_gym.envs.sb3 import SB3VecEnv
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.evaluation.tracker import Tracker
from inframind_gym.policies import checkpoint
from inframind_gym.policies.mlp import ASSIGNMENT, COORDINATION, PLACEMENT, ROUTING, TOKEN_BUDGET
from inframind_gym.progress import ProgressReport

LEARNERS: Final[dict[str, type[BaseAlgorithm]]] = {
    "ppo": stable_baselines3.PPO,
    "a2c": stable_baselines3.A2C,
    "dqn": stable_baselines3.DQN,
    "maskable_ppo": sb3_contrib.MaskablePPO,
}
ACTIVATIONS: Final = {nn.Tanh: "tanh", nn.ReLU: "relu"}
LATE: Final = 1.0  # an episode that costs more has taken longer than its budget
BUFFER_LENGTH: Final = 100  # episodes over which the logger averages, as SB3's own


class LagrangianSettings(StrictModel):
    """The dual update."""

    start: NonNegative  # λ at the start
    learning_rate: NonNegative  # η
    largest: NonNegative  # upper bound of λ
    cost_limit: Positive  # the mean cost of an episode that λ is moved towards
    every_episodes: PositiveInt  # episodes between two updates
    largest_step_cost: Positive  # cost of one step beyond which the penalty does not grow


class Sb3Config(StrictModel):
    """Configuration of a training, `baselines/configs/*.yaml`."""

    algorithm: Literal["sb3"] = "sb3"
    learner: Literal["ppo", "a2c", "dqn", "maskable_ppo"]
    env_id: str = "InfraMind-Executor-v0"
    env: dict[str, Any] = Field(default_factory=dict)  # arguments of the environment
    # values of further arguments: turns go round their product
    turns: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    turn_steps: PositiveInt | None = None  # decisions of all rows in a turn; None: all of them
    rows: PositiveInt  # environments side by side
    # arrival rates: row i keeps its own from episode to episode, so that an update sees all loads
    rates_per_min: tuple[Positive, ...] = ()
    lagrangian: LagrangianSettings | None = None
    steps: PositiveInt  # decisions of all rows
    net_arch: tuple[PositiveInt, ...] = (64, 64)  # widths of the hidden layers
    keep_bias: NonNegative | None = None  # of placement's network; see `placement_network.Scorer`
    arguments: dict[str, Any] = Field(default_factory=dict)  # of the algorithm, SB3's names


class LagrangianVecEnv(VecEnvWrapper):
    """Pay reward - λ·cost and move λ after every `every_episodes` episodes.

    Infos pass through, so that `info["episode"]` still holds the reward, length and cost of the
    task itself, which is what SB3 logs as `rollout/ep_rew_mean`; `info["reward"]` is the reward of
    the step without the penalty.

    Args:
        venv: environments whose infos hold "cost" in every step, one query an episode.
        settings: key `lagrangian` of a configuration.

    Attributes:
        multiplier: λ and its update.
        cost_queue: costs of the last 100 episodes.
    """

    def __init__(self, venv: VecEnv, settings: LagrangianSettings) -> None:
        super().__init__(venv)
        self.settings = s = settings
        start = min(s.start, s.largest)
        self.multiplier = Multiplier(start, s.learning_rate, s.cost_limit, s.largest)
        self.cost_queue: deque[float] = deque(maxlen=BUFFER_LENGTH)
        self._finished: list[float] = []  # costs of the episodes since the last update
        self._running = np.zeros(venv.num_envs)  # (E,) cost of each running episode

    def reset(self) -> Any:
        """Reset the environments; λ and what was learned of the costs stay."""
        self._running[:] = 0.0
        return self.venv.reset()

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Take the step and charge its cost.

        Returns:
            Observations, rewards (E,) less the penalty, dones (E,) and E infos.

        Raises:
            ConfigError: an info has no "cost".
        """
        observations, rewards, dones, infos = self.venv.step_wait()
        if any("cost" not in info for info in infos):
            raise ConfigError('lagrangian: a step\'s info has no "cost" in this environment')
        costs = np.array([info["cost"] for info in infos], np.float64)
        for info, reward in zip(infos, rewards.tolist(), strict=True):
            info["reward"] = reward
        penalty = self.multiplier.value * np.minimum(costs, self.settings.largest_step_cost)
        self._running += costs
        for cost in self._running[dones].tolist():
            self.cost_queue.append(cost)
            self._finished.append(cost)
            if len(self._finished) == self.settings.every_episodes:
                self.multiplier.update(float(np.mean(self._finished)))
                self._finished.clear()
        self._running[dones] = 0.0
        return observations, (rewards - penalty).astype(np.float32), dones, infos


class Watch(BaseCallback):
    """Advances the report, and adds λ, costs and violations to what the algorithm logs."""

    def __init__(self, envs: VecEnv, report: ProgressReport) -> None:
        super().__init__()
        self._envs, self._report = envs, report

    def _on_step(self) -> bool:
        self._report.advance(self._envs.num_envs)
        if isinstance(self._envs, LagrangianVecEnv):
            costs = np.array(self._envs.cost_queue)
            self.logger.record("lagrange/lambda", self._envs.multiplier.value)
            if len(costs):
                self.logger.record("charts/episodic_cost", float(costs.mean()))
                self.logger.record("charts/violation_rate", float((costs > LATE).mean()))
        return True


class TrackerWriter(KVWriter):
    """Writes what SB3 logs to a tracker; steps go on from turn to turn."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker, self.before = tracker, 0

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """Note the numbers of a step."""
        numbers = {k: float(v) for k, v in key_values.items() if isinstance(v, int | float)}
        self.tracker.log(self.before + step, numbers)
        self.tracker.flush()

    def close(self) -> None:
        """Leave the tracker open, for the next turn."""


def make_envs(config: Sb3Config, **turn: Any) -> tuple[SB3VecEnv, VecEnv]:
    """Return the environments of a turn, and the same as the algorithm sees them.

    Raises:
        ConfigError: they cannot be made from these arguments.
    """
    made = gym.make_vec(config.env_id, num_envs=config.rows, **config.env, **turn)
    base = SB3VecEnv(made)
    if config.rates_per_min:
        rates = np.resize(np.array(config.rates_per_min), config.rows).tolist()
        base.set_options([{"arrival_rate_per_min": rate} for rate in rates])
    if config.lagrangian is not None:
        return base, LagrangianVecEnv(base, config.lagrangian)
    if config.keep_bias is not None:  # rewards of placement differ by the size of the cluster
        gamma = config.arguments.get("gamma", 0.99)
        return base, VecNormalize(base, norm_obs=False, gamma=gamma)
    return base, base


def make_learner(config: Sb3Config, envs: VecEnv, seed: int) -> BaseAlgorithm:
    """Return an algorithm on its environments.

    Raises:
        ConfigError: the algorithm has no such argument; names the nearest.
    """
    kind = LEARNERS[config.learner]
    known = inspect.signature(kind).parameters
    for name in config.arguments:
        if name not in known:
            raise ConfigError(f"arguments: {unknown('argument', name, known)}")
    policy: Any = "MlpPolicy"
    widths = list(config.net_arch)
    policy_kwargs: dict[str, Any] = {"net_arch": widths}
    if config.keep_bias is not None:
        policy = ScorerPolicy
        policy_kwargs = {"hidden": widths[0], "keep_bias": config.keep_bias}
    arguments: Any = {"policy_kwargs": policy_kwargs, "seed": seed, "device": "cpu"}
    return kind(policy, envs, **arguments, **config.arguments)


def export_network(model: BaseAlgorithm) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
    """Return the acting network of a model: no pickle leaves the training.

    PPO, A2C and MaskablePPO act on its logits, DQN on its values; the best action is the largest of
    either. Weights keep PyTorch's layout, (outputs, inputs).

    Returns:
        Tensors "layer<i>.weight" (outputs, inputs) and "layer<i>.bias" (outputs,), and a
        description {"activation": "tanh", "layers": [779, 64, 64, 15]}.
    """
    policy: Any = model.policy
    if hasattr(policy, "q_net"):
        modules = list(policy.q_net.q_net)
    else:
        modules = [*policy.mlp_extractor.policy_net, policy.action_net]
    linear = [module for module in modules if isinstance(module, nn.Linear)]
    between = [ACTIVATIONS[type(m)] for m in modules if not isinstance(m, nn.Linear)]
    tensors: dict[str, NDArray[np.float32]] = {}
    for i, layer in enumerate(linear):
        tensors[f"layer{i}.weight"] = layer.weight.detach().numpy().astype(np.float32)
        tensors[f"layer{i}.bias"] = layer.bias.detach().numpy().astype(np.float32)
    widths = [linear[0].in_features, *(layer.out_features for layer in linear)]
    return tensors, {"activation": between[0] if between else "relu", "layers": widths}


def exported(
    config: Sb3Config, model: BaseAlgorithm, spec: Any
) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
    """Return the tensors of a checkpoint, and what it says of them to the policy that plays it."""
    if config.keep_bias is not None:
        scorer: Any = model.policy
        return export(scorer), {"kind": PLACEMENT, "hidden": config.net_arch[0]}
    tensors, network = export_network(model)
    if config.env_id == "InfraMind-Assignment-v0":
        form = {"hidden": config.net_arch[0], "load": spec.config.load}
        return tensors, {"kind": ASSIGNMENT, **form}
    if config.env_id == "InfraMind-TokenBudget-v0":
        return tensors, {"kind": TOKEN_BUDGET, **network, "price": config.env["price"]}
    if config.env_id == "InfraMind-Coordination-v0":
        return tensors, {"kind": COORDINATION, **network}
    facts = {
        "models": list(spec.models),
        "strategies": list(spec.strategies),
        "system_features": list(spec.layout.system_features),
        "queue_norm": spec.queue_norm,
    }
    return tensors, {"kind": ROUTING, "algorithm": config.learner, **network, **facts}


def train(config: Sb3Config, run: Run) -> dict[str, Any]:
    """Train turn by turn; the network that acts is in `run.out/best`.

    Returns:
        Decisions, and the mean return of the last 100 episodes, by turn.

    Raises:
        ConfigError: see `Run.begin`; or an argument is wrong.
    """
    saved = run.begin(config)
    if saved is not None:  # it has finished
        return dict(saved[1])
    torch.set_num_threads(1)
    turn_steps = config.turn_steps or config.steps
    values = itertools.product(*config.turns.values())
    places = [dict(zip(config.turns, of, strict=True)) for of in values]
    made: dict[str, tuple[SB3VecEnv, VecEnv, BaseAlgorithm]] = {}
    state: dict[str, Any] = {}
    result: dict[str, Any] = {"timesteps": 0, "last_mean_return": {}}
    report = ProgressReport(config.steps, 0, f"{config.learner} on {config.env_id}", "decisions")
    with run.tracker(-1) as tracker, report:
        writer = TrackerWriter(tracker)
        for turn in range(math.ceil(config.steps / turn_steps)):
            place = places[turn % len(places)]
            name = "/".join(map(str, place.values())) or config.env_id
            if name not in made:
                base, envs = make_envs(config, **place)
                model = make_learner(config, envs, run.seed + len(made))
                model.set_logger(Logger(None, [writer]))
                made[name] = base, envs, model
            base, envs, model = made[name]
            if state:
                model.policy.load_state_dict(state["policy"])
                model.policy.optimizer.load_state_dict(state["optimizer"])
            before, every = model.num_timesteps, 1000 if config.learner == "dqn" else 10
            writer.before = result["timesteps"] - before
            model.learn(
                turn_steps,
                log_interval=every,  # rollouts; DQN's episodes
                callback=Watch(envs, report),
                reset_num_timesteps=False,
            )
            optimizer = model.policy.optimizer.state_dict()
            state = {"policy": model.policy.state_dict(), "optimizer": optimizer}
            result["timesteps"] += model.num_timesteps - before
            if base.returns:
                mean = round(float(np.mean(base.returns)), 4)
                result["last_mean_return"][name] = mean
                tracker.log(result["timesteps"], {f"charts/episodic_return/{name}": mean})
                tracker.flush()
            if isinstance(envs, LagrangianVecEnv):
                result["last_lambda"] = envs.multiplier.value
                result["last_mean_cost"] = float(np.mean(envs.cost_queue or [math.nan]))
            result["episodes"] = sum(b.episodes for b, _, _ in made.values())
            tensors, network = exported(config, model, base.batch.policy_spec())
            content = {**network, "training": {**run.facts, **result}}
            checkpoint.save(run.out / BEST, tensors, content)
    for _, envs, _ in made.values():
        envs.close()
    run.save({}, result)
    return result
