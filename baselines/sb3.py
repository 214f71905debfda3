"""Stable-Baselines3 on every environment: PPO, A2C, DQN and sb3-contrib's MaskablePPO.

    inframind train sb3_ppo --seed 0 --out runs/sb3_ppo/seed0
    inframind bench run --suite starter --policies sb3_ppo:runs/sb3_ppo/seed0 --out results/ppo

A training may take turns on several environments, whose networks share their weights. The network
that acts is exported to `out/best`, weights as safetensors and a JSON file, which NumPy alone
plays. MaskablePPO finds the masks of closed actions through `action_masks` of the environment; the
others meet them at play alone, by the policy that plays them. A training that was stopped starts
again; one that has finished is left as it is.

Stable-Baselines3 knows rewards of steps alone, and a query's reward comes many steps after its
decision. On environments with `credit=True` each decision gets its query's reward once it is over
(`CreditByQuery`), less a price of the seconds that it takes, which rises with the load of its GPU:

    credit = reward - min(gain · max(load - target, 0) · seconds, 1)

and the average of the weights is what plays: a snapshot of a closed loop can collapse under load.
With `lookahead` the next turn begins with it (Zhang et al., arXiv 1907.08610).
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterable
from typing import Any, Final, Literal

import gymnasium as gym
import numpy as np
import sb3_contrib
import stable_baselines3
import torch
from gymnasium import spaces
from pydantic import Field, model_validator
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

import inframind_gym  # noqa: F401
from agents.runs import BEST, Array, Run
from inframind_gym.configs import NonNegative, Positive, PositiveInt, StrictModel
from inframind_gym.envs.core import Float32s
from inframind_gym.envs.placement_kernel import GPU_FEATURES, MODEL_FEATURES
from inframind_gym.envs.routing_simulation import RoutingSimulation
from inframind_gym.envs.sb3 import SB3VecEnv
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.evaluation.tracker import Tracker
from inframind_gym.policies import checkpoint, mlp
from inframind_gym.policies.mlp import INPUTS, PARTS, inputs_of, take_apart
from inframind_gym.progress import ProgressReport
from inframind_gym.simulator.workflow.topology import MAX_NODES, STRATEGIES

LEARNERS: Final[dict[str, type[BaseAlgorithm]]] = {
    "ppo": stable_baselines3.PPO,
    "a2c": stable_baselines3.A2C,
    "dqn": stable_baselines3.DQN,
    "maskable_ppo": sb3_contrib.MaskablePPO,
}
COLUMNS: Final = ("observations", "actions", "action_masks")  # of buffers, where they have them
ACTIVATIONS: Final = {nn.Tanh: "tanh", nn.ReLU: "relu"}


class Price(StrictModel):
    """Price of a second of a server, by the calls in flight per slot of its GPU."""

    target: NonNegative  # load up to which seconds are free
    gain: NonNegative  # price of a second for each call per slot beyond that


class Sb3Config(StrictModel):
    """Configuration of a training, `baselines/configs/*.yaml`."""

    algorithm: Literal["sb3"] = "sb3"
    learner: Literal["ppo", "a2c", "dqn", "maskable_ppo"]
    env_id: str = "InfraMind-Stream-v0"
    env: dict[str, Any] = Field(default_factory=dict)  # arguments of the environment
    # values of further arguments: turns go round their product
    turns: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    turn_steps: PositiveInt | None = None  # decisions of all rows in a turn; None: all of them
    rows: PositiveInt  # environments side by side
    # shares of the capacity of a workload, each of some rows: an update sees all loads
    loads: tuple[Positive, ...] = ()
    capacity_per_min: dict[str, Positive] = Field(default_factory=dict)
    price: Price | None = None  # of environments with credit
    average_steps: PositiveInt | None = None  # time constant of the weights' average, which plays
    lookahead: bool = True  # a turn begins with the average
    steps: PositiveInt  # decisions of all rows
    net_arch: tuple[PositiveInt, ...] = (64, 64)  # widths of the hidden layers
    keep_bias: NonNegative | None = None  # of placement's network; see `Scorer`
    arguments: dict[str, Any] = Field(default_factory=dict)  # of the algorithm, SB3's names

    @model_validator(mode="after")
    def _credit_is_of_one_decision(self) -> Sb3Config:
        if self.env.get("credit") and self.arguments.get("gamma") != 0.0:
            raise ValueError("env.credit is of single decisions: arguments.gamma must be 0")
        if self.price is not None and self.env.get("observation") != "compact":
            raise ValueError("price reads the load of servers: env.observation must be compact")
        return self


class Watch(BaseCallback):
    """Callback that advances the report and averages the weights."""

    def __init__(self, config: Sb3Config, report: ProgressReport) -> None:
        super().__init__()
        self._config, self._report = config, report
        self._decisions = self._averaged_at = 0
        self.average: dict[str, torch.Tensor] = {}

    def _on_step(self) -> bool:
        self._decisions += self._config.rows
        self._report.advance(self._config.rows)
        return True

    def _on_rollout_start(self) -> None:
        """Move the average towards the weights that the last update has left."""
        if self._config.average_steps is None:
            return
        weights, passed = self.model.policy.state_dict(), self._decisions - self._averaged_at
        if passed:
            step = max(-math.expm1(-passed / self._config.average_steps), passed / self._decisions)
            for name, mean in self.average.items():
                mean.lerp_(weights[name], step)
        elif not self.average:
            self.average = {name: weight.clone() for name, weight in weights.items()}
        self._averaged_at = self._decisions


class CreditByQuery(BaseCallback):
    """Fills an algorithm's buffer with the decisions whose queries are over, and their credit.

    A query that is open at its deadline has failed then, and its decision pays for the seconds
    until then. Other open decisions wait for a later rollout; those of a stream that was cut are
    left out. Values and probabilities are those of the learning policy, not of the earlier one that
    took the decision: PPO clips around the former, as around the proximal policy of Hilton et al.
    (arXiv 2110.00641), but without its weight for the policy that acted. Unused places of a rollout
    get advantage 0, before the algorithm normalises advantages.

    Args:
        simulation: of the environments.
        price: of the servers' seconds.
    """

    def __init__(self, simulation: RoutingSimulation, price: Price | None) -> None:
        super().__init__()
        self._simulation, self._price = simulation, price
        shape = simulation.num_envs, simulation.num_queries, MAX_NODES
        self._rows = np.arange(shape[0])
        self._earned = np.full((2, *shape), np.nan, np.float32)  # reward, seconds
        # Columns of open decisions (see `_settle`), and of settled ones: credit, the buffer's.
        self._open, self._settled = list[list[Array]](), list[list[Array]]()

    def _on_training_start(self) -> None:
        self._decided = self._simulation.decisions.copy()
        model: Any = self.model
        self._buffer = getattr(model, "rollout_buffer", None) or model.replay_buffer
        self._columns = [name for name in COLUMNS if hasattr(self._buffer, name)]
        if isinstance(self._buffer, ReplayBuffer):
            self._buffer.add = lambda *_: None  # type: ignore[method-assign]  # see _on_rollout_end

    def _on_step(self) -> bool:
        due, over = self._decided, self.locals["dones"]
        facts = due["query"], due["node"], due["time_s"], due["arrival_s"] + due["budget_s"]
        shown = {"observations": self.model._last_obs, **self.locals}
        columns = (np.asarray(shown[name]).reshape(len(due), -1) for name in self._columns)
        self._open.append([self._rows, *facts, *columns])
        earned = self._simulation.earned()
        at = earned["row"], earned["query"], earned["node"]
        self._earned[:, *at] = earned["reward"], earned["seconds"]
        self._decided = self._simulation.decisions.copy()
        if over.any():
            self._settle(np.where(over, due["time_s"], self._decided["time_s"]), over)
            self._earned[:, over] = np.nan
        return True

    def _settle(self, now_s: Array, over: Array) -> None:
        """Credit decisions whose queries have ended or failed; drop the others of rows `over`."""
        columns = [np.concatenate(column) for column in zip(*self._open, strict=True)]
        row, query, node, time_s, due_s, seen, action = columns[:7]
        reward, seconds = self._earned[:, row, query, node]
        ended = ~np.isnan(reward)
        settled, credit = ended | (due_s < now_s[row]), np.where(ended, reward, 0.0)
        if self._price is not None:
            servers = self._simulation.layout.servers(seen)
            load = servers[np.arange(len(row)), action[:, 0] // len(STRATEGIES), 1]
            price = self._price.gain * np.maximum(load - self._price.target, 0.0)
            credit -= np.minimum(price * np.where(ended, seconds, due_s - time_s), 1.0)
        self._settled.append([column[settled] for column in (credit, *columns[5:])])
        self._open = [[column[~settled & ~over[row]] for column in columns]]

    def _on_rollout_end(self) -> None:
        self._settle(self._decided["time_s"], np.zeros(len(self._rows), np.bool_))
        columns = [np.concatenate(column) for column in zip(*self._settled, strict=True)]
        buffer, rows, size = self._buffer, len(self._rows), len(columns[0])
        if isinstance(buffer, ReplayBuffer):
            size -= size % rows
            for at in np.arange(size).reshape(-1, rows):
                credit, seen, action = (column[at] for column in columns)
                ReplayBuffer.add(buffer, seen, seen, action, credit, np.zeros(rows), [{}] * rows)
            if not buffer.size():  # SB3 would draw from nothing
                model: Any = self.model
                model.learning_starts = model.num_timesteps
        else:
            size = min(size, buffer.rewards.size)
            for name, column in zip(self._columns, columns[1:], strict=True):
                getattr(buffer, name).reshape(buffer.rewards.size, -1)[:size] = column[:size]
            policy: Any = self.model.policy
            shown, chosen, *masks = (torch.as_tensor(column[:size]) for column in columns[1:])
            if size:
                with torch.no_grad():
                    value, log_prob, _ = policy.evaluate_actions(shown, chosen[:, 0].long(), *masks)
                buffer.values.reshape(-1)[:size] = value[:, 0]
                buffer.log_probs.reshape(-1)[:size] = log_prob
            buffer.rewards[:] = buffer.values
            buffer.rewards.reshape(-1)[:size] = columns[0][:size]
            buffer.compute_returns_and_advantage(torch.zeros(rows, 1), np.zeros(rows))
        self._settled = [[column[size:] for column in columns]]


class TrackerWriter(KVWriter):
    """Writes SB3's metrics to a tracker; steps go on from turn to turn."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker, self.before = tracker, 0

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """Write the metrics of a step that are numbers."""
        numbers = {k: float(v) for k, v in key_values.items() if isinstance(v, int | float)}
        self.tracker.log(self.before + step, numbers)
        self.tracker.flush()

    def close(self) -> None:
        """Leave the tracker open for the next turn."""


