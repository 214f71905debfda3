"""What is rendered is there, legible and harmless: it never changes the simulation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import inframind_gym  # noqa: F401
from inframind_gym.envs import rendering
from inframind_gym.envs.rendering import BAD, CACHE, GOOD, PAPER, RUNNING, SIZE, WAITING
from inframind_gym.envs.routing.simulation import Load
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


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that is written from now on."""
    written: list[str] = []
    real = rendering.Canvas.text

    def text(self: Any, at: Any, said: str, *style: Any, **options: Any) -> int:
        written.append(said)
        return real(self, at, said, *style, **options)

    monkeypatch.setattr(rendering.Canvas, "text", text)
    return written


def state_of(env: Any) -> list[Any]:
    """Everything that a step may change, bit by bit."""
    raw = env.unwrapped
    arrays = (*raw.simulation.state, *raw.simulation.cluster)
    told = (raw.context().tolist(), raw.np_random.bit_generator.state)
    return [*(array.tobytes() for array in arrays), str(told)]


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


def test_an_environment_that_was_never_reset_can_be_drawn(words: list[str]):
    env = gym.make(STREAM, num_queries=5, render_mode="rgb_array").unwrapped
    assert env.render().any()
    assert "No decision waits" in words and "depth and e2e not polled yet" in words


@pytest.mark.parametrize("execution", ["parallel", "sequential"])
def test_the_picture_tells_what_the_simulation_holds(words: list[str], execution: str):
    env, seen = run(
        STREAM, 60, render_mode="rgb_array", down_models=["llama-3b"], execution=execution
    )
    env.render()
    raw = env.unwrapped
    simulation, context, layout = raw.simulation, raw.context(), raw.simulation.layout
    assert words[:2] == [
        "InfraMind Stream",
        f"b200-2gpu  ·  mixed  ·  100 queries/min  ·  edf  ·  {execution}",
    ]
    assert f"{context['time_s']:.1f} s" in words
    assert f"Query {context['query'] + 1}" in words
    left_s = float(layout.remaining_budget_s(seen))
    budget_s = context["budget_s"]
    (budget,) = [said for said in words if said.endswith(f" of {budget_s:g} s")]
    assert left_s <= 1.0 or budget == f"{left_s:.1f} s left of {budget_s:g} s"
    for depth_req, e2e_s in zip(layout.queue_depth_req(seen), layout.e2e_s(seen), strict=True):
        assert f"{depth_req:.0f}" in words
        assert e2e_s == 0.0 or f"{e2e_s:.1f} s" in words
    for model, load in zip(simulation.pool.models, simulation.loads(0), strict=True):
        assert {model.alias, f"{load.running}/16", str(load.waiting)} <= set(words)
        assert f"{load.kv_frac:.0%}" in words
        assert (f"{model.gpu}  ·  down" in words) == (model.gpu == "gpu1")
    action = raw._log.entries[-1][1][0]
    last = words.index("Last decisions")
    alias = simulation.pool.aliases[action // 3]
    assert words[last + 1 : last + 3] == [alias, STRATEGIES[action % 3]]
    assert any(said.startswith("step 60, reward ") for said in words)


def test_the_end_of_a_stream_shows_its_outcome(words: list[str]):
    env = make(STREAM, 10_000, render_mode="rgb_array")
    env.render()
    solved = round(env.unwrapped._log.reward)
    assert "Episode over" in words and "20 of 20 queries arrived, 0 in flight" in words
    assert any(said.startswith(f"20 done, {solved} solved, ") for said in words)
    assert any(said.startswith("query ") and " solved in " in said for said in words)


def test_a_plan_is_shown_as_one(words: list[str]):
    env = gym.make(STREAM, num_queries=5, level="joint", render_mode="rgb_array")
    env.reset(seed=0)
    env.render()
    assert any("needs a plan  ·  planner" in said for said in words)
    env.step(np.array([3, 1, 0, 0, 0, 0, 0, 0, 4]))
    env.render()
    assert {"Debate", "2 agents", "query 1, planner"} <= set(words)
    assert any("Debate, 2 agents" in said for said in words)
    env.step(np.array([3, 1, 0, 0, 0, 0, 0, 0, 4]))
    words.clear()
    env.render()
    assert "Concise" in words and words.count("mistral-24b") == 2  # a server, and a decision


def test_a_late_query_is_said_to_be_late(words: list[str]):
    frames = {}
    for budget_s in (0.1, 1000.0):  # the second of two calls, one after the other
        plan = {"topology": "Chain", "num_agents": 2}
        env = make(
            STREAM, 1, num_queries=1, planner=plan, budget_s=budget_s, render_mode="rgb_array"
        )
        frames[budget_s] = env.render()
    assert any(said.endswith(" s late of 0.1 s") for said in words)
    assert coloured(frames[0.1], BAD) > coloured(frames[1000.0], BAD)
    assert coloured(frames[1000.0], GOOD) > 1000


def test_long_names_and_big_numbers_stay_within_the_width():
    env = make(STREAM, 40, render_mode="rgb_array")
    simulation, long = env.unwrapped.simulation, "a-model-with-a-very-long-alias-indeed"
    models = tuple(m.model_copy(update={"alias": long}) for m in simulation.pool.models)
    simulation.pool = simulation.pool.model_copy(update={"name": long * 3, "models": models})
    simulation.loads = lambda e: (Load(1024, 9999, 1.0),) * 5
    frame = env.render()
    edge = np.concatenate([frame[:, :14].reshape(-1, 3), frame[:, -14:].reshape(-1, 3)])
    assert (edge == PAPER).all()


def test_the_bars_of_the_frame_follow_the_load():
    env = make(STREAM, 40, render_mode="rgb_array")
    frames = {}
    for load in (Load(12, 3, 0.4), Load(0, 0, 0.0)):
        env.unwrapped.simulation.loads = lambda e, load=load: (load,) * 5
        frames[load] = env.render()
    busy, idle = frames.values()
    for colour in (RUNNING, WAITING, CACHE):
        assert coloured(busy, colour) > 50 + coloured(idle, colour)
