"""Players of perceptrons that Stable-Baselines3 and sb3-contrib have trained: NumPy in float64.

No torch, no pickle. A checkpoint holds `layer0.weight`, `layer0.bias`, … and in `config.json` the
choices of its training. A player takes the open action of the largest logit or value; in placement,
where the network scores pairs of a GPU and a model, it draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.configs import NonNegative, PositiveInt, StrictModel
from inframind_gym.envs import assignment, coordination, token_budget
from inframind_gym.envs.core import Float32s, Floats, Ints
from inframind_gym.envs.layout import COMPACT_SEEN, Compact, ObservationLayout, PolicySpec
from inframind_gym.envs.placement import PlacementContext
from inframind_gym.envs.placement_kernel import GPU_FEATURES, MODEL_FEATURES, STATES
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.policies.base import BasePolicy, Contexts, models_up
from inframind_gym.policies.placement import BasePlacementPolicy
from inframind_gym.teams.assignment import rules as assignment_rules
from inframind_gym.teams.coordination import rules as coordination_rules
from inframind_gym.teams.token_budget import rules as token_budget_rules

ACTIVATIONS: Final[dict[str, Callable[..., NDArray[Any]]]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
}


class MlpCheckpoint(StrictModel):
    """Keys of every `config.json`."""

    kind: str
    training: dict[str, Any]  # how it was made


class ScorerCheckpoint(MlpCheckpoint):
    """`config.json` of a placement's networks."""

    hidden: PositiveInt  # width of the hidden layers


class AssignmentCheckpoint(ScorerCheckpoint):
    """`config.json` of a network for assignment: two hidden layers with tanh."""

    load: assignment.Load  # form of the environment


class TeamCheckpoint(MlpCheckpoint):
    """`config.json` of a network for a budget of tokens or for coordination."""

    activation: Literal["tanh", "relu"]  # between the layers
    layers: tuple[PositiveInt, ...]  # widths, the observation's first and the actions' last
    price: NonNegative | None = None  # of a token in the training, where there was one


class RoutingCheckpoint(TeamCheckpoint):
    """`config.json` of a router's network."""

    algorithm: str  # which one trained it
    models: tuple[str, ...]  # aliases in the order of the action
    strategies: tuple[str, ...]  # names in the order of the action
    observation: Literal["compact"]  # that it was trained on
    queue_norm: float  # requests at which the queue feature is 1


class Network(NamedTuple):
    """An opened checkpoint."""

    folder: Path
    tensors: checkpoint.Tensors
    config: Any  # of its policy's `schema`


