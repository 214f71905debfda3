"""What is rendered is there, legible and harmless: it never changes the simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from inframind_gym.envs.rendering.table import WIDTH, bar, draw_table

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
from inframind_gym.envs.rendering.view import DecisionView, ServerView, View, WaitingView, look
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
    return look(raw.simulation, raw.context(), raw._log, 100.0)


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


@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
@pytest.mark.parametrize("name", [STREAM, EXECUTOR])
def test_rendering_changes_nothing(name: str, mode: str):
    env = make(name, 12, render_mode=mode)
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
def test_both_modes_draw_every_moment(name: str, level: str, steps: int):
    env = make(name, steps, render_mode="ansi", level=level)
    lines = env.render().splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert all(line == line.rstrip() for line in lines)
    frame = draw_frame(view_of(env))
    assert frame.shape == (SIZE[1], SIZE[0], 3) and frame.dtype == np.uint8


def test_an_environment_that_was_never_reset_can_be_drawn():
    env = gym.make(STREAM, num_queries=5, render_mode="ansi").unwrapped
    assert "no decision waits" in env.render()
    assert draw_frame(view_of(env)).any()


def test_the_view_tells_what_the_simulation_holds():
    env, seen = run(STREAM, 60, render_mode="ansi", down_models=["llama-3b"])
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


def test_the_published_protocol_shows_its_own_remaining_budget():
    env, seen = run(STREAM, 60, render_mode="ansi", execution="sequential", observation="index")
    waiting = view_of(env).waiting
    assert waiting is not None
    expected = env.unwrapped.simulation.layout.remaining_budget_s(seen)
    assert max(waiting.remaining_s, 1.0) == pytest.approx(expected, rel=1e-5)


def test_the_end_of_a_sweep_shows_its_outcome():
    env = make(STREAM, 10_000, render_mode="ansi")
    view = view_of(env)
    assert view.waiting is None and view.completed == 20 and view.in_flight == 0
    assert view.solved == view.reward
    text = env.render()
    assert "episode over" in text and "20 done" in text and view.last in text


def test_a_plan_is_shown_as_one():
    env = gym.make(STREAM, num_queries=5, level="joint", render_mode="ansi")
    env.reset(seed=0)
    assert "needs a plan · planner" in env.render()
    env.step(np.array([3, 1, 0, 0, 0, 0, 0, 0, 4]))
    decision = view_of(env).decisions[0]
    assert (decision.role, decision.choice, decision.detail) == ("planner", "Debate", "2 agents")
    assert "Debate, 2 agents" in env.render()
    env.step(np.array([3, 1, 0, 0, 0, 0, 0, 0, 4]))
    decision = view_of(env).decisions[0]
    assert (decision.choice, decision.detail) == ("mistral-24b", "Concise")


def test_the_table_is_readable():
    text = draw_table(drawn())
    for words in (
        "time 71.2 s · 120 of 500 queries arrived, 40 in flight",
        "query 120 of 500: Math · Debate, 5 agents · call 2 of 10, wave 1 of 2 · Inspector",
        "█████████████████░░░░░░░ 21.0 s left of 30 s",
        "12/16",
        "40%",
        "7.5 s",
        "DOWN",
        "polled 1.2 s ago (poll 14)",
        "80 done, 51 solved, 66 on time · last: query 97 solved in 12.3 s of 30 s",
    ):
        assert words in text
    assert "\x1b" not in text


def test_a_late_query_is_said_to_be_late():
    waiting = drawn().waiting
    assert waiting is not None
    late = drawn(waiting=replace(waiting, remaining_s=-4.0))
    assert "░░░ 4.0 s late of 30 s" in draw_table(late)
    assert coloured(draw_frame(late), BAD) > coloured(draw_frame(drawn()), BAD)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, "░░░░"), (0.01, "█░░░"), (0.5, "██░░"), (1.0, "████"), (7.0, "████"), (-1.0, "░░░░")],
)
def test_a_bar_fills_with_its_share(share: float, expected: str):
    assert bar(share, 4) == expected


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
    assert max(map(len, draw_table(view).splitlines())) <= WIDTH
    frame = draw_frame(view)
    edge = np.concatenate([frame[:, :14].reshape(-1, 3), frame[:, -14:].reshape(-1, 3)])
    assert (edge == PAPER).all()


def test_the_bars_of_the_frame_follow_the_view():
    busy = draw_frame(drawn())
    idle = draw_frame(drawn(servers=(model(running=0, waiting=0, kv_frac=0.0),)))
    for colour in (RUNNING, WAITING, CACHE):
        assert coloured(busy, colour) > 50 + coloured(idle, colour)
    assert coloured(busy, GOOD) > 1000
