"""`inframind pool`: make a pool; start, watch and stop its servers; place models on them.

`inframind serve`: the gateway in front of them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_args

import typer
from rich.console import Console
from rich.text import Text

from inframind_gym.commands import Force, Json, refuse_to_overwrite
from inframind_gym.configs import validate
from inframind_gym.errors import ConfigError, require, unknown
from inframind_gym.files import replace_text
from inframind_gym.live.config import Simulation, require_live
from inframind_gym.progress import plain_table
from inframind_gym.simulator.server.pool import load_pool

# Modules that reach servers are imported when a command runs.
if TYPE_CHECKING:
    from inframind_gym.live.launcher import Launch

app = typer.Typer(no_args_is_help=True, help="Make a pool; start, watch and stop its vLLM servers.")


def _option(words: str, **more: Any) -> Any:
    return typer.Option(help=words, show_default=False, **more)


PoolOption = Annotated[str, _option("A shipped pool's name, or a YAML file.")]
StateOption = Annotated[
    Path | None,
    _option(
        "Folder for the state of what was started. Default: $INFRAMIND_STATE, or "
        "~/.local/state/inframind_gym."
    ),
]
PythonOption = Annotated[
    Path | None,
    _option("Interpreter that has vLLM. Default: $VLLM_PYTHON, .venv-vllm, or this one."),
]
_COLOURS: Final = {"up": "green", "asleep": "cyan", "stopped": "dim"} | dict.fromkeys(
    ("starting", "silent"), "yellow"
)
_NUMBERS: Final = {  # of a row of `status`: the column's head, and how they are written
    "pid": ("pid", "{}"),
    "running": ("run", "{}"),
    "waiting": ("wait", "{}"),
    "kv_frac": ("KV", "{:.0%}"),
    "ttft_s": ("TTFT", "{:.2f} s"),
    "itl_s": ("ITL", "{:.3f} s"),
    "queue_s": ("queue", "{:.2f} s"),
    "inference_s": ("inference", "{:.1f} s"),
}
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
_MOST_LINES: Final = 15  # of the log of a server that failed


@app.command()
def new(
    gpu: Annotated[
        str,
        _option(
            "H100-80GB, RTX-4090, L4, MI300X, ..., or several: A100-80GB:2,H100-80GB:2.",
            metavar="KIND[:COUNT],...",
        ),
    ],
    models: Annotated[
        str | None,
        typer.Option(
            metavar="[ALIAS=]MODEL[:QUANTIZATION][@tpN],...",
            help="llama-3.1-8b, qwen2.5-7b:awq, qwen3-32b@tp2 (split over two GPUs), ..., or "
            "folders with a config.json (./my-model). The alias is what workloads call the model. "
            "Default: its name; with --url, what the servers serve.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL,...",
            help="Servers that run already. Model, context length and KV cache are read from their "
            "/v1/models and /metrics.",
            show_default=False,
        ),
    ] = None,
    placing: Annotated[
        str,
        typer.Option(
            metavar="spread|first",
            help="spread: a model goes to the emptiest GPU; first: to the first with room.",
        ),
    ] = "spread",
    out: Annotated[Path, typer.Option(help="File to write, YAML.")] = Path("pool.yaml"),
    max_num_seqs: Annotated[
        int, typer.Option(min=1, max=4096, help="Sequences that a server runs at once.")
    ] = 256,
    max_model_len: Annotated[
        int | None,
        _option("Tokens of prompt and output. Default: 8192, or what the model takes.", min=2),
    ] = None,
    force: Force = False,
) -> None:
    """Make a pool of models on GPUs, with server cards estimated from data sheets.

    Step times follow from the model's architecture and the GPU's bandwidth and FLOP/s, KV caches
    from the memory that is left. Says which models do not fit, and by how much. Nothing is
    measured: cards are marked `estimate`.
    """
    from inframind_gym.live.watcher import facts_of
    from inframind_gym.simulator.estimate import packing

    refuse_to_overwrite(force, out)
    urls = [part.strip().rstrip("/") for part in (url or "").split(",") if part.strip()]
    if urls:
        require_live()
    served = [facts_of(each.removesuffix("/v1")) for each in urls]
    if models is None and not served:
        raise ConfigError("name --models to place on the GPUs, or --url of running servers.")
    names = [facts["name"] for facts in served]
    wanted = packing.parse_models(models or packing.known_models_of(names))
    name = re.sub(r"[^a-zA-Z0-9._-]", "-", out.stem)[:64]
    if placing not in (known := get_args(packing.Placing)):
        raise ConfigError(f"--placing: {unknown('way to place models', placing, known)}")
    gpus, how = packing.parse_gpus(gpu), cast(packing.Placing, placing)
    pool = packing.make_pool(name, gpus, wanted, how, max_num_seqs, max_model_len)
    pool = packing.as_served(pool, served) if served else pool
    command = shlex.join(["inframind", *sys.argv[1:]])
    replace_text(out, packing.pool_yaml(pool, wanted, command))
    rows = []
    for each, model in zip(wanted, pool.models, strict=True):
        card = model.server
        weights = f"{each.model.weight_bytes / 1e9:.1f} GB"
        tokens = f"{(card.num_kv_blocks - 1) * card.block_size:,}"
        step_ms = 1e3 * (card.call_s(500, 501) - card.call_s(500, 1)) / 500
        cells = (weights, f"{model.gpu_memory_frac:.1%}", tokens, f"{step_ms:.1f}")
        rows.append((model.alias, " ".join(model.all_gpus), *cells))
    _print_table(("model", "GPU", ">weights", ">share", ">KV tokens", ">ms/token"), rows)
    if pool.idle_gpus:
        typer.echo(f"GPUs without a model: {', '.join(pool.idle_gpus)}.")
    for each in wanted:
        if each.needs_path and not served:
            typer.echo(f"{each.alias}: give its `path` in {out} before `inframind pool up`.")
    typer.echo(f"{out}: estimates, nothing was measured. Check it: inframind check {out}")


@app.command()
def up(
    pool: PoolOption,
    python: PythonOption = None,
    host: Annotated[
        str, typer.Option(help="Where servers listen: 127.0.0.1, or 0.0.0.0 for the network.")
    ] = "127.0.0.1",
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds for each server to come up.")
    ] = 1800.0,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulate the servers: one process, no vLLM, no GPU.")
    ] = False,
    speed: Annotated[
        float, typer.Option(min=0.01, max=1000.0, help="Of simulated servers; 1 is real time.")
    ] = 1.0,
    workload: Annotated[
        str, typer.Option(help="Lengths of simulated answers: a workload's name or a YAML file.")
    ] = "mixed",
    state: StateOption = None,
) -> None:
    """Start the servers that do not run, and wait until all answer.

    Servers on one GPU are started one after the other. When one fails, the end of its log is shown
    and everything that this command started is stopped; so it is on Ctrl-C. What runs already is
    left as it is. Models with a `url` are only checked. A pool file is code, which runs with your
    rights: start only those that you trust.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False)
    require_live()
    from inframind_gym.live.launcher import Launcher, last_lines

    if not simulate and (speed, workload) != (1.0, "mixed"):
        raise ConfigError("--speed and --workload are for --simulate: add it")
    simulation = Simulation(speed=speed, workload=workload) if simulate else None
    launcher = Launcher(
        load_pool(pool), state=state, python=python, host=host, simulation=simulation
    )
    shown: dict[str, str] = {}

    def show(launches: Sequence[Launch]) -> None:
        for launch in launches:
            alias, line = launch.model.alias, _event(launch)
            if line and shown.get(alias) != line:
                shown[alias] = line
                console.print(f"{alias}: {line}", style=_COLOURS.get(launch.phase, "bold red"))

    with _interruptible(console, "What this command started was stopped."):
        launches = launcher.up(timeout_s=timeout, watch=show)
    failed = [launch for launch in launches if launch.phase == "failed"]
    for log in dict.fromkeys(launch.log for launch in failed if launch.log is not None):
        lines = last_lines(log, _MOST_LINES)
        console.print(f"\nThe last lines of {log}:" if lines else f"\n{log} is empty.")
        for line in lines:
            console.print(f"  {line}", style="dim")
    if failed:
        console.print("\nEverything that this command started was stopped.")
        raise typer.Exit(1)
    if all(launch.already for launch in launches):
        console.print(f"All {len(launches)} servers were up already.")
    if simulate:
        console.print(f"Simulated, at speed {speed:g}: times are the pool's, answers lorem ipsum.")
    option = "" if state is None else f" --state {state}"
    console.print(f"Stop them: inframind pool down --pool {pool}{option}")


