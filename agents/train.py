"""`python -m agents.train --config inframind --seed 0 --out runs/inframind/seed0`."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml
from pydantic import ConfigDict

from inframind_gym.configs import StrictModel, load_yaml_model, validate
from inframind_gym.errors import ConfigError, did_you_mean, friendly

CONFIGS: Final = Path(__file__).resolve().parent / "configs"

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.command()
def main(
    config: Annotated[str, typer.Option(help="YAML file, or the name of one in agents/configs.")],
    out: Annotated[Path, typer.Option(help="Folder of the training.")],
    pool: Annotated[
        str | None, typer.Option(help="Pool to train for, a name or a YAML file: env.pool.")
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="Workload to train on, a name or a YAML file: env.workload.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same result.", min=0)] = 0,
    workers: Annotated[int, typer.Option(help="Processes that play.", min=1)] = 1,
    ray_address: Annotated[
        str | None, typer.Option(help="Ray cluster whose actors play instead.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on where the training in --out ended.")] = False,
    wandb: Annotated[
        bool, typer.Option(help="Log to W&B too: offline, unless WANDB_MODE says otherwise.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option(help="Log for TensorBoard too.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a key of the configuration: executor.lr=1e-4."),
    ] = None,
) -> None:
    """Train a policy: the best one is written to OUT/best, metrics to OUT/metrics.jsonl.

    It plays as `inframind bench run --policies NAME:OUT/best`, on its own pool.
    """
    options = {
        "workers": workers,
        "ray_address": ray_address,
        "resume": resume,
        "wandb": wandb,
        "tensorboard": tensorboard,
    }
    try:
        with friendly():
            world = {"env.pool": pool, "env.workload": workload}
            changes = [f"{key}={value}" for key, value in world.items() if value is not None]
            train, checked = read_config(config, [*changes, *(set_ or [])])
            known = inspect.signature(train).parameters
            for name in sorted(options.keys() - known.keys()):
                if options.pop(name) not in (None, False, 1):
                    raise ConfigError(f"--{name.replace('_', '-')}: {config} trains without it.")
            result = train(checked, seed=seed, out=out, **options)
    except KeyboardInterrupt:
        print(f"stopped; --resume goes on from the last round in {out}.", file=sys.stderr)
        raise typer.Exit(130) from None
    print(json.dumps(result, default=str))


class _Header(StrictModel):
    """The one key that every configuration has; the algorithm checks the others."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    algorithm: str


def read_config(name_or_path: str, changes: list[str]) -> tuple[Callable[..., Any], StrictModel]:
    """Return an algorithm and the configuration that it is given.

    The algorithm is `train` of the module `agents.<algorithm>`, or of `agents.<algorithm>.training`
    where that is a package. The annotation of its argument `config` is the pydantic model that
    checks the file.

    Args:
        name_or_path: of the YAML file.
        changes: "key=value", the value as in YAML.

    Raises:
        ConfigError: there is no such file, algorithm or key, or a value is wrong.
    """
    path = find(name_or_path)
    train = _algorithm(load_yaml_model(path, _Header).algorithm, path)
    model = typing.get_type_hints(train)["config"]
    values = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise ConfigError(f"--set {change}: write KEY=VALUE, for example executor.lr=1e-4.")
        values[key] = _value(value)
    data = override(path.read_text(encoding="utf-8"), values)
    return train, validate(data, model, source=str(path))


def find(name_or_path: str | Path) -> Path:
    """Return a configuration file, from its path or the name of a shipped one.

    Raises:
        ConfigError: there is none.
    """
    path = Path(name_or_path)
    shipped = {p.stem: p for p in sorted(CONFIGS.glob("*.yaml"))}
    if path.is_file():
        return path
    if str(name_or_path) in shipped:
        return shipped[str(name_or_path)]
    hint = did_you_mean(path.stem, shipped)
    raise ConfigError(f"{path}: no such file.{hint} Shipped: {', '.join(shipped)}.")


def override(text: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a YAML text with some keys changed; "executor.lr" is a key in a key."""
    data: dict[str, Any] = yaml.safe_load(text) or {}
    for dotted, value in changes.items():
        *outer, last = dotted.split(".")
        inner = data
        for key in outer:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{dotted}: {key} is a value, not a group of keys.")
        inner[last] = value
    return data


def _algorithm(name: str, path: Path) -> Callable[..., Any]:
    """Return the function that trains an algorithm, named in the configuration `path`."""
    folder = CONFIGS.parent
    package = f"agents.{name}"
    if (folder / name / "training.py").is_file():
        package += ".training"
    elif not name.isidentifier() or not (folder / f"{name}.py").is_file():
        raise ConfigError(f"{path}: algorithm: there is no agents/{name}.py.")
    try:
        train: Callable[..., Any] | None = getattr(importlib.import_module(package), "train", None)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"training {name} needs {error.name}: make setup, or pip install -c "
            "constraints.txt -e '.[agents]' after torch (README)"
        ) from None
    if train is None:
        raise ConfigError(f"{path}: algorithm: agents/{name}.py trains nothing.")
    return train


def _value(text: str) -> Any:
    """Return a value as YAML reads it, and 1e-4 as a number."""
    try:
        return float(text) if "e" in text.lower() else yaml.safe_load(text)
    except ValueError:
        return yaml.safe_load(text)


if __name__ == "__main__":
    app()
