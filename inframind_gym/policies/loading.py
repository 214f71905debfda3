"""Routing policies: how one is found by name or path, and what it has to be.

The built-in ones are `inframind_gym.policies.builtin`'s, others can be registered; the way from a
name to a policy is `inframind_gym.policies.registry`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.spec import PolicySpec
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.policies.base import (
    Action,
    BasePolicy,
    Completed,
    Context,
    Contexts,
    Policy,
    feedback_of,
    multiplier_of,
    stack_actions,
)
from inframind_gym.policies.builtin import AGENTS, BASELINES, BOUNDS
from inframind_gym.policies.registry import Registry


def check_policy(policy: object, path: str = "") -> None:
    """Check that an object can serve as a policy.

    Raises:
        ConfigError: it lacks `act`, `reset` or `name`; the message lists what is missing.
    """
    path = path or f"{type(policy).__module__}:{type(policy).__qualname__}"
    missing = [
        signature
        for method, signature in (
            ("reset", "reset(spec, seeds)"),
            ("act", "act(observation, context)"),
        )
        if not callable(getattr(policy, method, None))
    ]
    if isinstance(policy, BasePolicy) and (
        type(policy).act is BasePolicy.act and type(policy).act_batch is BasePolicy.act_batch
    ):
        missing.append("act(observation, context) or act_batch(observations, contexts, rows)")
    name = getattr(policy, "name", None)
    if not isinstance(name, str) or not name:
        missing.append("name (a non-empty string)")
    if missing:
        raise ConfigError(f"{path} is not a policy: it lacks {', '.join(missing)}")


class PerRowPolicy(BasePolicy):
    """Gives a policy that knows only single decisions one instance a row.

    What the instance of a row remembers or learns never reaches another row, so that a batch of n
    rows and n runs of one row give the same actions.
    """

    def __init__(self, first: Any, cls: type[Any], kwargs: dict[str, Any]) -> None:
        self.name = first.name
        for optional in ("requires", "fingerprint"):  # what the benchmark asks a policy for
            if hasattr(first, optional):
                setattr(self, optional, getattr(first, optional))
        self._make = cls
        self._kwargs = kwargs
        self.instances = [first]

    @property
    def multiplier(self) -> float | None:
        """That of the first row's instance, if it has one."""
        return multiplier_of(self.instances[0])

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Reset one instance for every seed."""
        super().reset(spec, seeds)
        while len(self.instances) < len(seeds):
            self.instances.append(self._make(**self._kwargs))
        for instance, seed in zip(self.instances, seeds, strict=False):
            instance.reset(spec, [seed])

    def act(self, observation: NDArray[np.float32], context: Context) -> Action:
        """The action of the row's own instance."""
        action: Action = self.instances[self.row].act(observation, context)
        return action

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The actions of `rows`, each from its own instance."""
        return stack_actions(
            [
                self.instances[row].act(observations[i], contexts[i])
                for i, row in enumerate(rows.tolist())
            ]
        )

    def observe(self, completed: Completed, row: int) -> None:
        """Hand the finished queries to the row's own instance, if it wants them."""
        observe = feedback_of(self.instances[row])
        if observe is not None:
            observe(completed, 0)


def _adopt(policy: Any, cls: type[Any], kwargs: dict[str, Any], path: str) -> Policy:
    check_policy(policy, path)
    if getattr(cls, "act_batch", BasePolicy.act_batch) is BasePolicy.act_batch:
        return PerRowPolicy(policy, cls, kwargs)
    return cast(Policy, policy)


_POLICIES: Final = Registry[Policy]("policy", _adopt, (*BASELINES, *AGENTS, *BOUNDS))


register_policy = _POLICIES.register
registered_policies = _POLICIES.entries
resolve_policy = _POLICIES.resolve
load_policy = _POLICIES.load  # one with `act` and no `act_batch` of its own: in `PerRowPolicy`


def make(name: str, **kwargs: Any) -> Policy:
    """Make a registered policy from its name, with arguments after colons or as keywords.

    Args:
        name: for example "least_loaded" or "static:llama-8b:Flash".
        **kwargs: arguments of the policy's class.

    Raises:
        ConfigError: no policy of that name is registered (the nearest is suggested), or its class
            does not take these arguments.
    """
    known = tuple(entry.name for entry in registered_policies())
    head = name.split(":")[0]
    if head not in known:
        raise ConfigError(unknown("policy", head, known))
    return resolve_policy(name, **kwargs)