def layer_shapes(layers: Sequence[int], prefix: str = "layer") -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the tensors of layers of some widths, input first."""
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (width, following) in enumerate(pairwise(layers)):
        shapes |= {f"{prefix}{i}.weight": (following, width), f"{prefix}{i}.bias": (following,)}
    return shapes


def forward(tensors: checkpoint.Tensors, x: NDArray[Any], activation: str = "tanh") -> Floats:
    """Return the outputs (n, a) for inputs (n, d), bit-equal for a row whatever the others are."""
    layers = len(tensors) // 2
    for i in range(layers):
        weight = tensors[f"layer{i}.weight"].astype(np.float64)
        x = np.einsum("ni,oi->no", x.astype(np.float64), weight) + tensors[f"layer{i}.bias"]
        x = ACTIVATIONS[activation](x) if i < layers - 1 else x
    return np.asarray(x, np.float64)


class MlpPolicy(BasePolicy[Any, Any]):
    """The best open action by a network.

    Args:
        folder: checkpoint, or the folder of a training that holds one in `best`; the shipped one if
            None.

    Raises:
        ConfigError: there is no checkpoint, or it is of another kind or shape.
    """

    short: ClassVar[str] = "sb3_maskable_ppo"  # name of the policy with the shipped checkpoint
    kind: ClassVar[str]  # of its checkpoints
    schema: ClassVar[type[MlpCheckpoint]] = TeamCheckpoint
    # folders of the shipped checkpoints, one for each form of the environment; (): `short` alone
    shipped: ClassVar[tuple[str, ...]] = ()
    sizes: ClassVar[tuple[int, int]]  # numbers of an observation, and actions

    def __init__(self, folder: str | None = None) -> None:
        self.name = self.short if folder is None else f"{self.short}:{folder}"
        shipped = [checkpoint.SHIPPED / place for place in self.shipped or (self.short,)]
        self.networks = [self._open(place) for place in ([Path(folder)] if folder else shipped)]
        self.folder, self._tensors, self.config = self.networks[0]
        self.fingerprint = " ".join(checkpoint.fingerprint(n.folder) for n in self.networks)

    def _open(self, folder: Path) -> Network:
        network = Network(*checkpoint.load_as(self.schema, folder))
        kind, source = network.config.kind, network.folder / checkpoint.CONFIG_FILE
        if kind != self.kind:
            raise ConfigError(f"{source}: kind is {kind!r}, not {self.kind!r}")
        checkpoint.check_shapes(network.folder, network.tensors, self.shapes(network))
        return network

    def shapes(self, network: Network) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of the tensors that a checkpoint must have.

        Raises:
            ConfigError: the layers do not lead from observations to actions.
        """
        layers = network.config.layers
        if len(layers) < 2 or (layers[0], layers[-1]) != self.sizes:
            raise ConfigError(
                f"{network.folder / checkpoint.CONFIG_FILE}: layers: {list(layers)} must start "
                f"with {self.sizes[0]} (the observation) and end with {self.sizes[1]} (the actions)"
            )
        return layer_shapes(layers)

    def act_batch(self, observations: Float32s, contexts: Any, rows: Ints) -> Ints:
        """Return the open action of the largest logit, (n,)."""
        logits = forward(self._tensors, observations, self.config.activation)
        return np.asarray(np.where(contexts.mask, logits, -np.inf).argmax(axis=1), np.int64)


class MaskablePpoBudget(MlpPolicy):
    """MaskablePPO for a budget of tokens, whose allocations start in the adaptive mode."""

    strategy: ClassVar[str] = "adaptive"
    kind = "token_budget_perceptron"
    shipped = ("token_budget_maskable_ppo",)
    sizes = token_budget.OBSERVATION_SIZE, token_budget_rules.NUM_ACTIONS


class MaskablePpoSupervisor(MlpPolicy):
    """MaskablePPO for coordination."""

    version = 2  # trained where what follows a trim is read again
    kind = "coordination_perceptron"
    shipped = ("coordination_maskable_ppo",)
    sizes = coordination.OBSERVATION_SIZE, coordination_rules.NUM_ACTIONS


class PpoAssignment(MlpPolicy):
    """The best action by a network of Stable-Baselines3's PPO, from the "flat" observation.

    There is a shipped checkpoint for each form of load.
    """

    name = short = "sb3_ppo"
    kind = "assignment_ppo"
    schema = AssignmentCheckpoint
    shipped = ("assignment_ppo/window", "assignment_ppo/queue")

    def shapes(self, network: Network) -> dict[str, tuple[int, ...]]:
        """Return those of two hidden layers."""
        config = network.config
        size = len(assignment.FLAT[config.load].box.low)
        return layer_shapes((size, config.hidden, config.hidden, assignment_rules.NUM_ACTIONS))

    def reset(self, spec: assignment.AssignmentSpec, seeds: Sequence[int]) -> None:
        """Take the network for the environment's form of load.

        Raises:
            ConfigError: the checkpoint is for the other form.
        """
        super().reset(spec, seeds)
        load, by_load = spec.config.load, {n.config.load: n.tensors for n in self.networks}
        if load not in by_load:
            raise ConfigError(
                f"policy {self.name!r} was trained for load {self.config.load!r}, not "
                f"{load!r}; train one: inframind train assignment_ppo --set env.load={load}"
            )
        self._tensors = by_load[load]

    def act_batch(
        self, observations: Float32s, contexts: assignment.AssignmentContext, rows: Ints
    ) -> Ints:
        """Return the best actions, (n,)."""
        flat = assignment.FLAT[self.spec.config.load].of(contexts)
        return np.asarray(forward(self._tensors, flat).argmax(axis=1))


