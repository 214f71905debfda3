"""`inframind train CONFIG`: trainings of the agents and of the baselines.

Their code is a laboratory, not a library: the folders `agents` and `baselines` of a checkout, or
copies inside of a wheel that only this command finds. It needs the extra `agents`.
"""

from __future__ import annotations

import importlib
import json
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from inframind_gym.configs import StrictModel, load_yaml_model, read_setting, validate
from inframind_gym.errors import ConfigError, did_you_mean, needs, require, unknown
from inframind_gym.evaluation.tracker import trackers_of
from inframind_gym.progress import say

_PACKAGE: Final = Path(__file__).resolve().parent
_ROOTS: Final = (_PACKAGE.parent, _PACKAGE / "_laboratory")  # in a checkout, in a wheel
TRAINERS: Final = {  # algorithm of a configuration -> module with `train(config, run)`
    "bid_price": "agents.bid_price.training",
    "ppo_lagrangian": "agents.ppo_lagrangian",
    "inframind": "agents.inframind",
    "masrouter": "agents.masrouter",
    "sb3": "baselines.sb3",
    "gptswarm": "baselines.gptswarm",
}


def train(
    config: Annotated[
        str, typer.Argument(help="YAML file, or the name of a shipped one: bid_price, sb3_ppo, …")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the training.")],
    pool: Annotated[
        str | None, typer.Option(help="Pool to train for, a name or a YAML file: env.pool.")
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="Workload to train on, a name or a YAML file: env.workload.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same result.", min=0)] = 0,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Length, in the unit of the configuration's key `steps`; bid_price has `survey`.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes that play.", min=1)] = 1,
    resume: Annotated[
        bool, typer.Option(help="Go on from the last state in --out; without one, begin again.")
    ] = False,
    track: Annotated[
        str, typer.Option(help="wandb, tensorboard, or both with a comma (extra `track`).")
    ] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a key of the configuration: executor.lr=1e-4."),
    ] = None,
) -> None:
    """Train a policy: the best one is written to OUT/best, metrics to OUT/metrics.jsonl.

    It plays as `inframind bench run --policies NAME:OUT/best`, on its own pool.
    """
    require("threadpoolctl", "`inframind train`", "agents")
    trackers = trackers_of(track)
    named = {"env.pool": pool, "env.workload": workload, "steps": steps}
    changes = [f"{key}={value}" for key, value in named.items() if value is not None]
    function, checked = read_config(config, [*changes, *(set_ or [])])
    if workers > 1 and "bid_price" not in function.__module__:
        raise ConfigError(f"--workers: {config} trains in one process.")
    runs = importlib.import_module("agents.runs")
    run = runs.Run(out, seed, resume, trackers, workers)
    try:
        result = function(checked, run)
    except KeyboardInterrupt:
        kept = (out / runs.STATE).is_dir()
        then = "--resume goes on from the last state in" if kept else "no state was written yet to"
        say(f"stopped; {then} {out}.")
        raise typer.Exit(130) from None
    print(json.dumps(result, default=str))


def laboratory() -> Path:
    """Return the folder of `agents` and `baselines`; make both importable.

    Raises:
        ConfigError: this installation has none.
    """
    for root in _ROOTS:
        if (root / "agents" / "runs.py").is_file() and (root / "baselines" / "sb3.py").is_file():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))  # processes of a training inherit it
            return root
    raise ConfigError(
        "this installation has no trainers. Install the wheel again, or train in a checkout."
    )


def configurations() -> dict[str, Path]:
    """Return the shipped configurations by name."""
    root = laboratory()
    return {
        path.stem: path
        for folder in ("agents", "baselines")
        for path in sorted((root / folder / "configs").glob("*.yaml"))
    }


class _Header(StrictModel, extra="allow"):
    """The key that every configuration has; the model of the algorithm checks the others."""

    algorithm: str


def read_config(
    name_or_path: str, changes: typing.Sequence[str] = ()
) -> tuple[Callable[..., Any], Any]:
    """Return the function that trains, and its configuration.

    The annotation of its argument `config` is the pydantic model that checks the file.

    Changes are "key=value" or "group.key=value", the value as in YAML.

    Raises:
        ConfigError: there is no such file, algorithm or key, a value is wrong, or a package is
            missing.
    """
    shipped, path = configurations(), Path(name_or_path)
    if not path.is_file():
        if name_or_path not in shipped:
            hint = did_you_mean(path.stem, shipped)
            raise ConfigError(f"{path}: no such file.{hint} Shipped: {', '.join(shipped)}.")
        path = shipped[name_or_path]
    data = load_yaml_model(path, _Header).model_dump()
    if (algorithm := data["algorithm"]) not in TRAINERS:
        raise ConfigError(f"{path}: {unknown('algorithm', algorithm, TRAINERS)}")
    try:
        function = importlib.import_module(TRAINERS[algorithm]).train
    except ModuleNotFoundError as error:
        missing = needs(f"training {algorithm}", error.name or "a package", "agents")
        raise ConfigError(missing) from None
    model = typing.get_type_hints(function)["config"]
    for change in changes:
        dotted, value = read_setting(change)
        *groups, last = dotted.split(".")
        inner = data
        for key in groups:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{dotted}: {key} is a value, not a group of keys.")
        inner[last] = value
        if dotted == "steps" and dotted not in model.model_fields:
            raise ConfigError(
                f"steps: {algorithm} has none; the queries of `survey` are its length: "
                "--set 'survey=[{queries: 240000, keep: 100}, {queries: 100000}]'."
            )
    return function, validate(data, model, source=" + ".join([str(path), *changes]))
