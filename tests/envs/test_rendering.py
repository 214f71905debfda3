"""What is rendered is there, legible and harmless: it never changes the simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import inframind_gym  # noqa: F401
from inframind_gym.envs.rendering.frame import (
    BAD,
    CACHE,
    GOOD,
    PAPER,
    RUNNING,
    SIZE,
    WAITING,
    draw_frame,
)
from inframind_gym.envs.rendering.view import DecisionView, ServerView, View, WaitingView, snapshot
from inframind_gym.envs.routing.base import InfraMindEnv
from inframind_gym.simulator.workflow.topology import STRATEGIES

STREAM, EXECUTOR = "InfraMind-Stream-v0", "InfraMind-Executor-v0"


def run(name: str, steps: int, **arguments: Any) -> tuple[Any, Any]:
    """An environment after some steps with sampled actions, and its last observation."""
    env = gym.make(name, **({"num_queries": 20} | arguments))
    observation, _ = env.reset(seed=3)
    env.action_space.seed(3)
    for _ in range(steps):
        observation, _, terminated, _, _ = env.step(env.action_space.sample())
        if terminated:
            break
    return env, observation


def make(name: str, steps: int, **arguments: Any) -> Any:
    return run(name, steps, **arguments)[0]


def view_of(env: Any) -> View:
    raw: InfraMindEnv = env.unwrapped
    return snapshot(raw.simulation, raw.context(), raw._log, 100.0)


def state_of(env: Any) -> list[Any]:
    """Everything that a step may change, bit by bit."""
    raw = env.unwrapped
    arrays = (*raw.simulation.state, *raw.simulation.cluster, raw.context())
    return [*(array.tobytes() for array in arrays), str(raw.np_random.bit_generator.state)]


def model(**changes: Any) -> ServerView:
    return replace(
        ServerView("qwen-14b", "gpu0", True, 16, 12, 3, 0.4, 14.0, 7.5),
        **changes,
    )


def drawn(**changes: Any) -> View:
    view = View(
        title="InfraMind Stream",
        setting=("b200-2gpu", "mixed", "100 queries/min", "edf", "parallel"),
        time_s=71.25,
        num_queries=500,
        arrived=120,
        in_flight=40,
        polls=14,
        telemetry_age_s=1.25,
        waiting=WaitingView(
            120, "Math", "Debate, 5 agents", "call 2 of 10, wave 1 of 2", "Inspector", 30.0, 21.0
        ),
        servers=(model(), model(model="llama-3b", up=False, running=0, waiting=0, kv_frac=0.0)),
        decisions=(DecisionView(71.2, 119, "Economist", "qwen-14b", "Flash"),),
        steps=310,
        reward=51.0,
        cost=64.5,
        completed=80,
        solved=51,
        on_time=66,
        last="query 97 solved in 12.3 s of 30 s",
    )
    return replace(view, **changes)


def coloured(frame: Any, colour: tuple[int, int, int]) -> int:
    """Pixels of exactly this colour."""
    return int((frame == np.array(colour, np.uint8)).all(axis=-1).sum())


@pytest.mark.parametrize("name", [STREAM, EXECUTOR])
def test_rendering_changes_nothing(name: str):
    env = make(name, 12, render_mode="rgb_array")
    before = state_of(env)
    first, second = env.render(), env.render()
    assert state_of(env) == before
    np.testing.assert_array_equal(first, second)


def test_a_rendered_run_is_the_same_run():
    plain, rendered = make(STREAM, 10), make(STREAM, 10, render_mode="rgb_array")
    for action in range(15):
        rendered.render()
        a, b = plain.step(action), rendered.step(action)
        np.testing.assert_array_equal(a[0], b[0])
        assert a[1:4] == b[1:4]


def test_without_a_render_mode_nothing_is_drawn():
    assert make(STREAM, 1).unwrapped.render() is None


@pytest.mark.parametrize("steps", [0, 30, 10_000])
@pytest.mark.parametrize("name", [STREAM, EXECUTOR])
@pytest.mark.parametrize("level", ["executor", "planner", "joint"])
def test_every_moment_is_drawn(name: str, level: str, steps: int):
    frame = make(name, steps, render_mode="rgb_array", level=level).render()
    assert frame.shape == (SIZE[1], SIZE[0], 3) and frame.dtype == np.uint8


def test_an_environment_that_was_never_reset_can_be_drawn():
    env = gym.make(STREAM, num_queries=5, render_mode="rgb_array").unwrapped
    assert view_of(env).waiting is None
    assert env.render().any()


def test_the_view_tells_what_the_simulation_holds():
    env, seen = run(STREAM, 60, render_mode="rgb_array", down_models=["llama-3b"])
    view, raw = view_of(env), env.unwrapped
    context, layout = raw.context(), raw.simulation.layout
    action = raw._log.entries[-1][1]
    assert view.polls > 0

    assert view.time_s == context["time_s"]
    assert view.waiting is not None
    assert view.waiting.query == context["query"] + 1
    assert view.waiting.budget_s == context["budget_s"]
    assert max(view.waiting.remaining_s, 1.0) == pytest.approx(
        layout.remaining_budget_s(seen), rel=1e-5
    )
    depths = [server.polled_depth_req for server in view.servers]
    assert depths == pytest.approx(layout.queue_depth_req(seen))
    e2e = [server.polled_e2e_s for server in view.servers]
    assert e2e == pytest.approx(layout.e2e_s(seen), rel=1e-5)
    assert [server.up for server in view.servers] == [True] * 4 + [False]
    assert all(0 <= server.running <= server.slots for server in view.servers)
    assert all((server.kv_frac > 0) == (server.running > 0) for server in view.servers[:4])
    assert view.steps == 60 and view.decisions[0].detail == STRATEGIES[action[0] % 3]
    assert view.decisions[0].choice == raw.simulation.pool.aliases[action[0] // 3]


def test_sequential_execution_shows_its_own_remaining_budget():
    env, seen = run(
        STREAM, 60, render_mode="rgb_array", execution="sequential", observation="index"
    )
    waiting = view_of(env).waiting
    assert waiting is not None
    expected = env.unwrapped.simulation.layout.remaining_budget_s(seen)
    assert max(waiting.remaining_s, 1.0) == pytest.approx(expected, rel=1e-5)


def test_the_end_of_a_stream_shows_its_outcome():
    env = make(STREAM, 10_000, render_mode="rgb_array")
    view = view_of(env)
    assert view.waiting is None and view.completed == 20 and view.in_flight == 0
    assert view.solved == view.reward
    assert view.last.startswith("query ")


def test_a_plan_is_shown_as_one():
    env = gym.make(STREAM, num_queries=5, level="joint", render_mode="rgb_array")
    env.reset(seed=0)
    waiting = view_of(env).waiting
    assert waiting is not None and (waiting.workflow, waiting.role) == ("needs a plan", "planner")
    env.step(np.array([3, 1, 0, 0, 0, 0, 0, 0, 4]))
    decision = view_of(env).decisions[0]
    assert (decision.role, decision.choice, decision.detail) == ("planner", "Debate", "2 agents")
    waiting = view_of(env).waiting
    assert waiting is not None and waiting.workflow == "Debate, 2 agents"
    env.step(np.array([3, 1, 0, 0, 0, 0, 0, 0, 4]))
    decision = view_of(env).decisions[0]
    assert (decision.choice, decision.detail) == ("mistral-24b", "Concise")


def test_a_late_query_is_said_to_be_late():
    waiting = drawn().waiting
    assert waiting is not None
    late = drawn(waiting=replace(waiting, remaining_s=-4.0))
    assert coloured(draw_frame(late), BAD) > coloured(draw_frame(drawn()), BAD)


def test_long_names_and_big_numbers_stay_within_the_width():
    long = "a-model-with-a-very-long-alias-indeed"
    many = tuple(
        model(model=f"{long}-{m}", gpu=f"gpu-{m}-of-a-node", slots=1024, running=1024, waiting=9999)
        for m in range(16)
    )
    view = drawn(
        servers=many,
        setting=(long, long, "1e+06 queries/min", "edf_late_last", "sequential"),
        decisions=(DecisionView(123456.7, 99999, long, long, "DeepThink"),) * 9,
        last=long * 4,
    )
    frame = draw_frame(view)
    edge = np.concatenate([frame[:, :14].reshape(-1, 3), frame[:, -14:].reshape(-1, 3)])
    assert (edge == PAPER).all()


def test_the_bars_of_the_frame_follow_the_view():
    busy = draw_frame(drawn())
    idle = draw_frame(drawn(servers=(model(running=0, waiting=0, kv_frac=0.0),)))
    for colour in (RUNNING, WAITING, CACHE):
        assert coloured(busy, colour) > 50 + coloured(idle, colour)
    assert coloured(busy, GOOD) > 1000