class Sb3Policy(MlpPolicy):
    """The best route by an exported network, among the models that are up."""

    kind = "sb3"
    schema = RoutingCheckpoint
    version = 3  # trained with one agent, on streams, each decision learned when its query is over
    requires = MappingProxyType(
        {"system_features": list(COMPACT_SEEN), "planner": {"topology": "IO", "num_agents": 1}}
    )

    def shapes(self, network: Network) -> dict[str, tuple[int, ...]]:
        """Return those of layers from the observation to the routes."""
        config, algorithm = network.config, self.short.removeprefix("sb3_")
        if config.algorithm != algorithm:
            raise ConfigError(
                f"{network.folder / checkpoint.CONFIG_FILE}: was trained by {config.algorithm!r}, "
                f"not by {algorithm!r}; play it as sb3_{config.algorithm}:{network.folder}"
            )
        observed = ObservationLayout(len(config.models), "compact").size
        self.sizes = observed, len(config.models) * len(config.strategies)  # type: ignore[misc]
        return super().shapes(network)

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Check that the pool is the network's.

        Raises:
            ConfigError: the pool, the strategies or the observation are not those of the training.
        """
        super().reset(spec, seeds)
        config, seen = self.config, tuple(COMPACT_SEEN)
        for what, ours, theirs in (
            ("models", config.models, spec.models),
            ("strategies", config.strategies, spec.strategies),
            ("system_features", seen, spec.layout.system_features),
            ("queue_norm", config.queue_norm, spec.layout.queue_norm),
        ):
            if ours != theirs:
                raise ConfigError(
                    f"policy {self.name!r} was trained with {what} {ours}, this run has {theirs}; "
                    f"train one for it: inframind train {self.short}"
                )
        self._compact = Compact(spec, len(seeds))

    def act_batch(self, observations: Float32s, contexts: Contexts, rows: Ints) -> Ints:
        """Return the routes of `rows`, (n,)."""
        up = np.repeat(models_up(contexts, self.spec.num_models), self.spec.num_strategies, axis=1)
        time_s, query = contexts["time_s"], contexts["query"]
        self._compact.forget_begun(time_s, query, rows)
        seen = self._compact.of(observations, time_s, query, rows)
        values = np.where(up, self.values(seen), -np.inf)
        return np.asarray(values.argmax(axis=1), np.int64)

    def values(self, observations: Float32s) -> Floats:
        """Return the network's outputs, (n, A): logits, or DQN's values."""
        return forward(self._tensors, observations, self.config.activation)


class PpoPolicy(Sb3Policy):
    """Stable-Baselines3's PPO."""

    short = "sb3_ppo"


class A2cPolicy(Sb3Policy):
    """Stable-Baselines3's A2C."""

    short = "sb3_a2c"


class DqnPolicy(Sb3Policy):
    """Stable-Baselines3's DQN."""

    short = "sb3_dqn"


class MaskablePpoPolicy(Sb3Policy):
    """sb3-contrib's MaskablePPO."""


PARTS: Final = ("pair", "keep")  # networks of three layers
AROUND: Final = GPU_FEATURES + 2 * MODEL_FEATURES  # of a GPU: its own, its model's, the mean's
INPUTS: Final = {"pair": STATES + MODEL_FEATURES + AROUND, "keep": AROUND}
LAYERS: Final = 3


class Parts(NamedTuple):
    """An observation of a cluster taken apart; arrays or tensors with any leading axes."""

    bits: Any  # (..., G, M, STATES)
    gpu: Any  # (..., G, GPU_FEATURES)
    model: Any  # (..., M, MODEL_FEATURES)


def take_apart(observations: Any, gpus: int, models: int) -> Parts:
    """Split observations (n, d) of a cluster, NumPy's or PyTorch's."""
    width = STATES * models + GPU_FEATURES
    of_gpus = observations[:, : gpus * width].reshape(-1, gpus, width)
    bits = of_gpus[:, :, : STATES * models].reshape(-1, gpus, models, STATES)
    of_models = observations[:, gpus * width :].reshape(-1, models, MODEL_FEATURES)
    return Parts(bits, of_gpus[:, :, STATES * models :], of_models)


