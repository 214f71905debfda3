"""What is rendered is there, legible and harmless: it never changes the simulation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from inframind_gym.envs import render
from inframind_gym.envs.render import Bar, Frame, Headline, Table
from tests.envs.streams import STREAM


def test_the_frame_of_a_stream_tells_what_the_simulation_holds() -> None:
    env = gym.make(STREAM, num_queries=20, down_models=["llama-3b"], render_mode="ansi").unwrapped
    seen, _ = env.reset(seed=3)
    env.action_space.seed(3)
    for _ in range(60):
        seen, *_ = env.step(env.action_space.sample())
    simulation, context, frame = env.simulation, env.context(), env.frame()
    layout = simulation.layout
    assert frame.setting == ("b200-2gpu", "mixed", "100 queries/min", "edf", "parallel")
    assert frame.clock == f"{context['time_s']:.1f} s"
    assert frame.headline.title == f"Query {context['query'] + 1}"
    left_s = float(layout.remaining_budget_s(seen))
    assert left_s <= 1.0 or frame.headline.bar.words.startswith(f"{left_s:.1f} s left of ")
    (table,) = frame.tables
    for m, (row, load) in enumerate(zip(table.rows, simulation.loads(0), strict=True)):
        name, gpu, running, waiting, cache, depth, e2e = row
        model = simulation.pool.models[m]
        assert name == model.alias + (": down" if model.alias == "llama-3b" else "")
        assert gpu == model.gpu
        assert running == Bar(load.running / 16, f"{load.running}/16", render.RUNNING)
        assert waiting.words == str(load.waiting) and cache.words == f"{load.kv_frac:.0%}"
        assert depth == f"{layout.queue_depth_req(seen)[m]:.0f}"
        e2e_s = layout.e2e_s(seen)[m]
        assert e2e == (f"{e2e_s:.1f} s" if e2e_s else "-")


def test_a_plan_and_a_late_query_are_shown_as_such() -> None:
    env = gym.make(STREAM, num_queries=5, level="joint", render_mode="ansi").unwrapped
    env.reset(seed=0)
    assert "needs a plan" in env.render()
    env.step(np.array([3, 1, 0, 0, 0, 0, 0, 0, 4]))
    env.step(np.array([3, 1, 0, 0, 0, 0, 0, 0, 4]))
    lines = env.render()
    assert "Debate, 2 agents  query 1, planner" in lines and "mistral-24b, Concise" in lines
    plan = {"topology": "Chain", "num_agents": 2}
    late = gym.make(STREAM, num_queries=1, planner=plan, budget_s=0.1, render_mode="ansi")
    late.reset(seed=0)
    late.step(0)
    assert " s late of 0.1 s" in late.render()
    late.step(0)
    assert "Episode over" in late.render() and "1 done" in late.render()


def test_long_words_are_cut_and_bars_follow_their_shares() -> None:
    long = "a-model-with-a-very-long-alias-indeed" * 3

    def frame(share: float) -> Any:
        row = (long, Bar(share, "9999/9999", render.WAITING), long)
        table = Table(long, (long, long), (row,) * 40, long)
        headline = Headline(long, long, Bar(share, long[:40], render.GOOD))
        return render.picture(
            Frame(long[:60], (long,), "1 s", "", (table,), headline, ((long, long),), long, long)
        )

    full, empty = frame(1.0), frame(0.0)
    for colour in (render.WAITING, render.GOOD):
        marked = [(p == np.array(colour)).all(axis=-1).sum() for p in (full, empty)]
        assert marked[0] > 1000 and marked[1] == 0
    assert (full[:, -14:] == np.array(render.PAPER)).all()
