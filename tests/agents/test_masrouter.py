"""Training of MasRouter: its loss learns, what queries cost, determinism, checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agents.masrouter import (
    BEST,
    LAST,
    Choices,
    IdleQueries,
    MasRouterConfig,
    Outcome,
    Training,
    train,
)
from agents.planner_network import PlannerNet
from agents.train import read_config
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.simulator.workflow.topology import TOPOLOGIES

MODELS = ("deepseek-32b", "mistral-24b", "qwen-14b", "llama-8b", "llama-3b")
PRICES = dict(zip(MODELS, (0.8, 0.6, 0.4, 0.2, 0.1), strict=True))


def make_config(**changes) -> MasRouterConfig:
    fields = {
        "updates": 4,
        "validate_every": 2,
        "validation_queries": 32,
        "usd_per_million_tokens": PRICES,
    }
    return MasRouterConfig(**(fields | changes))


class ToyQueries(IdleQueries):
    """Queries that are solved as a function of the choices alone."""

    def __init__(self, like: IdleQueries, rule) -> None:
        self.__dict__.update(like.__dict__)
        self.rule = rule

    def finish(self, choices: Choices) -> Outcome:
        solved = self.rule(choices).astype(np.float64)
        return Outcome(solved, np.zeros_like(solved), np.zeros_like(solved))


def test_the_shipped_configuration_is_valid_and_masrouters():
    _, config = read_config("masrouter", [])
    assert (config.batch_size, config.learning_rate, config.vae_weight) == (16, 0.01, 0.001)
    assert config.cost_rate == 10


@pytest.mark.parametrize(
    ("rule", "by_chance"),
    [
        (lambda c: c.topology == TOPOLOGIES.index("Debate"), 1 / 6),
        (lambda c: c.models[:, 0] == 2, 1 / 5),
        (lambda c: c.num_agents >= 5, 0.05),  # three agents are the likeliest at first
    ],
    ids=["mode", "model", "count"],
)
def test_training_finds_the_choice_that_solves(rule, by_chance):
    training = Training(make_config(), seed=1)
    training.queries = ToyQueries(training.queries, rule)
    history = [training.update() for _ in range(150)]
    assert history[0]["charts/utility"] < by_chance + 0.3
    # softmax(cos / 0.8) over six puts at most 0.71 on one, softmax(cos) over five at most 0.65.
    # The median: a batch of 16 now and then throws the policy back for some updates.
    assert np.median([h["charts/utility"] for h in history[-80:]]) > by_chance + 0.3
    assert history[-1]["losses/task"] < history[0]["losses/task"]


@pytest.fixture(scope="module")
def idle() -> IdleQueries:
    return IdleQueries({"workload": "all", "split": "val"}, 24, PRICES)


def test_dollars_are_prices_times_tokens_of_every_call(idle):
    n = 24
    rng = np.random.default_rng(0)
    for m in (0, 4):
        _, domains = idle.begin([(5, row) for row in range(n)])
        outcome = idle.finish(
            Choices(
                rng.integers(6, size=n),
                rng.integers(1, 7, size=n),
                rng.integers(6, size=(n, 6)),
                np.full((n, 6), m),
            )
        )
        ended = idle.simulation.state.completed[:, 0]
        tokens = ended["prompt_tokens"] + ended["output_tokens"]
        assert (ended["final_model"] == m).all() and (ended["domain"] == domains).all()
        np.testing.assert_allclose(outcome.usd, tokens * PRICES[idle.models[m]] / 1e6)
        np.testing.assert_array_equal(outcome.solved, ended["solved"])


def test_models_go_to_the_agents_they_were_drawn_for(idle):
    n = 24
    debate = TOPOLOGIES.index("Debate")
    models = np.random.default_rng(1).integers(5, size=(n, 6))
    idle.begin([(6, row) for row in range(n)])
    roles = np.zeros((n, 6), np.int64)
    idle.finish(Choices(np.full(n, debate), np.full(n, 3), roles, models))
    ended = idle.simulation.state.completed[:, 0]
    np.testing.assert_array_equal(ended["model"][:, :3], models[:, :3])
    np.testing.assert_array_equal(ended["model"][:, 3:6], models[:, :3])


def test_a_query_and_its_luck_belong_to_its_key(idle):
    n = 24
    same = Choices(np.zeros(n, int), np.ones(n, int), np.zeros((n, 6), int), np.zeros((n, 6), int))
    outcomes, tasks = [], []
    for keys in ([(7, r) for r in range(n)], [(7, r) for r in range(n)][::-1]):
        tasks.append(idle.begin(keys)[0])
        outcomes.append(idle.finish(same))
    np.testing.assert_array_equal(tasks[0], tasks[1][::-1])
    np.testing.assert_array_equal(outcomes[0].usd, outcomes[1].usd[::-1])
    np.testing.assert_array_equal(outcomes[0].solved, outcomes[1].solved[::-1])


def test_a_training_is_a_function_of_its_seed_and_resumes_to_the_same_result(tmp_path):
    config = make_config()
    result = train(config, seed=0, out=tmp_path / "whole")
    assert result["updates"] == 4 and result["best_updates"] in (2, 4)
    stopped = Training(config, 0)
    for _ in range(2):
        stopped.update()
    stopped.validate()
    stopped.save(tmp_path / "stopped")
    train(config, seed=0, out=tmp_path / "stopped", resume=True)
    train(make_config(updates=1), seed=1, out=tmp_path / "other")
    for folder in (BEST, LAST):
        expected, facts = checkpoint.load(tmp_path / "whole" / folder)
        found, found_facts = checkpoint.load(tmp_path / "stopped" / folder)
        assert facts == found_facts
        assert expected.keys() == found.keys()
        for name in expected:
            np.testing.assert_array_equal(expected[name], found[name], err_msg=name)
    seed_1, _ = checkpoint.load(tmp_path / "other" / LAST)
    seed_0, _ = checkpoint.load(tmp_path / "whole" / LAST)
    assert any(not np.array_equal(seed_0[name], seed_1[name]) for name in seed_0)
    for seed, resume, why in ((0, False, "--resume"), (1, True, "another seed")):
        with pytest.raises(ConfigError, match=why):
            train(config, seed=seed, out=tmp_path / "whole", resume=resume)


def test_the_planner_of_a_checkpoint_starts_inframinds_planner(tmp_path):
    train(make_config(updates=1, validate_every=1), seed=0, out=tmp_path)
    tensors, _ = checkpoint.load(tmp_path / BEST)
    planner = checkpoint.part(tensors, "planner.")
    net = PlannerNet()
    assert planner.keys() == net.state_dict().keys()
    net.load_state_dict({name: torch.tensor(array) for name, array in planner.items()})
    heads = {"task_classifier", "collab_mode", "num_agents", "role_selector", "query_encoder"}
    assert {name.split(".")[0] for name in planner} == heads
    assert {name.split(".")[0] for name in tensors} == {"planner", "llm_router"}


def test_every_model_needs_a_price():
    with pytest.raises(ConfigError, match="llama-3b"):
        IdleQueries({}, 1, {k: v for k, v in PRICES.items() if k != "llama-3b"})
