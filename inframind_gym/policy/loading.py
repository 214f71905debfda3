"""From a name or `package.module:Class` to a policy.

Names live in a registry that packages outside fill (`import baselines` enters the heuristics), so
that this package depends on none of them. A name may carry positional arguments after colons:
`static:qwen-14b:Concise`. Everything that can go wrong is a `ConfigError` that says what to do.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, did_you_mean, unknown
from inframind_gym.policy.base import (
    Action,
    BasePolicy,
    Completed,
    Context,
    Contexts,
    Policy,
    feedback_of,
    multiplier_of,
)
from inframind_gym.policy.spec import PolicySpec


@dataclass(frozen=True)
class PolicyEntry:
    """A registered policy.

    Args:
        name: what users type; no colon.
        path: `package.module:Class`, imported when the policy is made.
        args: keyword arguments that may follow the name after colons, in this order.
        summary: one line for listings.
    """

    name: str
    path: str
    args: tuple[str, ...] = ()
    summary: str = ""


_REGISTRY: dict[str, PolicyEntry] = {}


def register_policy(entry: PolicyEntry) -> None:
    """Enter a policy under its name. Entering the same one again changes nothing.

    Raises:
        ConfigError: the name is taken by another policy, or contains a colon.
    """
    if ":" in entry.name or not entry.name:
        raise ConfigError(f"policy name {entry.name!r} must be non-empty and without a colon")
    if _REGISTRY.setdefault(entry.name, entry) != entry:
        taken = _REGISTRY[entry.name].path
        raise ConfigError(f"policy name {entry.name!r} is already registered for {taken}")


def registered_policies() -> tuple[PolicyEntry, ...]:
    """All registered policies, in the order of registration."""
    return tuple(_REGISTRY.values())


def resolve_policy(name_or_path: str, **kwargs: Any) -> Policy:
    """Make a policy from its name, its name with arguments, or `package.module:Class`.

    Args:
        name_or_path: for example "least_loaded", "static:llama-8b:Flash", "my_policy:MyPolicy".
        **kwargs: arguments of the class; plain JSON values, so that a run can be written down.

    Raises:
        ConfigError: nothing of that name (the nearest is suggested and all are listed), too many
            or unknown arguments, or what `load_policy` raises.
    """
    name, *arguments = name_or_path.strip().split(":")
    entry = _REGISTRY.get(name)
    if entry is None:
        if len(arguments) == 1 and _looks_like_module(name):
            return load_policy(name_or_path, **kwargs)
        remedy = "A policy of your own is written package.module:Class."
        if not _REGISTRY:
            remedy += " `import baselines` registers the heuristics."
        raise ConfigError(f"{unknown('policy', name, tuple(_REGISTRY))} {remedy}")
    if len(arguments) > len(entry.args):
        usage = ":".join((name, *(arg.upper() for arg in entry.args)))
        raise ConfigError(f"policy {name_or_path!r} has too many arguments; write {usage}")
    for key, value in zip(entry.args, arguments, strict=False):
        if key in kwargs:
            raise ConfigError(f"policy {name_or_path!r}: {key} is given twice")
        kwargs[key] = value
    return load_policy(entry.path, **kwargs)


def load_policy(path: str, **kwargs: Any) -> Policy:
    """Make a policy from `package.module:Class`, from the working directory too.

    A class that has `act` and no `act_batch` of its own is wrapped in `PerRowPolicy`: one instance
    a row.

    Raises:
        ConfigError: the path is not of that form, the module cannot be imported, it has no such
            class, the class lacks `act`, `reset` or `name`, or does not take these arguments.
    """
    module_name, _, class_name = path.partition(":")
    if not module_name or not class_name or not _looks_like_module(module_name):
        raise ConfigError(
            f"policy path {path!r} is not of the form package.module:Class, for example "
            "my_policy:MyPolicy for the class MyPolicy in my_policy.py of this directory"
        )
    cls = _find_class(_import(module_name, path), class_name, path)
    _check_arguments(cls, path, kwargs)
    policy = cls(**kwargs)
    check_policy(policy, path)
    if getattr(cls, "act_batch", BasePolicy.act_batch) is BasePolicy.act_batch:
        return PerRowPolicy(policy, cls, kwargs)
    return cast(Policy, policy)


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
        return np.array(
            [
                self.instances[row].act(observations[i], contexts[i])
                for i, row in enumerate(rows.tolist())
            ],
            np.int64,
        )

    def observe(self, completed: Completed, row: int) -> None:
        """Hand the finished queries to the row's own instance, if it wants them."""
        observe = feedback_of(self.instances[row])
        if observe is not None:
            observe(completed, 0)


def _looks_like_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _import(module_name: str, path: str) -> ModuleType:
    """Import a module; the working directory is searched last, so that it hides nothing."""
    cwd = os.getcwd()
    added = cwd not in sys.path and "" not in sys.path
    if added:
        sys.path.append(cwd)
        importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if added:
            sys.path.remove(cwd)
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            hint = did_you_mean(module_name, tuple(_REGISTRY))
            if module_name.endswith(".py"):
                hint = f" Write it without the ending: {module_name.removesuffix('.py')}"
            message = f"policy {path!r}: no module named {module_name!r}, also not in {cwd}.{hint}"
        else:
            message = f"policy {path!r}: importing {module_name} failed with {error!r}"
        raise ConfigError(message) from error
    return module


def _find_class(module: ModuleType, class_name: str, path: str) -> type[Any]:
    if not hasattr(module, class_name):
        classes = [name for name, value in vars(module).items() if inspect.isclass(value)]
        raise ConfigError(f"policy {path!r}: {unknown('class', class_name, classes)}")
    found = getattr(module, class_name)
    abstract: frozenset[str] = getattr(found, "__abstractmethods__", frozenset())
    if not inspect.isclass(found):
        raise ConfigError(f"policy {path!r}: {class_name} is not a class but {found!r}")
    if abstract:
        missing = ", ".join(sorted(abstract))
        raise ConfigError(f"policy {path!r}: {class_name} is abstract: it must define {missing}")
    return found


def _check_arguments(cls: type[Any], path: str, kwargs: dict[str, Any]) -> None:
    try:
        json.dumps(kwargs)
    except TypeError as error:
        message = f"policy {path!r}: arguments must be plain JSON values: {error}"
        raise ConfigError(message) from error
    try:
        signature = inspect.signature(cls)
    except ValueError:  # a class written in C tells no signature; its constructor will judge
        return
    parameters = signature.parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        for key in kwargs:
            if key not in parameters:
                raise ConfigError(f"policy {path!r}: {unknown('argument', key, tuple(parameters))}")
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise ConfigError(f"policy {path!r}: {error}") from error
