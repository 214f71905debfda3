"""Observations, contexts and finished queries made by hand: what a policy sees, no server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.policies import Contexts, ObservationLayout, Policy, PolicySpec
from inframind_gym.simulator.workflow.state import COMPLETED, CONTEXT
from inframind_gym.simulator.workflow.topology import STRATEGIES, TOPOLOGIES, graph

MODELS = ("deepseek-32b", "mistral-24b", "qwen-14b", "llama-8b", "llama-3b")


def make_spec(
    models: Sequence[str] = MODELS,
    *,
    embedding: Any = "index",
    system_features: tuple[str, ...] = ("queue", "e2e"),
    **changes: Any,
) -> PolicySpec:
    """The five models of the measured testbed with round numbers; `changes` replace fields."""
    num_models = len(models)
    fields: dict[str, Any] = {
        "models": tuple(models),
        "strategies": STRATEGIES,
        "layout": ObservationLayout(num_models, embedding, system_features),
        "workload": "math",
        "budget_tiers_s": [10, 30, 50, 100, 200, 300, 600, 1000],
        "model_share": np.array([0.1, 0.1, 0.3, 0.25, 0.25, 0.2])[:num_models]
        / np.array([0.1, 0.1, 0.3, 0.25, 0.25, 0.2])[:num_models].sum(),
        "strategy_share": [0.3, 0.5, 0.2],
        "expected_call_s": [45.0, 6.7, 10.5, 4.8, 3.5, 2.0][:num_models],
        "ability": [2.0, 1.5, 1.0, 0.5, 0.0, -0.5][:num_models],
        "max_num_seqs": [16] * num_models,
    }
    return PolicySpec(**(fields | changes))


def observe(
    spec: PolicySpec,
    *,
    remaining_s: float | NDArray[np.float64] = 100.0,
    depth_req: Any = 0.0,
    e2e_s: Any = 0.0,
    kv_frac: Any = 0.0,
    n: int = 1,
) -> NDArray[np.float32]:
    """(n, d) observations with the given budget and telemetry, normalised as in the spec."""
    layout = spec.layout
    observations = np.zeros((n, layout.size), np.float32)
    observations[:, layout.budget] = np.log(np.maximum(remaining_s, 1.0)) / math.log(300.0)
    telemetry = {
        "queue": np.asarray(depth_req) / layout.queue_norm,
        "e2e": np.log1p(np.asarray(e2e_s, np.float64)) / math.log(300.0),
        "kv": np.asarray(kv_frac),
    }
    for feature in layout.system_features:
        observations[:, layout.system(feature)] = telemetry[feature]
    return observations


def make_contexts(n: int = 1, **fields: Any) -> Contexts:
    """(n,) contexts of an IO workflow of one agent, all models up; `fields` replace columns."""
    contexts = np.zeros(n, CONTEXT)
    contexts["budget_s"] = 100.0
    contexts["num_nodes"] = contexts["num_agents"] = contexts["num_waves"] = 1
    contexts["models_up"] = (1 << len(MODELS)) - 1
    for name, value in fields.items():
        contexts[name] = value
    return contexts


def random_run(
    spec: PolicySpec, rows: int, steps: int, seed: int = 0
) -> list[tuple[NDArray[np.float32], Contexts]]:
    """`steps` batches for `rows` rows: times rise, polls come now and then, models go down."""
    rng = np.random.default_rng(seed)
    time_s = np.zeros(rows)
    run = []
    for _ in range(steps):
        time_s += rng.exponential(1.0, rows)
        topology = rng.integers(len(TOPOLOGIES), size=rows)
        agents = rng.integers(1, 7, rows)
        graphs = [graph(TOPOLOGIES[t], k) for t, k in zip(topology, agents, strict=True)]
        num_nodes = np.array([g.num_nodes for g in graphs])
        node = rng.integers(num_nodes)
        contexts = make_contexts(
            rows,
            query=rng.integers(20, size=rows),
            task=rng.integers(500, size=rows),
            node=node,
            num_nodes=num_nodes,
            wave=[g.waves[i] for g, i in zip(graphs, node, strict=True)],
            num_waves=[max(g.waves) + 1 for g in graphs],
            topology=topology,
            num_agents=agents,
            domain=rng.integers(3, size=rows),
            role=rng.integers(25, size=rows),
            budget_s=rng.choice(spec.budget_tiers_s, rows),
            arrival_s=time_s * rng.random(rows),
            time_s=time_s,
            poll=time_s // 5.0,
            models_up=rng.integers(1, 2**spec.num_models, rows),
        )
        observations = observe(
            spec,
            remaining_s=rng.uniform(1.0, 1000.0, rows),
            depth_req=rng.integers(0, 40, (rows, spec.num_models)),
            e2e_s=rng.exponential(20.0, (rows, spec.num_models)),
            n=rows,
        )
        run.append((observations, contexts))
    return run


def make_completed(queries: Sequence[int], **fields: Any) -> NDArray[np.void]:
    """Finished queries, solved in half of their budget unless `fields` say otherwise."""
    completed = np.zeros(len(queries), COMPLETED)
    completed["query"] = queries
    completed["solved"] = 1
    completed["budget_s"] = 100.0
    completed["latency_s"] = 50.0
    completed["is_controlled"] = 1
    for name, value in fields.items():
        completed[name] = value
    completed["cost"] = completed["latency_s"] / completed["budget_s"]
    return completed


def act_all(policy: Policy, observations: NDArray[np.float32], contexts: Contexts) -> list[int]:
    """The policy's actions for rows 0, 1, ..., one batch."""
    return policy.act_batch(observations, contexts, np.arange(len(contexts))).tolist()