def _network(inputs: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
        nn.Linear(hidden, 1),
    )  # fmt: skip


class Scorer(nn.Module):
    """Actor and critic of `MaskablePpoPlacement`; what SB3 calls an `mlp_extractor`.

    Args:
        gpus: G.
        models: M.
        hidden: width.
        keep_bias: initial bias of the score of leaving a GPU alone.
    """

    def __init__(self, gpus: int, models: int, hidden: int, keep_bias: float) -> None:
        super().__init__()
        self.gpus, self.models = gpus, models
        self.latent_dim_pi, self.latent_dim_vf = gpus * (models + 1), 2 * hidden
        self.actor = nn.ModuleDict({part: _network(INPUTS[part], hidden) for part in PARTS})
        for part in PARTS:
            last: Any = self.actor[part]
            nn.init.uniform_(last[-1].weight, -0.01, 0.01)
            nn.init.constant_(last[-1].bias, keep_bias if part == "keep" else 0.0)
        self.value_gpu = nn.Sequential(
            nn.Linear(GPU_FEATURES + MODEL_FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, hidden)
        )
        self.value_model = nn.Sequential(
            nn.Linear(MODEL_FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, hidden)
        )

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (n, G·(M + 1)), and the features of the value, (n, 2·hidden)."""
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        """Logits, (n, G·(M + 1))."""
        parts = take_apart(features, self.gpus, self.models)
        inputs = inputs_of(parts, torch)
        pair = self.actor["pair"](inputs["pair"])[..., 0]
        return torch.cat([self.actor["keep"](inputs["keep"]), pair], dim=-1).flatten(1)

    def forward_critic(self, features: torch.Tensor) -> torch.Tensor:
        """Features of the value, means over GPUs and over models, (n, 2·hidden)."""
        parts = take_apart(features, self.gpus, self.models)
        host = parts.bits[..., 0] @ parts.model
        of_gpus = self.value_gpu(torch.cat([parts.gpu, host], dim=-1)).mean(1)
        return torch.cat([of_gpus, self.value_model(parts.model).mean(1)], dim=-1)


class ScorerPolicy(MaskableActorCriticPolicy):
    """MaskablePPO's policy with a `Scorer`, whose scores are the logits themselves."""

    def __init__(self, *args: Any, hidden: int, keep_bias: float, **kwargs: Any) -> None:
        self._hidden, self._keep_bias = hidden, keep_bias
        super().__init__(*args, **{**kwargs, "ortho_init": False})

    def _build_mlp_extractor(self) -> None:
        assert isinstance(self.action_space, spaces.MultiDiscrete)
        choices = self.action_space.nvec
        self.mlp_extractor: Any = Scorer(
            len(choices), int(choices[0]) - 1, self._hidden, self._keep_bias
        )

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.action_net: Any = nn.Identity()
        arguments: dict[str, Any] = {"lr": lr_schedule(1), **self.optimizer_kwargs}
        self.optimizer = self.optimizer_class(self.parameters(), **arguments)


