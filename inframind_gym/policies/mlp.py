"""Players of perceptrons that Stable-Baselines3 and sb3-contrib have trained: NumPy in float64.

No torch, no pickle. A checkpoint holds `layer0.weight`, `layer0.bias`, … and in `config.json` what
its training has chosen. The player takes the best action that is open by the network's logits or
values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from inframind_gym.configs import NonNegative, PositiveInt, StrictModel, validate
from inframind_gym.envs import assignment, coordination, token_budget
from inframind_gym.envs.layout import EMBED_DIM, PolicySpec
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.policies.base import BasePolicy, Contexts, Ints, models_up
from inframind_gym.policies.checkpoint import SHIPPED
from inframind_gym.teams.assignment import rules as assignment_rules
from inframind_gym.teams.coordination import rules as coordination_rules
from inframind_gym.teams.token_budget import rules as token_budget_rules

ACTIVATIONS: Final[dict[str, Callable[..., NDArray[Any]]]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
}
# `kind` of the checkpoints of each family.
ROUTING: Final = "sb3"
ASSIGNMENT: Final = "assignment_ppo"
TOKEN_BUDGET: Final = "token_budget_perceptron"
COORDINATION: Final = "coordination_perceptron"


class MlpCheckpoint(StrictModel):
    """Keys of every `config.json`."""

    kind: str
    training: dict[str, Any]  # how it was made


class LayersCheckpoint(MlpCheckpoint):
    """`config.json` of a network that names its layers."""

    activation: Literal["tanh", "relu"]  # between the layers
    layers: tuple[PositiveInt, ...]  # widths, the observation's first and the actions' last


class TeamCheckpoint(LayersCheckpoint):
    """`config.json` of a network for a budget of tokens or for coordination."""

    price: NonNegative | None = None  # of a token in the training, where there was one


class RoutingCheckpoint(LayersCheckpoint):
    """`config.json` of a router's network."""

    algorithm: str  # which one trained it
    models: tuple[str, ...]  # aliases in the order of the action
    strategies: tuple[str, ...]  # names in the order of the action
    system_features: tuple[str, ...]  # telemetry that it was trained on, in this order
    queue_norm: float  # requests at which the queue feature is 1


class AssignmentCheckpoint(MlpCheckpoint):
    """`config.json` of a network for assignment: two hidden layers with tanh."""

    hidden: PositiveInt  # width of the hidden layers
    load: assignment.Load  # form of the environment


C = TypeVar("C", bound=MlpCheckpoint)


def open_mlp(folder: Path, schema: type[C], kind: str) -> tuple[Path, checkpoint.Tensors, C]:
    """Return the folder, the tensors and the configuration of a checkpoint.

    Args:
        folder: checkpoint, or that of a training with a folder `best` in it.
        schema: of its configuration.
        kind: that it must have.

    Raises:
        ConfigError: there is no checkpoint, or it is of another kind.
    """
    inside = folder / "best"
    folder = inside if inside.is_dir() else folder
    tensors, content = checkpoint.load(folder)
    source = str(folder / checkpoint.CONFIG_FILE)
    config = validate(content, schema, source=source)
    if config.kind != kind:
        raise ConfigError(f"{source}: kind is {config.kind!r}, not {kind!r}")
    return folder, tensors, config


def check_layers(
    folder: Path, tensors: checkpoint.Tensors, layers: Sequence[int], inputs: int, outputs: int
) -> None:
    """Check the shapes of layers of some widths.

    Raises:
        ConfigError: they do not lead from `inputs` to `outputs`, or a tensor is missing or of
            another shape.
    """
    if len(layers) < 2 or (layers[0], layers[-1]) != (inputs, outputs):
        raise ConfigError(
            f"{folder / checkpoint.CONFIG_FILE}: layers: {list(layers)} must start with {inputs} "
            f"(the observation) and end with {outputs} (the actions)"
        )
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (width, following) in enumerate(pairwise(layers)):
        shapes |= {f"layer{i}.weight": (following, width), f"layer{i}.bias": (following,)}
    checkpoint.check_shapes(folder, tensors, shapes)


def forward(
    tensors: checkpoint.Tensors, x: NDArray[Any], activation: str = "tanh"
) -> NDArray[np.float64]:
    """Return the outputs (n, a) for observations (n, d); a row's bits are its own."""
    layers = len(tensors) // 2
    for i in range(layers):
        weight = tensors[f"layer{i}.weight"].astype(np.float64)
        x = np.einsum("ni,oi->no", x.astype(np.float64), weight) + tensors[f"layer{i}.bias"]
        x = ACTIVATIONS[activation](x) if i < layers - 1 else x
    return np.asarray(x, np.float64)


