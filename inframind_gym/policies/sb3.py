"""Plays a policy that Stable-Baselines3 has trained: NumPy in float64, no torch, no pickle.

The action is the best one by the network, logits or values, among the models that are up. The
first layer is linear, so the parts of the query and of the role are projected once for every task
and every role, and a decision costs the 11 numbers of budget and telemetry and two small layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from inframind_gym.configs import PositiveInt, StrictModel, validate
from inframind_gym.envs.routing.layout import EMBED_DIM
from inframind_gym.errors import ConfigError
from inframind_gym.policies import BasePolicy, Contexts, PolicySpec, checkpoint, models_up
from inframind_gym.policies.checkpoint import SHIPPED
from inframind_gym.policies.draws import named

Activation = Callable[[NDArray[np.float64]], NDArray[np.float64]]
ACTIVATIONS: Final[dict[str, Activation]] = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0.0)}


class Sb3Checkpoint(StrictModel):
    """`config.json` of an exported policy."""

    kind: str  # "sb3"
    algorithm: str  # which one trained it
    activation: Literal["tanh", "relu"]  # between the layers
    layers: tuple[PositiveInt, ...]  # widths, the observation's first and the routes' last
    models: tuple[str, ...]  # aliases in the order of the action
    strategies: tuple[str, ...]  # names in the order of the action
    system_features: tuple[str, ...]  # telemetry that it was trained on, in this order
    queue_norm: float  # requests at which the queue feature is 1
    training: dict[str, Any]  # how it was made


class Sb3Policy(BasePolicy):
    """The best action of an exported network.

    Args:
        folder: checkpoint, or the folder of a training that holds one; the shipped one if None.

    Raises:
        ConfigError: there is no checkpoint, or it is of another algorithm or shape.
    """

    algorithm: ClassVar[str]

    def __init__(self, folder: str | None = None) -> None:
        short = f"sb3_{self.algorithm}"
        self.name = short if folder is None else named(short, folder)
        self.folder = SHIPPED / short if folder is None else _checkpoint_of(Path(folder))
        self._tensors, content = checkpoint.load(self.folder)
        self.config = validate(
            content, Sb3Checkpoint, source=str(self.folder / checkpoint.CONFIG_FILE)
        )
        self._check()
        self.requires = {"system_features": list(self.config.system_features)}
        self.fingerprint = checkpoint.fingerprint(self.folder)

    def _check(self) -> None:
        """Check that the tensors are those of the configured network."""
        config, layers = self.config, self.config.layers
        where = self.folder / checkpoint.CONFIG_FILE
        if config.kind != "sb3" or config.algorithm != self.algorithm:
            raise ConfigError(
                f"{where}: was trained by {config.algorithm!r} ({config.kind}), not by "
                f"{self.algorithm!r}; play it as sb3_{config.algorithm}:{self.folder}"
            )
        observed = 2 * EMBED_DIM + 1 + len(config.models) * len(config.system_features)
        routes = len(config.models) * len(config.strategies)
        if len(layers) < 2 or (layers[0], layers[-1]) != (observed, routes):
            raise ConfigError(
                f"{where}: layers: {list(layers)} must start with {observed} (the observation) and "
                f"end with {routes} (models x strategies)"
            )
        shapes: dict[str, tuple[int, ...]] = {}
        for i, (inputs, outputs) in enumerate(pairwise(layers)):
            shapes |= {f"layer{i}.weight": (outputs, inputs), f"layer{i}.bias": (outputs,)}
        checkpoint.check_shapes(self.folder, self._tensors, shapes)

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
                    f"train one for it: python -m baselines.sb3 --algorithm {self.algorithm}"
                )
        depth = len(config.layers) - 1
        self._layers = [
            (
                self._tensors[f"layer{i}.weight"].astype(np.float64).T,
                self._tensors[f"layer{i}.bias"].astype(np.float64),
            )
            for i in range(depth)
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

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The actions of `rows`; see `Policy.act_batch`."""
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


def _checkpoint_of(folder: Path) -> Path:
    """A checkpoint's folder: the one named, or `checkpoint` in that of a training."""
    inside = folder / "checkpoint"
    return inside if inside.is_dir() else folder


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
