"""Figures of the simulator's speed: what each one times, its unit and its target."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from inframind_gym.benchmark.speed.sides import Job

RATE_PER_MIN: Final = 100.0
STATIC_ACTION: Final = 7  # qwen-14b, Concise: the policy `static`
TRACE_SERVER: Final = ("h100-5gpu", "llama-8b")
TRACES: Final = (
    "a CSV file of production traffic, such as AzureLLMInferenceTrace_conv.csv of "
    "https://github.com/Azure/AzurePublicDataset"
)
_ROUTING: Final = {"arrival_rate_per_min": RATE_PER_MIN}
_INDEX: Final = {**_ROUTING, "observation": "index"}
_PLACEMENT: Final = {"cluster": "h100-8gpu"}
_STREAM, _EXECUTOR = "InfraMind-Stream-v0", "InfraMind-Executor-v0"
_ASSIGNMENT: Final = "InfraMind-Assignment-v0"

_FIRST_USE: Final = f"""
import gymnasium as gym
import inframind_gym
for env_id in ({_STREAM!r}, {_EXECUTOR!r}):
    env = gym.make(env_id)
    env.reset(seed=0)
    env.step(0)
    env = gym.make_vec(env_id, num_envs=2)
    env.reset(seed=0)
    env.step(env.action_space.sample())
"""
_REPLAY: Final = """
from inframind_gym.benchmark.speed.works import trace
count = trace({path!r}, {pool!r}, {model!r}, 1)()[0]
"""


class Figure(NamedTuple):
    """One line of the table.

    Attributes:
        what: Description.
        unit: Of the figure; "s" counts seconds, anything else how much is done in one.
        job: The work that is timed.
        target: Least value that is wanted, of seconds the most; None for a figure without one.
        asked_for: Whether it is measured only if it is named.
    """

    what: str
    unit: str
    job: Job
    target: float | None = None
    asked_for: bool = False

    def value(self, cost_s: float) -> float:
        """Return the figure from the CPU seconds that one unit of the work costs."""
        return cost_s if self.unit == "s" else 1.0 / cost_s

    def text(self, value: float) -> str:
        """Format a value with its unit."""
        return f"{value:,.{2 if abs(value) < 100 else 0}f} {self.unit}"

    def verdict(self, value: float) -> list[str]:
        """Return the target, and whether a value reaches it."""
        if self.target is None:
            return ["", ""]
        at_most = self.unit == "s"
        reached = value <= self.target if at_most else value >= self.target
        return [f"{'<=' if at_most else '>='} {self.target:,.0f}", "yes" if reached else "NO"]


def _vector(
    env_id: str, num_envs: int, steps: int, kwargs: dict[str, Any], fixed: int | None = None
) -> Job:
    return Job(
        "vector", dict(env_id=env_id, num_envs=num_envs, steps=steps, fixed=fixed, kwargs=kwargs)
    )


def _placement(steps: int, *, idle: bool) -> Job:
    return Job("placement", dict(num_envs=64, steps=steps, idle=idle, kwargs=_PLACEMENT))


FIGURES: Final[dict[str, Figure]] = {
    "stream_vector_index_dps": Figure(
        "Stream vector, n = 1024, index observations",
        "decisions/s",
        _vector(_STREAM, 1024, 300, _INDEX),
        1_000_000,
    ),
    "stream_vector_full_dps": Figure(
        "Stream vector, n = 1024, full observations",
        "decisions/s",
        _vector(_STREAM, 1024, 250, _ROUTING),
        500_000,
    ),
    "stream_single_sps": Figure(
        "Stream single, gym.make",
        "steps/s",
        Job("single", dict(env_id=_STREAM, steps=20_000, kwargs=_ROUTING)),
        50_000,
    ),
    "executor_vector_sps": Figure(
        f"Executor vector, n = 64, background {RATE_PER_MIN:g}/min, static action",
        "steps/s",
        _vector(_EXECUTOR, 64, 200, _INDEX, STATIC_ACTION),
        15_000,
    ),
    "executor_vector_random_sps": Figure(
        "The same, random actions (a fifth of them wait for the overloaded model)",
        "steps/s",
        _vector(_EXECUTOR, 64, 70, _INDEX),
    ),
    "kernel_rps": Figure(
        "Kernel alone, five servers, load 0.7",
        "requests/s",
        Job("kernel", dict(pool="b200-2gpu", requests=1_000_000, load=0.7, slots=None, backlog=0)),
        2_000_000,
    ),
    "placement_sps": Figure(
        "Placement vector, n = 64, 8 GPUs, 8 models, random actions",
        "steps/s",
        _placement(240, idle=False),
        20_000,
    ),
    "placement_idle_sps": Figure(
        "The same, all GPUs left alone (more calls are served)",
        "steps/s",
        _placement(240, idle=True),
    ),
    "placement_single_sps": Figure(
        "Placement single, gym.make, random actions",
        "steps/s",
        Job("single", dict(env_id="InfraMind-Placement-v0", steps=2_000, kwargs=_PLACEMENT)),
    ),
    "assignment_sps": Figure(
        "Assignment vector, n = 1024, full observations, random actions",
        "steps/s",
        _vector(_ASSIGNMENT, 1024, 300, {"load": "window"}),
        200_000,
    ),
    "assignment_queue_sps": Figure(
        "The same, queueing form",
        "steps/s",
        _vector(_ASSIGNMENT, 1024, 100, {"load": "queue"}),
        200_000,
    ),
    "assignment_single_sps": Figure(
        "Assignment single, gym.make, random actions",
        "steps/s",
        Job("single", dict(env_id=_ASSIGNMENT, steps=2_000, kwargs={})),
    ),
    "coordination_sps": Figure(
        "Coordination vector, n = 4096, random actions",
        "steps/s",
        _vector("InfraMind-Coordination-v0", 4096, 100, {}),
        200_000,
    ),
    "import_s": Figure(
        "import inframind_gym", "s", Job("process", dict(code="import inframind_gym")), 1.0
    ),
    "cached_start_s": Figure(
        "First use, compiled before", "s", Job("process", dict(code=_FIRST_USE))
    ),
    "compile_s": Figure(
        "First use, nothing compiled yet",
        "s",
        Job("process", dict(code=_FIRST_USE, cached=False), most=1),
        45.0,
        asked_for=True,
    ),
}


def trace_figures(path: str) -> dict[str, Figure]:
    """Return the figures of a trace that one simulated server replays.

    Args:
        path: Absolute path of a CSV file, see `inframind_gym.simulator.traces`.
    """
    pool, model = TRACE_SERVER
    server = dict(path=path, pool=pool, model=model)
    what = f"Replay of a trace on one server ({model} of {pool})"
    return {
        "trace_x_real_time": Figure(what, "s simulated/s", Job("trace", {**server, "rounds": 5})),
        "trace_process_x_real_time": Figure(
            "The same from a fresh process: imports, reading the trace, one replay",
            "s simulated/s",
            Job("process", dict(code=_REPLAY.format(**server))),
        ),
    }
