"""The Grafana dashboard: it can be imported, and asks for metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import inframind_gym

pytest.importorskip("prometheus_client", reason="needs the extra `live`")

from inframind_gym.envs.exporter import ExportMetrics
from inframind_gym.live.gateway import metrics as gateway
from inframind_gym.live.gateway.metrics import Metrics

assert inframind_gym  # the ids are registered
DASHBOARD = json.loads(
    (Path(__file__).parents[2] / "docs" / "grafana" / "inframind.json").read_text(encoding="utf-8")
)
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}


class Trained:
    """A policy with a multiplier: every gauge has a value."""

    name = "trained"
    multiplier = 0.5


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[str]]:
    """The samples' names that there are, and the labels of each."""
    inner = gym.make("InfraMind-Stream-v0", level="joint", num_queries=3, record_calls=True)
    env: Any = ExportMetrics(inner, port=0)
    env.follow(Trained())
    env.reset(seed=0)
    over = False
    while not over:
        _, _, over, _, _ = env.step(env.action_space.sample())
    env.close()
    found: dict[str, set[str]] = {}
    for registry in (gateway_metrics().registry, env.registry):
        for family in registry.collect():
            for sample in family.samples:
                if sample.name.endswith("_created"):
                    continue
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def gateway_metrics() -> Metrics:
    """Metrics of a gateway, each with a value."""
    metrics = Metrics()
    for name, (_, labels, *_) in gateway.COUNTERS.items():
        metrics.count(name, *labels.split())
    for name, (_, labels, *_) in gateway.HISTOGRAMS.items():
        metrics.observe(name, 1.0, *labels.split())
    metrics.write((name, labels.split(), 1.0) for name, (_, labels) in gateway.GAUGES.items())
    return metrics


def names(text: str) -> set[str]:
    """The metrics that an expression names."""
    return set(re.findall(r"\binframind_\w+", text))


def test_every_metric_that_it_asks_for_is_exposed(exposed: dict[str, set[str]]) -> None:
    asked = set().union(*map(names, EXPRESSIONS))
    assert asked <= set(exposed)
    for variable in VARIABLES.values():
        assert names(variable["query"]["query"]) <= set(exposed)


def test_every_label_that_it_names_is_one_of_the_metrics(exposed: dict[str, set[str]]) -> None:
    added = {"instance"}  # by Prometheus
    for text in EXPRESSIONS:
        known = set().union(*(exposed[name] for name in names(text))) | added
        for name, selector in re.findall(r"\b(inframind_\w+)\{([^}]*)\}", text):
            selected = set(re.findall(r"(\w+)(?:=~|!=|!~|=)", selector))
            assert selected <= exposed[name] | added, text
        for grouped in re.findall(r"by \(([^)]*)\)", text):
            assert set(grouped.split(", ")) <= known, text
    for panel in PANELS:
        for target in panel["targets"]:
            known = set().union(*(exposed[name] for name in names(target["expr"]))) | added
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known


def test_the_selected_routers_and_models_hold_for_every_panel(exposed: dict[str, set[str]]) -> None:
    for text in EXPRESSIONS:
        for name, selector in re.findall(r"\b(inframind_\w+)(?:\{([^}]*)\})?", text):
            assert 'instance=~"$instance"' in selector, text
            assert ("model" in exposed[name]) == ('model=~"$model"' in selector), text
    used = set(re.findall(r"\$(\w+)", " ".join(EXPRESSIONS))) - {"__rate_interval"}
    assert used == set(VARIABLES) == {"instance", "model"}
