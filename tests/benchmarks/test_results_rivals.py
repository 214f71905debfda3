"""The default agent against the best rival of each cell."""

from pathlib import Path

import pytest

from benchmarks.results_page import evidence as evidence_module
from benchmarks.results_page.evidence import gather
from benchmarks.results_page.page import blocks, lines
from benchmarks.results_page.plan import suites_of
from benchmarks.results_page.rivals import duels, rivals_of
from tests.benchmarks.synthetic_plan import fill_results, fluid, plan


def test_the_best_of_a_cell_is_no_variant_and_may_be_another_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_module, "fluid_bounds", fluid)
    chosen = plan(tmp_path)
    variant = chosen.entry("good").model_copy(update={"name": "variant"})
    other = chosen.entry("worse").model_copy(
        update={"name": "other", "kind": "agent", "workloads": ("mbpp",)}
    )
    chosen = chosen.model_copy(update={"entries": (*chosen.entries, variant, other)})
    fill_results(chosen, tmp_path / "results")
    shown = gather(chosen, chosen.entries, suites_of(chosen, {}), tmp_path / "results")
    scores = shown.scores["default"]
    assert [entry.name for entry in rivals_of(chosen, scores)] == ["paper", "mas", "other"]
    found = duels(chosen, scores)
    assert [duel.place for duel in found] == scores.places
    assert [duel.rival for duel in found] == ["paper", "paper", "other", "other"]
    for duel in found:
        own, rival = (
            scores.draws(name, duel.place, "goodput").value for name in ("good", duel.rival)
        )
        assert duel.difference.value == pytest.approx(own - rival)
    closest = min(found, key=lambda duel: duel.difference.value)
    beside = shown.targets[0].beside
    assert f" {100 * closest.difference.value:+.1f} [" in beside
    ahead = sum(duel.difference.interval()[0] > 0 for duel in found)
    assert f"{ahead} of 4 intervals" in beside
    assert beside.endswith(f"`{closest.rival}` on {closest.place[0]} at {closest.place[1]:g}/min")
    assert beside in blocks(shown)["targets_table"]
    assert f"  {beside}" in lines(shown)
    rows = blocks(shown)["best_rivals"].splitlines()
    assert rows[2].startswith("| MATH | `paper` ")
    assert rows[3].startswith("| MBPP | `other` ")


def test_without_the_agent_there_is_nothing_to_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_module, "fluid_bounds", fluid)
    chosen = plan(tmp_path)
    fill_results(chosen, tmp_path / "results", leave_out="good")
    shown = gather(chosen, chosen.entries, suites_of(chosen, {}), tmp_path / "results")
    assert duels(chosen, shown.scores["default"]) == []
    assert "has not been run" in blocks(shown)["best_rivals"]