def _event(launch: Launch) -> str:
    """Return the news of a server; "" for none."""
    if launch.phase == "starting":
        return f"starting (process {launch.pid})"
    if launch.phase == "up":
        when = "already" if launch.already else f"after {launch.took_s:.0f} s"
        return f"up {when} at {launch.url}"
    if launch.phase == "stopped":
        return "stopped" if launch.pid else ""
    return launch.note


@app.command()
def status(
    pool: PoolOption,
    state: StateOption = None,
    as_json: Json = False,
) -> None:
    """Show the state of the servers. Exit status 0: all are up; 1: not all."""
    require_live()
    from inframind_gym.live.launcher import pool_status

    rows = pool_status(load_pool(pool), state)
    all_up = typer.Exit(0 if all(row["state"] == "up" for row in rows) else 1)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        raise all_up
    cells = []
    for row in rows:
        numbers = {**row, **row["times_s"]}
        shown = (
            "" if (x := numbers.get(name)) is None else form.format(x)
            for name, (_, form) in _NUMBERS.items()
        )
        state_text = Text(row["state"], _COLOURS.get(row["state"], "bold red"))
        cells.append((row["alias"], state_text, row["url"], *shown))
    heads = (f">{head}" for head, _ in _NUMBERS.values())
    _print_table(("model", "state", "url", *heads), cells)
    console = Console(highlight=False)
    for row in rows:
        if row["note"]:
            console.print(Text(f"{row['alias']}: {row['note']}", "dim"), soft_wrap=True)
    if any(row["simulated"] for row in rows):
        console.print(Text("Simulated: one process serves all models.", "dim"))
    raise all_up