def inputs_of(parts: Parts, xp: Any) -> dict[str, Any]:
    """Return the inputs of the networks of a placement, by name; `xp` is numpy or torch."""
    host = parts.bits[..., 0] @ parts.model  # features of the model awake on each GPU
    mean = xp.broadcast_to(parts.model.mean(1)[:, None], host.shape)
    around = xp.concatenate([parts.gpu, host, mean], axis=-1)
    pairs = parts.bits.shape[:3]
    wide = xp.broadcast_to(around[:, :, None, :], (*pairs, AROUND))
    each = xp.broadcast_to(parts.model[:, None], (*pairs, MODEL_FEATURES))
    return {"pair": xp.concatenate([parts.bits, each, wide], axis=-1), "keep": around}


def placement_logits(
    tensors: Mapping[str, NDArray[Any]], observations: Float32s, gpus: int, models: int
) -> Floats:
    """Return scores (n, G, M + 1) of choices for observations (n, d); the first is to do nothing.

    The tensors are those of `MaskablePpoPlacement.shapes`.
    """
    parts = take_apart(observations.astype(np.float64), gpus, models)
    inputs = inputs_of(parts, np)

    def network(part: str, x: Floats) -> Floats:
        for i in range(LAYERS):
            x = x @ tensors[f"{part}{i}.weight"].T.astype(np.float64) + tensors[f"{part}{i}.bias"]
            x = np.tanh(x) if i < LAYERS - 1 else x
        return x

    scores = {part: network(part, inputs[part]) for part in PARTS}
    return np.concatenate([scores["keep"], scores["pair"][..., 0]], axis=-1)


class MaskablePpoPlacement(MlpPolicy, BasePlacementPolicy):
    """Draws every GPU's choice from a network's scores of the choices that are open to it.

    One small network scores every pair (GPU g, model m), another one leaving GPU g alone; the
    scores are the logits of a MultiDiscrete action. All weights are shared, so one checkpoint fits
    every cluster, whatever its order of GPUs and models. The input of a pair is the four bits of m
    on g, the features of g, those of m, those of the model that is awake on g (zeros if none is)
    and the mean over all models. `baselines.sb3.Scorer` is the same network in PyTorch.

    It draws because GPUs in the same state have the same scores: the best choice would give all of
    them the same model. Tensor-parallel groups that are drawn incomplete are left alone.
    """

    kind = "placement_scorer"
    schema = ScorerCheckpoint
    shipped = ("placement_maskable_ppo",)

    def shapes(self, network: Network) -> dict[str, tuple[int, ...]]:
        """Return those of both networks."""
        hidden = network.config.hidden
        widths = {part: (INPUTS[part], hidden, hidden, 1) for part in PARTS}
        return {k: v for part in PARTS for k, v in layer_shapes(widths[part], part).items()}

    def act_batch(self, observations: Float32s, contexts: PlacementContext, rows: Ints) -> Ints:
        """Return the drawn choices, (n, G)."""
        spec, shape = self.spec, (self.spec.num_gpus, self.spec.num_models)
        # Row by row, so that a row's bits do not depend on the others.
        scores = [placement_logits(self._tensors, row[None], *shape)[0] for row in observations]
        noise = [self.generators[row].gumbel(size=scores[0].shape) for row in rows.tolist()]
        perturbed = np.stack(scores) + np.stack(noise)
        actions = np.where(contexts.mask, perturbed, -np.inf).argmax(axis=-1)
        for m in np.flatnonzero(spec.tp > 1).tolist():
            for first in range(0, spec.num_gpus, int(spec.tp[m])):
                block = actions[:, first : first + int(spec.tp[m])]
                block[(block == m + 1) & ~(block == m + 1).all(axis=1, keepdims=True)] = 0
        return np.asarray(actions, dtype=np.int64)