class Sb3Policy(BasePolicy):
    """The best route by an exported network, among the models that are up.

    The first layer is linear, so the parts of the query and of the role are projected once for
    every task and every role, and a decision costs the numbers of budget and telemetry and two
    small layers.

    Args:
        folder: checkpoint, or the folder of a training that holds one; the shipped one if None.

    Raises:
        ConfigError: there is no checkpoint, or it is of another algorithm or shape.
    """

    algorithm: ClassVar[str]

    def __init__(self, folder: str | None = None) -> None:
        short = f"sb3_{self.algorithm}"
        self.name = short if folder is None else f"{short}:{folder}"
        place = SHIPPED / short if folder is None else Path(folder)
        self.folder, self._tensors, self.config = open_mlp(place, RoutingCheckpoint, ROUTING)
        config = self.config
        if config.algorithm != self.algorithm:
            raise ConfigError(
                f"{self.folder / checkpoint.CONFIG_FILE}: was trained by {config.algorithm!r}, not "
                f"by {self.algorithm!r}; play it as sb3_{config.algorithm}:{self.folder}"
            )
        observed = 2 * EMBED_DIM + 1 + len(config.models) * len(config.system_features)
        routes = len(config.models) * len(config.strategies)
        check_layers(self.folder, self._tensors, config.layers, observed, routes)
        self.requires = {"system_features": list(config.system_features)}
        self.fingerprint = checkpoint.fingerprint(self.folder)

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Check that the pool is the network's, and project the run's tasks and roles.

        Raises:
            ConfigError: the pool, the strategies or the observation are not those of the training.
        """
        super().reset(spec, seeds)
        config, layout = self.config, spec.layout
        for what, ours, theirs in (
            ("models", config.models, spec.models),
            ("strategies", config.strategies, spec.strategies),
            ("system_features", config.system_features, layout.system_features),
            ("queue_norm", config.queue_norm, layout.queue_norm),
        ):
            if ours != theirs:
                raise ConfigError(
                    f"policy {self.name!r} was trained with {what} {ours}, this run has {theirs}; "
                    f"train one for it: inframind train sb3_{self.algorithm}"
                )
        self._layers = [
            (
                self._tensors[f"layer{i}.weight"].astype(np.float64).T,
                self._tensors[f"layer{i}.bias"].astype(np.float64),
            )
            for i in range(len(config.layers) - 1)
        ]
        first = self._layers[0][0]
        self._of_query, self._of_role = first[:EMBED_DIM], first[EMBED_DIM : 2 * EMBED_DIM]
        self._of_resource = first[2 * EMBED_DIM :]
        if layout.embedding == "index":
            if not len(spec.task_embeddings):
                raise ConfigError(
                    f"policy {self.name!r} needs the embeddings of the tasks; make the environment "
                    'with observation="full", or use a PolicySpec with task_embeddings'
                )
            self._tasks = spec.task_embeddings.astype(np.float64) @ self._of_query
            self._roles = spec.role_embeddings.astype(np.float64) @ self._of_role

    def act_batch(self, observations: NDArray[np.float32], contexts: Contexts, rows: Ints) -> Ints:
        """Return the routes of `rows`, (n,)."""
        up = np.repeat(models_up(contexts, self.spec.num_models), self.spec.num_strategies, axis=1)
        values = np.where(up, self.values(observations), -np.inf)
        return np.asarray(values.argmax(axis=1), np.int64)

    def values(self, observations: NDArray[np.float32]) -> NDArray[np.float64]:
        """The network's outputs, (n, A): logits, or DQN's values."""
        layout = self.spec.layout
        if layout.embedding == "index":
            hidden = self._tasks[layout.query_index(observations)]
            hidden = hidden + self._roles[layout.role_index(observations)]
        else:
            hidden = observations[:, layout.query].astype(np.float64) @ self._of_query
            hidden += observations[:, layout.role].astype(np.float64) @ self._of_role
        hidden += observations[:, layout.resource].astype(np.float64) @ self._of_resource
        hidden += self._layers[0][1]
        for weight, bias in self._layers[1:]:
            hidden = ACTIVATIONS[self.config.activation](hidden) @ weight + bias
        return np.asarray(hidden, np.float64)


class PpoPolicy(Sb3Policy):
    """Stable-Baselines3's PPO."""

    algorithm = "ppo"