@app.command()
def down(pool: PoolOption, state: StateOption = None) -> None:
    """Stop what `up` started: each server with all its processes, and nothing else.

    So is what a `place` that was killed has left; one that runs is to be interrupted first. A pool
    whose file is gone or broken is stopped by its name. Ctrl-C kills what has not ended.
    """
    require_live()
    from inframind_gym.live.processes import GRACE_S, StartedServers, state_folder

    files = sorted(state_folder(state).glob("*/state.json"))
    of_pools = {path.parent.name: path.parent.name.partition("+")[0] for path in files}
    name = pool if pool in of_pools.values() else load_pool(pool).name
    placed = [part for part, its in of_pools.items() if its == name != part]
    placement, count, grace_s = StartedServers(f"{name}+placement", state), 0, GRACE_S
    locked = placement.locked() if placed else contextlib.nullcontext()
    with _interruptible(Console(), "What had not ended was killed."), locked:
        for part in (name, *placed):
            try:
                stopped = StartedServers(part, state).down(grace_s)
                for each in stopped:
                    how = "killed: it did not end by itself" if each.killed else "stopped"
                    how = how if each.processes else "had ended already"
                    typer.echo(f"{each.alias}: {how} (process {each.pid}, {each.processes} in all)")
                count += len(stopped)
            except KeyboardInterrupt:  # the other parts are to end, too
                grace_s = 0.0
        if not grace_s:
            raise KeyboardInterrupt
    if not count:
        typer.echo("Nothing to stop: no server of this pool was started here.")


