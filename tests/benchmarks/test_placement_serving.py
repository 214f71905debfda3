"""The comparison of placement's serving with the kernel, and the constants that come of it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import placement_serving as serving
from inframind_gym.benchmark.placement.suite import PlacementCell, PlacementSuite
from inframind_gym.envs.placement.simulation import PlacementSimulation
from inframind_gym.simulator.placement.cards import load_cluster


def row(policy: str, line_s: float, kernel_s: float, cluster: str = "a") -> dict[str, Any]:
    figures = {f"{name}_{way}": 50.0 for name in serving.FIGURES for way in ("line", "kernel")}
    place = {"cluster": cluster, "demand": "steady", "load": 1.0, "policy": policy}
    return {**place, **figures, "call_s_line": line_s, "call_s_kernel": kernel_s}


def test_the_catalogue_has_the_constants_of_the_estimated_cards() -> None:
    _, cards = load_cluster("h100-64gpu")
    assert len(cards) == 16
    for card in cards:
        found = serving.serving_constants(serving.server_card(card))
        assert {name: getattr(card, name) for name in found} == found, card.alias


def test_a_line_meets_the_steps_of_one_call_and_of_all_slots() -> None:
    card = serving.server_card(load_cluster("h100-4gpu")[1][0])
    line, step = serving.serving_constants(card), card.step
    for batch in (1, 32):
        tokens_s = step.base_s + step.computing_s(batch) + step.per_seq_s * batch
        wanted = tokens_s + step.per_kv_token_s * serving.CONTEXT * batch
        assert line["base_s"] + line["per_seq_s"] * batch == pytest.approx(wanted, rel=5e-3)


def test_pairs_that_are_ranked_otherwise() -> None:
    rows = [row("x", 1.0, 2.0), row("y", 2.0, 1.0), row("z", 9.0, 9.0), row("x", 1.0, 2.0, "b")]
    assert serving.swapped(rows) == [(1.0, ("x", "y"))]


def test_differences_are_ratios_or_points() -> None:
    rows = [row("x", 2.0, 1.0), row("y", 8.0, 1.0)]
    assert serving.difference(rows, "call_s")[0] == pytest.approx(300.0)
    assert serving.difference([dict(rows[0], slo_pct_line=47.0)], "slo_pct")[0] == -3.0


@pytest.mark.slow
def test_a_short_episode_is_served_alike_by_both_ways() -> None:
    found = {}
    for kind in (PlacementSimulation, serving.KernelServed):
        suite = PlacementSuite(
            name="t", policies=("static",), clusters=("h100-4gpu",), demands=("steady",)
        )
        played = serving.Sampled(suite.model_copy(update={"num_decisions": 40, "load": 0.2}))
        played.kind = kind
        list(played.run([PlacementCell("static", "h100-4gpu", "steady", 0)]))
        found[kind] = serving.figures(played, 0)
        assert played.simulation.state.episode[0]["requests_done"] > 30
    line, kernel = found.values()
    assert line["running_s"] == pytest.approx(kernel["running_s"], rel=0.15)
    assert line["done_pct"] == pytest.approx(kernel["done_pct"], abs=10.0)
