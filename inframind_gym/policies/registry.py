"""From a name or `package.module:Class` to a policy, for every family of policies.

A name may carry positional arguments after colons: `static:qwen-14b:Concise`. Everything that can
go wrong is a `ConfigError` that says what to do.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar

from inframind_gym.errors import ConfigError, did_you_mean, unknown

P = TypeVar("P")


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


def entry_of(folder: str, usage: str, where: str, summary: str) -> PolicyEntry:
    """Return the entry of a built-in policy.

    Args:
        folder: of `inframind_gym.policies`; "" for the package itself.
        usage: name:argument:argument.
        where: module:class in the folder.
        summary: one line for listings.
    """
    name, *args = usage.split(":")
    package = f"inframind_gym.policies.{folder}".rstrip(".")
    return PolicyEntry(name, f"{package}.{where}", tuple(args), summary)


def adopter(family: str, folder: str, base: str) -> Callable[..., Any]:
    """Return an `adopt` of `Registry` that asks for `reset` and `act_batch`.

    Args:
        family: name in messages.
        folder: of `inframind_gym.policies`, whose `protocol` is the interface.
        base: class of it that needs one method alone, as class.method.
    """
    name, method = base.split(".")

    def adopt(policy: Any, cls: type[Any], kwargs: dict[str, Any], path: str) -> Any:
        verbs = ("reset", "act_batch")
        missing = [verb for verb in verbs if not callable(getattr(policy, verb, None))]
        if missing:
            raise ConfigError(
                f"{family} {path!r} has no {' and no '.join(missing)}; see "
                f"inframind_gym.policies.{folder}.protocol: {name} needs only `{method}`"
            )
        return policy

    return adopt


class Registry(Generic[P]):
    """The policies of a family.

    Args:
        family: what they are called in messages.
        adopt: makes a policy of the family of an object, its class, the arguments that made it and
            its path; a ConfigError if that cannot serve.
        entries: the built-in policies.
        bounds: those that know what no policy knows: listed with the contestants, never ranked.
    """

    def __init__(
        self,
        family: str,
        adopt: Callable[[Any, type[Any], dict[str, Any], str], P],
        entries: Iterable[PolicyEntry],
        bounds: Iterable[PolicyEntry] = (),
    ) -> None:
        self._family = family
        self._adopt = adopt
        self._bounds = {entry.name: entry for entry in bounds}
        self._entries = {entry.name: entry for entry in entries} | self._bounds

    def register(self, entry: PolicyEntry) -> None:
        """Enter a policy under its name. Entering the same one again changes nothing.

        Raises:
            ConfigError: the name is taken by another policy, or contains a colon.
        """
        if ":" in entry.name or not entry.name:
            raise ConfigError(
                f"{self._family} name {entry.name!r} must be non-empty and without a colon"
            )
        if self._entries.setdefault(entry.name, entry) != entry:
            taken = self._entries[entry.name].path
            raise ConfigError(
                f"{self._family} name {entry.name!r} is already registered for {taken}"
            )

    def entries(self) -> tuple[PolicyEntry, ...]:
        """All registered policies, in the order of registration."""
        return tuple(self._entries.values())

    def names(self) -> tuple[str, ...]:
        """The names of the registered policies, without the bounds."""
        return tuple(name for name in self._entries if name not in self._bounds)

    def resolve(self, name_or_path: str, **kwargs: Any) -> P:
        """Make a policy from its name, its name with arguments, or `package.module:Class`.

        Args:
            name_or_path: for example "least_loaded", "static:llama-8b:Flash", "my_policy:MyPolicy".
                An argument that is left empty, "bid_price::no-state", has its default.
            **kwargs: arguments of the class; plain JSON values, so that a run can be written down.

        Raises:
            ConfigError: nothing of that name (the nearest is suggested and all are listed), too
                many or unknown arguments, or what `load` raises.
        """
        name, *arguments = name_or_path.strip().split(":")
        entry = self._entries.get(name)
        if entry is None:
            if len(arguments) == 1 and _looks_like_module(name):
                return self.load(name_or_path.strip(), **kwargs)
            raise ConfigError(
                f"{unknown(self._family, name, tuple(self._entries))} A policy of your own is "
                "written package.module:Class."
            )
        what = f"{self._family} {name_or_path!r}"
        if len(arguments) > len(entry.args):
            usage = ":".join((name, *(arg.upper() for arg in entry.args)))
            raise ConfigError(f"{what} has too many arguments; write {usage}")
        for key, value in zip(entry.args, arguments, strict=False):
            if key in kwargs:
                raise ConfigError(f"{what}: {key} is given twice")
            if value:
                kwargs[key] = value
        return self.load(entry.path, **kwargs)

    def load(self, path: str, **kwargs: Any) -> P:
        """Make a policy from `package.module:Class`, from the working directory too.

        Raises:
            ConfigError: the path is not of that form, the module cannot be imported, it has no such
                class, or the class cannot serve or does not take these arguments.
        """
        what = f"{self._family} {path!r}"
        module_name, _, class_name = path.partition(":")
        if not module_name or not class_name or not _looks_like_module(module_name):
            raise ConfigError(
                f"{self._family} path {path!r} is not of the form package.module:Class, for "
                "example my_policy:MyPolicy for the class MyPolicy in my_policy.py of this "
                "directory"
            )
        cls = _find_class(self._import(module_name, what), class_name, what)
        _check_arguments(cls, what, kwargs)
        try:
            policy = cls(**kwargs)
        except ImportError as error:  # of an extra that is not installed
            raise ConfigError(f"{what} cannot be made: {error}") from error
        return self._adopt(policy, cls, kwargs, path)

    def _import(self, module_name: str, what: str) -> ModuleType:
        """Import a module; the working directory is searched last, so that it hides nothing."""
        cwd = os.getcwd()
        added = cwd not in sys.path and "" not in sys.path and not _is_installed(module_name)
        if added:
            sys.path.append(cwd)
            importlib.invalidate_caches()
        try:
            return importlib.import_module(module_name)
        except Exception as error:
            if added:
                sys.path.remove(cwd)
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing and f"{module_name}.".startswith(f"{missing}."):
                hint = did_you_mean(module_name, tuple(self._entries))
                if module_name.endswith(".py"):
                    hint = f" Write it without the ending: {module_name.removesuffix('.py')}"
                message = f"{what}: no module named {module_name!r}, also not in {cwd}.{hint}"
            else:
                message = f"{what}: importing {module_name} failed with {error!r}"
            raise ConfigError(message) from error


def _is_installed(module_name: str) -> bool:
    """Return whether the package of a module is found without the working directory."""
    try:
        spec = importlib.util.find_spec(module_name.partition(".")[0])
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None  # a namespace may go on elsewhere


def _looks_like_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _find_class(module: ModuleType, class_name: str, what: str) -> type[Any]:
    if not hasattr(module, class_name):
        classes = [name for name, value in vars(module).items() if inspect.isclass(value)]
        raise ConfigError(f"{what}: {unknown('class', class_name, classes)}")
    found = getattr(module, class_name)
    abstract: frozenset[str] = getattr(found, "__abstractmethods__", frozenset())
    if not inspect.isclass(found):
        raise ConfigError(f"{what}: {class_name} is not a class but {found!r}")
    if abstract:
        missing = ", ".join(sorted(abstract))
        raise ConfigError(f"{what}: {class_name} is abstract: it must define {missing}")
    return found


def _check_arguments(cls: type[Any], what: str, kwargs: dict[str, Any]) -> None:
    try:
        json.dumps(kwargs)
    except TypeError as error:
        raise ConfigError(f"{what}: arguments must be plain JSON values: {error}") from error
    try:
        signature = inspect.signature(cls)
    except ValueError:  # a class written in C tells no signature; its constructor will judge
        return
    parameters = signature.parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        for key in kwargs:
            if key not in parameters:
                raise ConfigError(f"{what}: {unknown('argument', key, tuple(parameters))}")
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise ConfigError(f"{what}: {error}") from error