def make_envs(config: Sb3Config, **turn: Any) -> tuple[SB3VecEnv, VecEnv]:
    """Return the environments of a turn, and their wrapper (or themselves) for the algorithm.

    Raises:
        ConfigError: they cannot be made from these arguments.
    """
    made = gym.make_vec(config.env_id, num_envs=config.rows, **config.env, **turn)
    base = SB3VecEnv(made)
    if config.loads:
        workload = turn.get("workload", config.env.get("workload", ""))
        if workload not in config.capacity_per_min:
            raise ConfigError(f"loads: capacity_per_min names no rate of workload {workload!r}.")
        rates = config.capacity_per_min[workload] * np.resize(np.array(config.loads), config.rows)
        base.set_options([{"arrival_rate_per_min": rate} for rate in rates.tolist()])
    if config.keep_bias is not None:  # rewards of placement differ by the size of the cluster
        return base, VecNormalize(base, norm_obs=False, gamma=config.arguments.get("gamma", 0.99))
    return base, base


def make_learner(config: Sb3Config, envs: VecEnv, seed: int) -> BaseAlgorithm:
    """Return an algorithm on its environments.

    Raises:
        ConfigError: the algorithm has no such argument, and which is the nearest; or it refuses the
            value of one.
    """
    kind = LEARNERS[config.learner]
    known = inspect.signature(kind).parameters
    for name in config.arguments:
        if name not in known:
            raise ConfigError(f"arguments: {unknown('argument', name, known)}")
    policy: Any = "MlpPolicy"
    network: dict[str, Any] = {"net_arch": list(config.net_arch)}
    if config.keep_bias is not None:
        policy = ScorerPolicy
        network = {"hidden": config.net_arch[0], "keep_bias": config.keep_bias}
    fixed: dict[str, Any] = {"policy_kwargs": network, "seed": seed, "device": "cpu"}
    try:
        return kind(policy, envs, **fixed, **config.arguments)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"arguments: {config.learner} refuses them: {error}") from error