@app.command()
def place(
    pool: PoolOption,
    policy: Annotated[
        str, typer.Option(help="A policy's name (mcf_plus, lru, …), or module:Class.")
    ] = "mcf_plus",
    cluster: Annotated[
        str | None,
        _option("GPUs and model cards: a name or a YAML file. Default: the pool's name."),
    ] = None,
    demand: Annotated[str, typer.Option(help="The jobs: a name or a YAML file.")] = "trickle",
    decisions: Annotated[int, typer.Option(min=1, help="How many; one every 5 s.")] = 24,
    seed: Annotated[int, typer.Option(help="Of the demand and the policy.")] = 0,
    python: PythonOption = None,
    state: StateOption = None,
) -> None:
    """Start servers, and let a policy wake, put to sleep, start and stop them under a demand.

    Each model has a server of its own on each GPU where it is placed; one a GPU is awake. Shows
    transitions, and at the end latencies. All servers are stopped then, and on Ctrl-C.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False)
    given: dict[str, Any] = {"pool": pool, "demand": demand, "num_decisions": decisions}
    given |= {"cluster": cluster, "python": python and str(python), "state": state and str(state)}
    require_live()
    import numpy as np

    from inframind_gym.envs.render import text
    from inframind_gym.live.config import PlacementLiveConfig
    from inframind_gym.live.placement.cluster import LivePlacement
    from inframind_gym.policies import resolve_policy

    decider = resolve_policy(policy, family="placement")
    rows = np.zeros(1, np.int64)
    config = validate(given, PlacementLiveConfig, source="pool place")
    live = LivePlacement(config, on_transition=lambda one: console.print(str(one)))
    seen = live.observations()
    with _interruptible(console, "All servers were stopped."), live:
        console.print(f"Bringing up cluster {live.cluster_config.name!r} …")
        live.reset(rows, [np.random.default_rng(seed)], seen)
        decider.reset(live.policy_spec(), [seed])
        for _ in range(decisions):
            live.step(rows, decider.act_batch(seen, live.contexts(rows), rows), seen)
        console.print(text(live.frame()))
        summary = live.summary(0)
    for name, value in summary.items():
        console.print(f"{name:24} {value:g}")


def serve(
    pool: Annotated[str | None, _option("A shipped pool's name, or a YAML file.")] = None,
    policy: Annotated[
        str | None,
        _option(
            "Router of inframind/auto and inframind/team, by name or package.module:Class. "
            "Default: adaptive."
        ),
    ] = None,
    workload: Annotated[str | None, _option("What the policy believes of questions.")] = None,
    host: Annotated[str | None, _option("Address; others than 127.0.0.1 need keys.")] = None,
    port: Annotated[int | None, _option("Default: 8080.")] = None,
    config: Annotated[Path | None, _option("gateway.yaml.")] = None,
    record: Annotated[
        str | None,
        _option("Append a line for every request, for `inframind calibrate`.", metavar="FILE"),
    ] = None,
    speed: Annotated[float | None, _option("Of simulated servers (`pool up --simulate`).")] = None,
) -> None:
    """Serve a pool's models behind one OpenAI-compatible address, routed by a policy.

    Model "inframind/auto" routes a call, "inframind/team" carries out a workflow, and the pool's
    own names pass through. SIGTERM waits for what is in flight and ends.
    """
    for module in ("uvicorn", "httptools", "uvloop", "starlette"):
        require(module, "the gateway", "serve")
    from inframind_gym.live.gateway.app import run
    from inframind_gym.live.gateway.config import gateway_config

    options: dict[str, Any] = {"pool": pool, "policy": policy, "workload": workload}
    options |= {"host": host, "port": port, "log": record, "speed": speed}
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run(gateway_config(config, options))


@contextlib.contextmanager
def _interruptible(console: Console, consequence: str) -> Iterator[None]:
    """End a command with status 130 when Ctrl-C, SIGTERM or SIGHUP interrupts it."""

    def end(number: int, _: object) -> None:
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)  # it is ending
        raise KeyboardInterrupt

    before = {each: signal.signal(each, end) for each in _ENDING}
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"Interrupted. {consequence}", style="yellow")
        raise typer.Exit(130) from None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print cells below columns, see `plain_table`."""
    table = plain_table(*columns)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    # Lines that are too long are broken by the terminal: better than words that are cut.
    console.width = max(console.width, Console(width=1_000).measure(table).maximum)
    console.print(table, soft_wrap=True)
