"""Training of MasRouter: its loss learns, what queries cost, determinism, checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agents.masrouter import (
    Answers,
    IdleQueries,
    Learner,
    MasRouterConfig,
    MasRouterNet,
    train,
)
from agents.planner_network import PlannerNet
from agents.runs import BEST, Run, weights_of
from inframind_gym.policies import BasePolicy, checkpoint
from inframind_gym.policies.networks import ROLE_DOMAIN, ROLE_START, TextRouter, softmax
from inframind_gym.simulator.workflow.topology import TOPOLOGIES

MODELS = ("deepseek-32b", "mistral-24b", "qwen-14b", "llama-8b", "llama-3b")
PRICES = dict(zip(MODELS, (0.8, 0.6, 0.4, 0.2, 0.1), strict=True))


def make_config(**changes) -> MasRouterConfig:
    fields = {
        "steps": 4,
        "validate_every": 2,
        "validation_queries": 32,
        "usd_per_million_tokens": PRICES,
    }
    return MasRouterConfig(**(fields | changes))


def test_training_finds_the_choices_that_earn():
    """A mode, a first model and a count earn one each, whatever the question."""
    # Sums differ with the threads of torch; this seed learns with one and with two.
    training = Learner(make_config(draw_count=True, agents=3), seed=2)
    play, shares = training.queries.play, []

    def earn(policy, seeds) -> Answers:
        records, _ = play(policy, seeds)
        earned = (
            records["topology"] == TOPOLOGIES.index("Debate"),
            records["model"][:, 0] == 2,
            records["num_agents"] >= 5,  # three agents are the likeliest at first
        )
        shares.append(np.mean(earned, axis=1))
        usd = (records["solved"] - np.sum(earned, axis=0)) / training.config.cost_rate
        return Answers(records, usd)

    training.queries.play = earn
    history = [training.update() for _ in range(150)]
    by_chance = np.array([1 / 6, 1 / 5, 0.05])
    assert (shares[0] < by_chance + 0.3).all()
    # softmax(cos / 0.8) over six puts at most 0.71 on one, softmax(cos) over five at most 0.65.
    # The median: a batch of 16 now and then throws the policy back for some updates.
    assert (np.median(shares[-80:], axis=0) > by_chance + 0.3).all()
    assert history[-1]["losses/task"] < 0.5 * history[0]["losses/task"]


@pytest.fixture(scope="module")
def idle() -> IdleQueries:
    return IdleQueries({"workload": "all", "split": "val"}, 24, PRICES)


@pytest.fixture(scope="module")
def router() -> TextRouter:
    """An untrained router, in which every choice is about as likely."""
    torch.manual_seed(0)
    return TextRouter(weights_of(MasRouterNet(MODELS)), MODELS, draw_count=True)


class Only(BasePolicy):
    """The plans of a router, all of whose calls go to one model."""

    def __init__(self, router: TextRouter, model: int) -> None:
        self.router, self.model = router, model

    def reset(self, spec, seeds):
        super().reset(spec, seeds)
        self.router.reset(spec, seeds)

    def act_batch(self, observations, contexts, rows):
        actions = self.router.act_batch(observations, contexts, rows)
        actions[:, -1] = self.spec.action(self.model, 1)
        return actions


def test_dollars_are_prices_times_tokens_of_every_call(idle, router):
    for m in (0, 4):
        records, usd = idle.play(Only(router, m), range(24))
        tokens = records["prompt_tokens"] + records["output_tokens"]
        assert (records["final_model"] == m).all()
        np.testing.assert_allclose(usd, tokens * PRICES[MODELS[m]] / 1e6)


def test_a_query_and_its_luck_belong_to_its_seed(idle, router):
    one, two = (idle.play(router, seeds) for seeds in (range(24), range(24)[::-1]))
    np.testing.assert_array_equal(one.records, two.records[::-1])
    np.testing.assert_array_equal(one.usd, two.usd[::-1])


@pytest.mark.parametrize("baseline", [True, False])
def test_the_update_is_reinforce_with_the_task_and_the_encoders_losses(baseline):
    """The loss of a batch, written out query by query in NumPy from the player's probabilities."""
    training = Learner(make_config(batch_size=24, vae_weight=0.0, baseline=baseline), seed=3)
    assert training.config.agents == 5
    router = TextRouter(weights_of(training.net), MODELS)
    kept = []
    queries, play = training.queries, training.queries.play
    queries.play = lambda *args: kept.append(play(*args)) or kept[-1]
    found = training.update()
    (records, usd), planner = kept[0], router.planner
    latent = planner.encode(queries.spec.task_embeddings[records["task"]])
    domain = records["domain"].astype(np.int64)
    start = ROLE_START[domain]
    losses = []
    for i, r in enumerate(records):
        k, one = int(r["num_agents"]), slice(i, i + 1)
        topology, count = np.array([r["topology"]]), np.array([k])
        roles = np.zeros((1, 6), np.int64)
        roles[0, :k] = r["role"][:k] - start[i]
        p = softmax(planner.modes.scores(latent[one]) / 0.8)[0, r["topology"]]
        assert k == 5  # the likeliest count, which has no gradient
        mode, seen = planner.modes.latents[topology], []
        for role in r["role"][:k]:
            before = np.mean(seen, axis=0) if seen else planner._weights["role_selector.start"]
            context = planner.roles.context(latent[one], mode, before[None])
            mask = (domain[i] == ROLE_DOMAIN)[None]
            p *= softmax(planner.roles.scores(context, mask) / 0.5)[0, role]
            seen.append(planner.roles.latents[role])
        of_models = router.probabilities(latent[one], domain[one], topology, count, roles)[0]
        p *= np.prod(of_models[r["model"][:k]])
        losses.append(-np.log(p))
    utility = records["solved"] - 10.0 * usd
    expected = np.mean(losses * (utility - baseline * utility.mean()))
    assert found["losses/policy"] == pytest.approx(expected, rel=1e-3)
    assert found["losses/vae"] > 0.0


def test_the_planner_of_a_checkpoint_starts_inframinds_planner(tmp_path):
    train(make_config(steps=1, validate_every=1), Run(tmp_path))
    tensors, _ = checkpoint.load(tmp_path / BEST)
    planner = checkpoint.part(tensors, "planner.")
    net = PlannerNet()
    assert planner.keys() == net.state_dict().keys()
    net.load_state_dict({name: torch.tensor(array) for name, array in planner.items()})
    heads = {"task_classifier", "collab_mode", "num_agents", "role_selector", "query_encoder"}
    assert {name.split(".")[0] for name in planner} == heads
    assert {name.split(".")[0] for name in tensors} == {"planner", "llm_router"}