class A2cPolicy(Sb3Policy):
    """Stable-Baselines3's A2C."""

    algorithm = "a2c"


class DqnPolicy(Sb3Policy):
    """Stable-Baselines3's DQN."""

    algorithm = "dqn"


class MaskablePpoPolicy(Sb3Policy):
    """sb3-contrib's MaskablePPO."""

    algorithm = "maskable_ppo"


class MaskedMlp(BasePolicy[Any, Any]):
    """The best open action of a team's network, by sb3-contrib's MaskablePPO.

    Args:
        folder: checkpoint, or the folder of a training that holds one; the shipped one if None.

    Raises:
        ConfigError: there is no checkpoint, or it is of another kind or shape.
    """

    kind: ClassVar[str]
    shipped: ClassVar[Path]
    sizes: ClassVar[tuple[int, int]]  # of an observation, and number of actions

    def __init__(self, folder: str | None = None) -> None:
        self.name = "sb3_maskable_ppo" if folder is None else f"sb3_maskable_ppo:{folder}"
        place = self.shipped if folder is None else Path(folder)
        self.folder, self._tensors, self.config = open_mlp(place, TeamCheckpoint, self.kind)
        check_layers(self.folder, self._tensors, self.config.layers, *self.sizes)
        self.fingerprint = checkpoint.fingerprint(self.folder)

    def act_batch(self, observations: NDArray[np.float32], contexts: Any, rows: Ints) -> Ints:
        """Return the open action of the largest logit, (n,)."""
        logits = forward(self._tensors, observations, self.config.activation)
        return np.asarray(np.where(contexts.mask, logits, -np.inf).argmax(axis=1), np.int64)


class MaskablePpoBudget(MaskedMlp):
    """MaskablePPO for a budget of tokens, whose allocations start in the adaptive mode."""

    strategy: ClassVar[str] = "adaptive"
    kind = TOKEN_BUDGET
    shipped = SHIPPED / "token_budget_maskable_ppo"
    sizes = token_budget.OBSERVATION_SIZE, token_budget_rules.NUM_ACTIONS


class MaskablePpoSupervisor(MaskedMlp):
    """MaskablePPO for coordination."""

    version = 2  # trained where what follows a trim is read again
    kind = COORDINATION
    shipped = SHIPPED / "coordination_maskable_ppo"
    sizes = coordination.OBSERVATION_SIZE, coordination_rules.NUM_ACTIONS


class PpoAssignment(BasePolicy[assignment.AssignmentSpec, assignment.AssignmentContext]):
    """The best action by a network of Stable-Baselines3's PPO, from the "flat" observation.

    Args:
        folder: checkpoint, or the folder of a training that holds one; if None the shipped ones,
            one for each form of load.

    Raises:
        ConfigError: there is no checkpoint, or it is of another kind or shape.
    """

    name = "sb3_ppo"

    def __init__(self, folder: str | None = None) -> None:
        shipped = SHIPPED / "assignment_ppo"
        places = [shipped / "window", shipped / "queue"] if folder is None else [Path(folder)]
        self._networks: dict[str, checkpoint.Tensors] = {}
        prints = []
        for place in places:
            where, tensors, config = open_mlp(place, AssignmentCheckpoint, ASSIGNMENT)
            size = assignment.flat_space(config.load == "queue")[0].shape[0]
            widths = (size, config.hidden, config.hidden, assignment_rules.NUM_ACTIONS)
            check_layers(where, tensors, widths, widths[0], widths[-1])
            self._networks[config.load] = tensors
            prints.append(checkpoint.fingerprint(where))
        self.fingerprint = " ".join(prints)

    def reset(self, spec: assignment.AssignmentSpec, seeds: Sequence[int]) -> None:
        """Take the network of the form of load.

        Raises:
            ConfigError: the checkpoint is of the other form.
        """
        super().reset(spec, seeds)
        load = spec.config.load
        if load not in self._networks:
            raise ConfigError(
                f"policy {self.name!r} was trained for load {next(iter(self._networks))!r}, not "
                f"{load!r}; train one: inframind train assignment_ppo --set env.load={load}"
            )
        self._tensors = self._networks[load]

    def act_batch(
        self,
        observations: NDArray[np.float32],
        contexts: assignment.AssignmentContext,
        rows: Ints,
    ) -> Ints:
        """Return the best actions, (n,)."""
        seen = assignment.write_flat(contexts, self.spec.config.queues)
        return np.asarray(forward(self._tensors, seen).argmax(axis=1))
