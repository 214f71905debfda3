"""Frozen results of the trainers: two updates of each, in one go and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np

from inframind_gym.policies import checkpoint
from inframind_gym.train import read_config
from tests.golden.net import digest_of

Result = tuple[dict[str, Any], list[dict[str, float]]]  # tensors of the checkpoint, metrics
STEP = "step"
INFRAMIND = [
    *("env.num_queries=6", "rates_per_min=[30, 200]", "rows_per_rate=2", "batch_episodes=12"),
    *("steps=3", "validation.rows=1"),
]
AGENTS: dict[str, tuple[str, list[str]]] = {
    "inframind": ("inframind", []),
    "inframind_v2": ("inframind_v2", ["planner.init=null"]),
    "inframind, side by side": (
        "inframind",
        ["sweeps=side_by_side", "planner.draw_count=true", "executor.system_state=false"],
    ),
    "masrouter": ("masrouter", ["steps=2", "validate_every=1", "validation_queries=32"]),
    "ppo_lagrangian": (
        "ppo_lagrangian",
        [
            "worlds=[{workload: math, capacity_per_min: 180},"
            " {workload: mbpp, capacity_per_min: 360}]",
            *("rows=4", "queries=300", "together=1", "steps=3", "minibatch=128", "hidden=8"),
            *("loads=[0.35,1.1]", "validation_loads=[0.2]", "validation_rows=1"),
            *("validation_queries=10", "promise=0.9"),
        ],
    ),
    "bid_price": (
        "bid_price",
        [
            *("env.workload=mmlu_pro", "rows=8", "load={episodes: 8, queries: 60}"),
            "survey=[{queries: 4000, keep: 5}, {queries: 4000}]",
            *("loads=[0.5,1.0]", "validation={episodes: 1, queries: 60}"),
        ],
    ),
}
# Short: 5,000 updates of PPO are chaos, in which processors differ by more than the digits shown.
ROUTING = ["env.num_queries=10", "rows=6", "turn_steps=960", "steps=960"]
PPO = ["arguments.n_steps=8", "arguments.batch_size=16", "arguments.n_epochs=1"]
DQN = ["arguments.learning_starts=24", "arguments.buffer_size=600", "arguments.batch_size=16"]
ASSIGNMENT = ["env.load=queue", "turns.arrivals=[skewed]", "net_arch=[8,8]", "rows=4"]
PLACEMENT = ["turns.demand=[shifting]", "net_arch=[4,4]", "rows=2"]
BASELINES = {
    "sb3_ppo": [*ROUTING, *PPO],
    "sb3_a2c": [*ROUTING, "arguments.n_steps=4"],
    "sb3_dqn": [*ROUTING, *DQN],
    "sb3_maskable_ppo": [*ROUTING, *PPO],
    "assignment_ppo": [*ASSIGNMENT, "turn_steps=200", "steps=400"],
    "placement_ppo": [*PLACEMENT, "turn_steps=240", "steps=480"],
    "token_budget_ppo": ["rows=16", "steps=2048"],
    "coordination_ppo": ["rows=16", "steps=2048"],
}


def _metrics(out: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("charts/SPS", STEP)} for line in lines]


def play_agent(name: str, *, stopped: bool = False) -> Result:
    """Train with two updates; `stopped` ends it after its first saved state, and resumes."""
    config, changes = AGENTS[name]
    if config.startswith("inframind"):
        changes = [*INFRAMIND, *changes]
    train, settings = read_config(config, changes)
    from agents.runs import Run

    save = checkpoint.save

    def stops(folder: Path, *arguments: Any) -> None:
        save(folder, *arguments)
        if folder.name == "state":
            raise KeyboardInterrupt

    with TemporaryDirectory() as folder:
        out = Path(folder)
        if stopped:
            with patch.object(checkpoint, "save", stops), suppress(KeyboardInterrupt):
                train(settings, Run(out, seed=3))
        train(settings, Run(out, seed=3, resume=stopped))
        return checkpoint.load(out / "best")[0], _metrics(out)


def play_baseline(name: str) -> Result:
    """Train one of Stable-Baselines3's algorithms with a few updates."""
    from agents.runs import Run

    train, settings = read_config(name, BASELINES[name])
    with TemporaryDirectory() as folder:
        out = Path(folder)
        found = train(settings, Run(out, seed=1))
        metrics = {k: v for k, v in found.items() if isinstance(v, int | float)}
        metrics |= found["last_mean_return"]
        return checkpoint.load(out / "best")[0], [metrics]


def play_gptswarm() -> Result:
    """Learn edges on few queries."""
    from agents.runs import Run

    small = ["rows=4", "queries_per_row=5", "steps=2", "graphs_per_step=2"]
    train, settings = read_config("gptswarm", small)
    with TemporaryDirectory() as folder:
        found = train(settings, Run(Path(folder), seed=3))
    return {"p": np.array(found["p"])}, [{"edges": float(len(found["edges"]))}]


def play_refit() -> str:
    """Digest a fit on short streams."""
    from baselines import refit
    from inframind_gym.evaluation.tracks import TrackSuite

    suite = TrackSuite(name="r", policies=("fixed_recipe",), tracks=("steady",), split="val")
    rounds = (refit.Round(0, 2.0, 5, 1, 2), refit.Round(1, 4.0, 5, 1, 1))
    found = refit.Fitting(suite, "steady", "mbpp", 6_000).recipes(rounds)
    return digest_of({k: [(p, str(f)) for p, f in v.items()] for k, v in found.items()})


def figures(result: Result) -> str:
    """Return the size of the weights and the last metrics, rounded: torch differs by machine."""
    tensors, metrics = result
    total = sum(float(np.abs(np.asarray(t, np.float64)).sum()) for t in tensors.values())
    shown = {k: float(f"{v:.3g}") for k, v in metrics[-1].items() if v is not None and v**2 > 1e-9}
    return f"{len(metrics)} lines; |w| {total:.5g}; {shown}"


PLAYS: dict[str, Callable[[], Result]] = {
    **{name: (lambda n=name: play_agent(n)) for name in ("inframind", "masrouter")},
    **{f"{n}, resumed": (lambda n=n: play_agent(n, stopped=True)) for n in AGENTS},
    **{name: (lambda n=name: play_baseline(n)) for name in BASELINES},
    "gptswarm": play_gptswarm,
}
CASES: dict[str, Callable[[], str]] = {
    **{name: (lambda play=play: figures(play())) for name, play in PLAYS.items()},
    "refit": play_refit,
}
