"""Make a policy from a name or `package.module:Class`; the built-in policies of all families.

    resolve_policy("static:qwen-14b:Concise")                 # arguments follow the name
    resolve_policy("threshold", family="placement")
    resolve_policy("my_module:MyPolicy")                      # a policy of your own

A class is imported when its policy is made.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from contextlib import suppress
from typing import Any, Final, NamedTuple

from inframind_gym.errors import ConfigError, did_you_mean, unknown
from inframind_gym.policies.base import BasePolicy, Policy

ROUTING: Final = "routing"
# Family -> name and the arguments that may follow it -> module:Class of this package.
_BUILT_IN: Final = {
    ROUTING: {
        "random": "simple:RandomPolicy",
        "round_robin:strategy": "simple:RoundRobinPolicy",
        "static:model:strategy": "simple:StaticPolicy",
        "fixed_recipe:topology:num_agents:model:strategy": "fixed_recipe:FixedRecipePolicy",
        "fixed_recipe_by_rate": "fixed_recipe:FixedRecipeByRatePolicy",
        "planned:topology:num_agents:strategy:router": "fixed_recipe:PlannedPolicy",
        "static_mix": "simple:StaticMixPolicy",
        "least_loaded:strategy": "simple:LeastLoadedPolicy",
        "lowest_expected_latency": "simple:LowestExpectedLatencyPolicy",
        "budget_greedy": "simple:BudgetGreedyPolicy",
        "jsq": "simple:ShortestQueuePolicy",
        "sq2": "simple:PowerOfTwoPolicy",
        "spill": "simple:SpillPolicy",
        "backpressure:value": "simple:BackpressurePolicy",
        "adaptive": "adaptive:AdaptivePolicy",
        "adaptive_feedback": "adaptive:AdaptiveFeedbackPolicy",
        "moa": "simple:MixtureOfAgentsPolicy",
        "q_learning_load_tracker": "learners:QLearningLoadTrackerPolicy",
        "linucb": "learners:LinUCBPolicy",
        "gptswarm:edges": "simple:GPTSwarmPolicy",
        "sb3_ppo:folder": "mlp:PpoPolicy",
        "sb3_a2c:folder": "mlp:A2cPolicy",
        "sb3_dqn:folder": "mlp:DqnPolicy",
        "sb3_maskable_ppo:folder": "mlp:MaskablePpoPolicy",
        "bid_price:checkpoint": "bid_price:BidPricePolicy",
        "ppo_lagrangian:checkpoint:mode": "ppo_lagrangian:PpoLagrangianPolicy",
        "masrouter:checkpoint_folder": "networks:MasRouterPolicy",
        "inframind:checkpoint:mode": "networks:InfraMindPolicy",
        "inframind_v2:checkpoint:mode": "networks:InfraMindV2Policy",
    },
    "placement": {
        "random": "placement:RandomPlacement",
        "static": "placement:StaticPlacement",
        "lru": "placement:LruPlacement",
        "greedy": "placement:GreedyPlacement",
        "threshold": "placement:ThresholdPlacement",
        "mcf_spec": "mcf:SpecFlowPlacement",
        "mcf_plus": "mcf:PlusFlowPlacement",
        "sb3_maskable_ppo:folder": "mlp:MaskablePpoPlacement",
        "everywhere": "placement:EverywherePlacement",
    },
    "assignment": {
        "random": "assignment:RandomAssignment",
        "round_robin": "assignment:RoundRobinAssignment",
        "least_loaded": "assignment:LeastLoadedAssignment",
        "least_busy": "assignment:LeastBusyAssignment",
        "static_expert": "assignment:StaticExpertAssignment",
        "q_seed": "assignment:QSeedAssignment",
        "q_random_tie": "assignment:QRandomTieAssignment",
        "q_bandit": "assignment:QBanditAssignment",
        "q_production": "assignment:QProductionAssignment",
        "q_production_bootstrap": "assignment:QProductionBootstrapAssignment",
        "linucb": "assignment:LinUcbAssignment",
        "thompson": "assignment:ThompsonAssignment",
        "sb3_ppo:folder": "mlp:PpoAssignment",
        "myopic": "assignment:MyopicAssignment",
        "optimum": "assignment:OptimalAssignment",
    },
    "token_budget": {
        "random": "token_budget:RandomBudget",
        "single_shot": "token_budget:SingleShotBudget",
        "fixed_k:k": "token_budget:FixedCallsBudget",
        "spend_all": "token_budget:SpendAllBudget",
        "frontload": "token_budget:FrontloadBudget",
        "critique_heavy": "token_budget:CritiqueHeavyBudget",
        "adaptive_roi": "token_budget:AdaptiveRoiBudget",
        "adaptive_roi_strict": "token_budget:AdaptiveRoiStrictBudget",
        "sb3_maskable_ppo:folder": "mlp:MaskablePpoBudget",
        "optimum": "token_budget:OptimalBudget",
    },
    "coordination": {
        "random": "coordination:RandomSupervisor",
        "basic_rag": "coordination:BasicRag",
        "checked_rag": "coordination:CheckedRag",
        "seed_supervisor": "coordination:SeedSupervisor",
        "sequential_supervisor": "coordination:SequentialSupervisor",
        "always_plan": "coordination:AlwaysPlan",
        "no_validate": "coordination:NoValidate",
        "sb3_maskable_ppo:folder": "mlp:MaskablePpoSupervisor",
    },
}
_BOUNDS: Final = ("everywhere", "myopic", "optimum")  # see `PolicyEntry.bound`


class PolicyEntry(NamedTuple):
    """A built-in policy."""

    path: str  # `package.module:Class`, imported when the policy is made
    args: tuple[str, ...]  # keyword arguments that may follow the name after colons, in this order
    bound: bool  # it uses what no real policy can know: it is listed but never ranked


POLICIES: Final[dict[str, dict[str, PolicyEntry]]] = {
    family: {
        name: PolicyEntry(f"{__package__}.{path}", tuple(args), name in _BOUNDS)
        for usage, path in paths.items()
        for name, *args in [usage.split(":")]
    }
    for family, paths in _BUILT_IN.items()
}
"""Family -> name -> entry of the built-in policies."""


def policy_names(family: str = ROUTING) -> tuple[str, ...]:
    """Return the names of the built-in policies of a family, without the bounds."""
    return tuple(name for name, entry in POLICIES[family].items() if not entry.bound)


def resolve_policy(
    name_or_path: str, /, *, family: str = ROUTING, **kwargs: Any
) -> Policy[Any, Any]:
    """Make a policy from its name, its name with arguments, or `package.module:Class`.

    Args:
        name_or_path: for example "least_loaded", "static:llama-8b:Flash" or "my_policy:MyPolicy",
            which may be in the working directory. An empty argument ("ppo_lagrangian::sample") has
            its default.
        family: of the policy, a key of POLICIES.
        **kwargs: arguments of the class; JSON values, so that a run can be written down.

    Raises:
        ConfigError: nothing of that name (the nearest is suggested and all are listed), the module
            cannot be imported or has no such class, the class cannot serve or does not take these
            arguments.
    """
    noun, text = _noun(family), name_or_path.strip()
    name, *arguments = text.split(":")
    if (entry := POLICIES[family].get(name)) is not None:
        what = f"{noun} {name_or_path!r}"
        if len(arguments) > len(entry.args):
            usage = ":".join((name, *(arg.upper() for arg in entry.args)))
            raise ConfigError(f"{what} has too many arguments; write {usage}")
        for key, value in zip(entry.args, arguments, strict=False):
            if key in kwargs:
                raise ConfigError(f"{what}: {key} is given twice")
            if value:
                kwargs[key] = value
        text = entry.path
    elif len(arguments) != 1 or not all((arguments[0], *map(str.isidentifier, name.split(".")))):
        raise ConfigError(
            f"{unknown(noun, name, tuple(POLICIES[family]))} A policy of your own is written "
            "package.module:Class, for example my_policy:MyPolicy for the class MyPolicy in "
            "my_policy.py of this directory."
        )
    what = f"{noun} {text!r}"
    cls = _import_class(text, what, tuple(POLICIES[family]))
    _check_arguments(cls, what, kwargs)
    try:
        policy = cls(**kwargs)
    except ImportError as error:  # of an extra that is not installed
        raise ConfigError(f"{what} cannot be made: {error}") from error
    for registered, entry in POLICIES[family].items():
        if entry.path == text:  # by name or by class
            policy.bound = entry.bound
            if policy.name == BasePolicy.name:  # without arguments in it
                policy.name = registered
    check_policy(policy, text, family=family)
    checked: Policy[Any, Any] = policy
    return checked


def check_policy(policy: object, path: str = "", *, family: str = ROUTING) -> None:
    """Check that an object can serve as a policy.

    Raises:
        ConfigError: it lacks `name`, `reset` or `act_batch`; the message lists what is missing.
    """
    cls = type(policy)
    missing = [] if callable(getattr(policy, "reset", None)) else ["reset(spec, seeds)"]
    method = getattr(cls, "act_batch", None)
    if not callable(method) or method is BasePolicy.act_batch:
        missing.append("act_batch(observations, contexts, rows)")
    name = getattr(policy, "name", None)
    if not isinstance(name, str) or not name:
        missing.append("name (a non-empty string)")
    if missing:
        path = path or f"{cls.__module__}:{cls.__qualname__}"
        raise ConfigError(f"{path} is no {_noun(family)}: it lacks {', '.join(missing)}")


def _noun(family: str) -> str:
    return "policy" if family == ROUTING else f"{family.replace('_', '-')} policy"


def _import_class(path: str, what: str, names: tuple[str, ...]) -> type[Any]:
    """Import a class; the working directory is searched last, so that it hides nothing."""
    module_name, _, class_name = path.partition(":")
    cwd = os.getcwd()
    own = module_name.startswith("inframind_gym.")
    if not own and cwd not in sys.path and "" not in sys.path:
        sys.path.append(cwd)
        importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        problem = f"importing {module_name} failed with {error!r}"
        if missing and f"{module_name}.".startswith(f"{missing}."):
            hint = did_you_mean(module_name, names)
            if module_name.endswith(".py"):
                hint = f" Write it without the ending: {module_name.removesuffix('.py')}"
            problem = f"no module named {module_name!r}, also not in {cwd}.{hint}"
        raise ConfigError(f"{what}: {problem}") from error
    cls = getattr(module, class_name, None)
    if not inspect.isclass(cls):
        classes = [name for name, value in vars(module).items() if inspect.isclass(value)]
        raise ConfigError(f"{what}: {unknown('class', class_name, classes)}")
    if abstract := getattr(cls, "__abstractmethods__", None):
        lacks = ", ".join(sorted(abstract))
        raise ConfigError(f"{what}: {class_name} is abstract: it must define {lacks}")
    return cls


def _check_arguments(cls: type[Any], what: str, kwargs: dict[str, Any]) -> None:
    """Check that a class takes these arguments and JSON has them; read numbers."""
    parameters = inspect.signature(cls).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    try:
        json.dumps(kwargs)
        for key in kwargs:
            if key not in parameters and not takes_any:
                raise TypeError(unknown("argument", key, tuple(parameters)))
        inspect.signature(cls).bind(**kwargs)
    except TypeError as error:
        raise ConfigError(f"{what}: {error}") from error
    for key, value in kwargs.items():
        kind = str(parameters[key].annotation) if key in parameters else ""
        if isinstance(value, str) and kind.startswith(("int", "float")):
            with suppress(ValueError):  # what is no number is refused by the class
                kwargs[key] = int(value) if value.isdigit() else float(value)
