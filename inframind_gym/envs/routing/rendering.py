"""The picture of a routing environment: servers, budget and the last decisions."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs import rendering as paint
from inframind_gym.envs.rendering import Box, Canvas
from inframind_gym.envs.routing.simulation import Load, Simulation
from inframind_gym.simulator.jit import jit
from inframind_gym.simulator.server.pool import ModelConfig
from inframind_gym.simulator.server.telemetry import E2E, LOG_SCALE, QUEUE
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.simulator.workflow.state import PLAN, EnvState
from inframind_gym.simulator.workflow.topology import CUSTOM, STRATEGIES, TOPOLOGIES
from inframind_gym.simulator.workflow.workflow import remaining_budget_s
from inframind_gym.tasks import DOMAINS

_QUERY: Box = (paint.MARGIN, 66, paint.SIZE[0] - paint.MARGIN, 152)
_SERVERS: Box = (paint.MARGIN, 164, 652, paint.SIZE[1] - paint.MARGIN)
_DECISIONS: Box = (664, 164, paint.SIZE[0] - paint.MARGIN, paint.SIZE[1] - paint.MARGIN)
_DEPTH_END = 548  # right end of a column, from the left of the servers' card


class DecisionLog:
    """The last decisions of an episode, and its sums so far.

    Args:
        size: how many decisions to keep.
    """

    def __init__(self, size: int) -> None:
        self.entries: deque[tuple[np.void, NDArray[np.int64]]] = deque(maxlen=size)
        self.clear()

    def clear(self) -> None:
        """A new episode begins."""
        self.entries.clear()
        self.steps = 0
        self.reward = 0.0
        self.cost = 0.0

    def add(self, context: np.void, action: NDArray[np.int64], reward: float, cost: float) -> None:
        """Keep a decision.

        Args:
            context: its CONTEXT record.
            action: (a,) what was done.
            reward: of its step.
            cost: of its step.
        """
        self.entries.append((context.copy(), action.copy()))
        self.steps += 1
        self.reward += reward
        self.cost += cost


def draw_frame(
    simulation: Simulation, context: np.void, log: DecisionLog, rate_per_min: float
) -> NDArray[np.uint8]:
    """Paint a single environment; the simulation does not change.

    Args:
        simulation: a batch of one.
        context: CONTEXT of the decision that waits.
        log: what was decided before.
        rate_per_min: arrival rate of the stream.

    Returns:
        (540, 960, 3) uint8, RGB.
    """
    canvas = Canvas()
    ended = simulation.state.completed[0, : simulation.state.stream[0]["finished"]]
    ended = ended[ended["is_controlled"] == 1]
    _header(canvas, simulation, rate_per_min)
    _query(canvas, simulation, context, log, ended)
    _servers(canvas, simulation)
    _decisions(canvas, simulation, log, ended)
    return canvas.pixels


def _header(canvas: Canvas, simulation: Simulation, rate_per_min: float) -> None:
    stream, rate = simulation.state.stream[0], f"{rate_per_min:g} queries/min"
    names = (simulation.pool.name, simulation.workload.name, rate)
    setting = paint.SEPARATOR.join((*names, simulation.scheduler, simulation.execution))
    arrived, total, ended = stream["arrived"], stream["num_queries"], stream["finished"]
    traffic = f"{arrived} of {total} queries arrived, {arrived - ended} in flight"
    canvas.header(simulation.title, setting, f"{stream['now_s']:.1f} s", traffic)


def _query(
    canvas: Canvas, simulation: Simulation, context: np.void, log: DecisionLog, ended: NDArray[Any]
) -> None:
    """The decision that waits, or what became of the last query."""
    left, top, right, bottom = _QUERY
    canvas.card(_QUERY)
    if not simulation.state.stream[0]["live"]:
        title = "Episode over" if log.steps else "No decision waits"
        canvas.text((left + 14, top + 24), title, 18, bold=True)
        last = _outcome(ended[-1]) if len(ended) else ""
        canvas.text((left + 14, bottom - 24), last, 14, paint.GREY, width=right - left - 28)
        return
    facts = [DOMAINS[context["domain"]]]
    if context["kind"] == PLAN:
        facts += ["needs a plan", "planner"]
    else:
        topology = (*TOPOLOGIES, CUSTOM)[context["topology"]]
        facts += [
            f"{topology}, {_agents(int(context['num_agents']))}",
            f"call {context['node'] + 1} of {context['num_nodes']}, "
            f"wave {context['wave'] + 1} of {context['num_waves']}",
            ROLES[context["role"]].name,
        ]
    x = left + 14
    x += canvas.text((x, top + 24), f"Query {context['query'] + 1}", 18, bold=True)
    canvas.text((x + 12, top + 25), paint.SEPARATOR.join(facts), 15, width=right - x - 26)
    left_s, budget_s = _remaining_s(simulation.params, simulation.state), context["budget_s"]
    share = left_s / budget_s
    colour = paint.GOOD if share > 0.5 else paint.WAITING if share > 0.2 else paint.BAD
    words = f"{left_s:.1f} s left" if left_s >= 0 else f"{-left_s:.1f} s late"
    ink = paint.INK if left_s >= 0 else paint.BAD
    y = bottom - 24
    canvas.text((left + 14, y), "budget", 13, paint.GREY)
    canvas.bar((left + 70, y - 8, right - 190, y + 8), share, colour)
    canvas.text((right - 14, y), f"{words} of {budget_s:g} s", 15, ink, align="right")


def _servers(canvas: Canvas, simulation: Simulation) -> None:
    left, top, right, bottom = _SERVERS
    canvas.card(_SERVERS, "Servers")
    for x, words in ((166, "running"), (306, "waiting"), (402, "KV cache")):
        canvas.text((left + x, top + 20), words, 12, paint.GREY)
    canvas.text((left + _DEPTH_END, top + 20), "depth", 12, paint.GREY, align="right")
    canvas.text((right - 14, top + 20), "e2e", 12, paint.GREY, align="right")
    stream = simulation.state.stream[0]
    age = f"polled {stream['now_s'] - stream['last_poll_s']:.1f} s ago"
    age = age if stream["polls"] else "not polled yet"
    canvas.text((right - 14, bottom - 14), f"depth and e2e {age}", 12, paint.GREY, align="right")
    up = int(stream["models_up"]) if stream["num_queries"] else simulation.models_up
    depth_req = simulation.seen(0)[QUEUE] * simulation.pool.queue_norm
    e2e_s = np.expm1(simulation.seen(0)[E2E] * LOG_SCALE)
    first, last = top + 38, bottom - 28
    models = simulation.pool.models
    height = min((last - first) / len(models), 62.0)
    for m, (model, load) in enumerate(zip(models, simulation.loads(0), strict=True)):
        y = round(first + (m + 0.5) * height)
        if m:
            rule = round(first + m * height)
            canvas.draw.line((left + 14, rule, right - 14, rule), fill=paint.LINE)
        is_up = bool(up >> m & 1)
        _server(canvas, model, load, is_up, left, y, min(round(height), 44))
        ink = paint.INK if is_up else paint.GREY
        canvas.text((left + _DEPTH_END, y), f"{depth_req[m]:.0f}", 13, ink, align="right")
        e2e = _seconds(e2e_s[m]) if e2e_s[m] else "-"
        canvas.text((right - 14, y), e2e, 13, ink, align="right")


def _server(
    canvas: Canvas, model: ModelConfig, load: Load, is_up: bool, left: int, y: int, height: int
) -> None:
    """One row's name and bars, which are of the present."""
    ink, slots = paint.INK if is_up else paint.GREY, model.server.slots
    roomy = height >= 34
    canvas.text((left + 14, y - 8 if roomy else y), model.alias, 15, ink, width=142)
    if roomy:
        below = model.gpu if is_up else f"{model.gpu}  ·  down"
        canvas.text((left + 14, y + 10), below, 12, paint.GREY if is_up else paint.BAD, width=142)
    half = min(height // 2 - 3, 9)
    for x, width, share, colour in (
        (166, 66, load.running / slots, paint.RUNNING),
        (306, 50, load.waiting / (2 * slots), paint.WAITING),  # twice as many as slots fill the bar
        (402, 50, load.kv_frac, paint.CACHE),
    ):
        canvas.bar((left + x, y - half, left + x + width, y + half), share, colour)
    canvas.text((left + 239, y), f"{load.running}/{slots}", 12, ink, width=65)
    canvas.text((left + 364, y), str(load.waiting), 12, ink, width=36)
    canvas.text((left + 460, y), f"{load.kv_frac:.0%}", 12, ink)


def _decisions(
    canvas: Canvas, simulation: Simulation, log: DecisionLog, ended: NDArray[Any]
) -> None:
    left, top, right, bottom = _DECISIONS
    canvas.card(_DECISIONS, "Last decisions")
    y = top + 52
    for context, action in reversed(log.entries):
        if y > bottom - 90:
            break
        role = "planner" if context["kind"] == PLAN else ROLES[context["role"]].name
        choice, detail = _choice(simulation, context, action)
        used = canvas.text((left + 14, y), choice, 14, width=176)
        canvas.text((left + 22 + used, y + 1), detail, 12, paint.GREY)
        who = f"query {context['query'] + 1}, {role}"
        canvas.text((left + 14, y + 16), who, 12, paint.GREY, width=186)
        when = _seconds(float(context["time_s"]))
        canvas.text((right - 14, y + 16), when, 12, paint.GREY, align="right")
        y += 38
    if not log.entries:
        canvas.text((left + 14, y), "none yet", 13, paint.GREY)
    on_time = (ended["latency_s"] <= ended["budget_s"]).sum()
    done = f"{len(ended)} done, {ended['solved'].sum()} solved, {on_time} on time"
    sums = f"step {log.steps}, reward {log.reward:g}, cost {log.cost:.2f}"
    canvas.footer(_DECISIONS, done, sums)


def _choice(simulation: Simulation, context: np.void, action: NDArray[np.int64]) -> tuple[str, str]:
    """Topology and agents of a plan, or model and strategy of a route."""
    if context["kind"] == PLAN:
        return TOPOLOGIES[action[0]], _agents(int(action[1]) + 1)
    route = int(action[PLAN_ACTIONS if len(action) > PLAN_ACTIONS else 0])
    model, strategy = divmod(route, len(STRATEGIES))
    return simulation.pool.models[model].alias, STRATEGIES[strategy]


@jit
def _remaining_s(params: EnvParams, state: EnvState) -> float:
    """Seconds that the query whose decision waits has left of its budget; 0 if none does."""
    stream = state.stream[0]
    if stream.live:
        return float(remaining_budget_s(params, state, 0, stream.slot, stream.node))
    return 0.0


def _agents(count: int) -> str:
    return f"{count} agent{'s' if count > 1 else ''}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.{0 if seconds >= 1000 else 1}f} s"


def _outcome(record: Any) -> str:
    solved = "solved" if record["solved"] else "not solved"
    return (
        f"query {record['query'] + 1} {solved} in {record['latency_s']:.1f} s "
        f"of {record['budget_s']:g} s"
    )