def tensors_of(modules: Iterable[nn.Module], prefix: str) -> dict[str, Float32s]:
    """Return weights (outputs, inputs) and biases (outputs,) of linear layers, numbered from 0."""
    linear = [module for module in modules if isinstance(module, nn.Linear)]
    return {
        f"{prefix}{i}.{name}": value.detach().numpy().astype(np.float32)
        for i, layer in enumerate(linear)
        for name, value in layer.named_parameters()
    }


def export_network(model: BaseAlgorithm) -> tuple[dict[str, Float32s], dict[str, Any]]:
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
    widths = [linear[0].in_features, *(layer.out_features for layer in linear)]
    facts = {"activation": between[0] if between else "relu", "layers": widths}
    return tensors_of(linear, "layer"), facts


def export_scorer(policy: ScorerPolicy) -> dict[str, Float32s]:
    """Return the tensors of the acting network, as its player takes them."""
    actor: Any = policy.mlp_extractor.actor
    return {k: v for part in PARTS for k, v in tensors_of(actor[part], part).items()}


def exported(
    config: Sb3Config, model: BaseAlgorithm, spec: Any
) -> tuple[dict[str, Float32s], dict[str, Any]]:
    """Return the tensors of a checkpoint, and its configuration for the policy that plays it."""
    facts: dict[str, Any]
    if config.keep_bias is not None:
        scorer: Any = model.policy
        facts = {"kind": mlp.MaskablePpoPlacement.kind, "hidden": config.net_arch[0]}
        return export_scorer(scorer), facts
    tensors, network = export_network(model)
    if config.env_id == "InfraMind-Assignment-v0":
        facts = {"kind": mlp.PpoAssignment.kind, "hidden": config.net_arch[0]}
        return tensors, facts | {"load": spec.config.load}
    if config.env_id == "InfraMind-TokenBudget-v0":
        facts = {"kind": mlp.MaskablePpoBudget.kind, "price": config.env["price"]}
        return tensors, facts | network
    if config.env_id == "InfraMind-Coordination-v0":
        return tensors, {"kind": mlp.MaskablePpoSupervisor.kind, **network}
    facts = {
        "models": list(spec.models),
        "strategies": list(spec.strategies),
        "observation": spec.layout.embedding,
        "queue_norm": spec.queue_norm,
    }
    facts |= {"kind": mlp.Sb3Policy.kind, "algorithm": config.learner}
    return tensors, network | facts


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
    turn_steps = config.turn_steps or config.steps
    combinations = itertools.product(*config.turns.values())
    places = [dict(zip(config.turns, values, strict=True)) for values in combinations]
    made: dict[str, tuple[SB3VecEnv, VecEnv, BaseAlgorithm, list[BaseCallback]]] = {}
    weights, optimizer = dict[str, Any](), dict[str, Any]()
    result: dict[str, Any] = {"timesteps": 0, "last_mean_return": {}}
    report = ProgressReport(config.steps, 0, f"{config.learner} on {config.env_id}", "decisions")
    with run.tracker(-1) as tracker, report:
        writer, watch = TrackerWriter(tracker), Watch(config, report)
        for turn in range(math.ceil(config.steps / turn_steps)):
            place = places[turn % len(places)]
            name = "/".join(map(str, place.values())) or config.env_id
            if name not in made:
                base, envs = make_envs(config, **place)
                model = make_learner(config, envs, run.seed + len(made))
                model.set_logger(Logger(None, [writer]))
                callbacks: list[BaseCallback] = [watch]
                if config.env.get("credit"):
                    callbacks.append(CreditByQuery(base.batch.simulation, config.price))
                made[name] = base, envs, model, callbacks
            base, envs, model, callbacks = made[name]
            if weights:
                model.policy.load_state_dict(weights)
                model.policy.optimizer.load_state_dict(optimizer)
            before, every = model.num_timesteps, 1000 if config.learner == "dqn" else 10
            writer.before = result["timesteps"] - before
            model.learn(
                turn_steps,
                log_interval=every,  # rollouts; DQN's episodes
                callback=callbacks,
                reset_num_timesteps=False,
            )
            optimizer = model.policy.optimizer.state_dict()
            weights = {name: weight.clone() for name, weight in model.policy.state_dict().items()}
            if watch.average:
                model.policy.load_state_dict(watch.average)
                weights = watch.average if config.lookahead else weights
            result["timesteps"] += model.num_timesteps - before
            if base.returns:
                mean = round(float(np.mean(base.returns)), 4)
                result["last_mean_return"][name] = mean
                tracker.log(result["timesteps"], {f"charts/episodic_return/{name}": mean})
                tracker.flush()
            result["episodes"] = sum(base.episodes for base, *_ in made.values())
            tensors, network = exported(config, model, base.batch.policy_spec())
            checkpoint.save(run.out / BEST, tensors, network | {"training": run.facts | result})
    for _, envs, *_ in made.values():
        envs.close()
    run.save({}, result)
    return result
