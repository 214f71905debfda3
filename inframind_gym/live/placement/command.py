"""`inframind pool place`: let a policy decide which of a pool's models are awake where."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from inframind_gym.errors import InfraMindError
from inframind_gym.live.launch.command import PoolOption, StateOption, end_by_exception, refuse

# What talks to servers is imported when the command runs.
if TYPE_CHECKING:
    from inframind_gym.live.placement.cluster import LivePlacement
    from inframind_gym.policies.placement.protocol import PlacementPolicy


def place(
    pool: PoolOption,
    policy: Annotated[
        str,
        typer.Option(help="A baseline's name (in a checkout: mcf_plus, lru, …), or module:Class."),
    ] = "mcf_plus",
    cluster: Annotated[
        str | None,
        typer.Option(
            help="GPUs and model cards: a name or a YAML file. Default: the pool's name.",
            show_default=False,
        ),
    ] = None,
    demand: Annotated[str, typer.Option(help="What is asked: a name or a YAML file.")] = "trickle",
    load: Annotated[float, typer.Option(min=0.0, help="Factor on the demand's rate.")] = 1.0,
    decisions: Annotated[int, typer.Option(min=1, help="How many; one every 5 s.")] = 24,
    initial: Annotated[str, typer.Option(help="Begin with models awake (spread) or empty.")] = (
        "spread"
    ),
    seed: Annotated[int, typer.Option(help="Of the demand and the policy.")] = 0,
    python: Annotated[
        Path | None,
        typer.Option(help="Interpreter that has vLLM, as of `up`.", show_default=False),
    ] = None,
    state: StateOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
) -> None:
    """Start servers, and let a policy wake, put to sleep, start and stop them under a demand.

    Each model has a server of its own on each GPU where it is placed; one a GPU is awake. Says what
    is done, and at the end how long calls took. All servers are stopped then, and on Ctrl-C.
    """
    from inframind_gym.live.placement.cluster import LivePlacement
    from inframind_gym.live.placement.config import live_placement_config
    from inframind_gym.policies.placement.registry import PLACEMENT_POLICIES

    console = Console(highlight=False, stderr=as_json, soft_wrap=True)
    end_by_exception()
    given: dict[str, Any] = {
        "pool": pool,
        "demand": demand,
        "load": load,
        "initial": initial,
        "num_decisions": decisions,
        "python": None if python is None else str(python),
        "state": None if state is None else str(state),
    }
    if cluster is not None:
        given["cluster"] = cluster
    try:
        decider = PLACEMENT_POLICIES.resolve(policy)
        live = LivePlacement(
            live_placement_config(given),
            on_transition=lambda transition: console.print(str(transition), markup=False),
        )
        try:
            with live:
                summary = _run(live, decider, decisions, seed, console)
        except (KeyboardInterrupt, SystemExit):
            console.print("Interrupted. All servers were stopped.", style="yellow")
            raise typer.Exit(130) from None
    except InfraMindError as error:
        refuse(error)
    if as_json:
        typer.echo(json.dumps(summary, indent=1))
        return
    for name, value in summary.items():
        console.print(f"{name:24} {value:g}", markup=False)


def _run(
    live: LivePlacement, policy: PlacementPolicy, decisions: int, seed: int, console: Console
) -> dict[str, float | int]:
    """Play an episode."""
    import numpy as np

    from inframind_gym.envs.placement.context import contexts, spec_of

    rows = np.zeros(1, np.int64)

    def choose(observation: Any, context: Any) -> Any:
        return policy.act_batch(observation, context, rows)[0]

    console.print(f"Bringing up cluster {live.cluster_config.name!r} …")
    live.begin(seed)
    console.print(live.table(0), markup=False)
    policy.reset(spec_of(live), [seed])
    for _ in range(decisions):
        live.decide_by(partial(choose, live.observation, contexts(live, rows)))
    console.print(live.table(0), markup=False)
    return live.summary(0)
