"""MasRouter: its loss learns, what queries cost, its update; the policy reads texts alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agents.masrouter import Answers, IdleQueries, Learner, MasRouterConfig, MasRouterNet, train
from agents.planner_network import PlannerNet
from agents.runs import BEST, Run, weights_of
from inframind_gym.envs.routing import StreamVectorEnv
from inframind_gym.policies import BasePolicy, checkpoint
from inframind_gym.policies.networks import (
    ROLE_DOMAIN,
    ROLE_START,
    MasRouterPolicy,
    TextRouter,
    softmax,
)
from inframind_gym.simulator.workflow.state import PLAN
from inframind_gym.simulator.workflow.topology import TOPOLOGIES
from tests.envs.streams import make_batch, sweep
from tests.policies.synthetic import MODELS, make_spec

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
def net() -> MasRouterNet:
    """An untrained router, in which every choice is about as likely."""
    torch.manual_seed(0)
    return MasRouterNet(MODELS)


@pytest.fixture(scope="module")
def router(net) -> TextRouter:
    return TextRouter(weights_of(net), MODELS, draw_count=True)


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


# The policy: text alone decides


@pytest.fixture(scope="module")
def folder(net, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("masrouter") / "seed0"
    checkpoint.save(path, weights_of(net), {"algorithm": "masrouter", "models": list(MODELS)})
    return str(path)


def play(policy, rows=1, rate=100.0, **arguments):
    """Completed queries of an episode, row by row."""
    env = make_batch(rows, level="joint", num_queries=15, **arguments)
    return np.concatenate(sweep(env, policy, range(100, 100 + rows), arrival_rate_per_min=rate))


def test_choices_do_not_depend_on_load_or_budget(folder):
    calm = play(MasRouterPolicy(folder), rate=1.0, budget_s=1000.0)
    busy = play(MasRouterPolicy(folder), rate=600.0, budget_s=10.0)
    for field in ("task", "topology", "num_agents", "role", "model", "strategy"):
        np.testing.assert_array_equal(calm[field], busy[field], err_msg=field)


def test_an_agent_keeps_its_model_and_queries_differ(folder):
    done = play(MasRouterPolicy(folder), 3)
    assert len({int(record["topology"]) for record in done}) > 3
    assert len({int(m) for r in done for m in r["model"][: r["num_nodes"]]}) == 5
    assert len({int(s) for r in done for s in r["strategy"][: r["num_nodes"]]}) == 3
    debates = [r for r in done if r["topology"] == TOPOLOGIES.index("Debate")]
    assert debates
    for record in debates:
        k = int(record["num_agents"])
        np.testing.assert_array_equal(record["model"][:k], record["model"][k : 2 * k])


def test_the_pool_may_order_its_models_otherwise(folder):
    """A model's probabilities follow its name."""
    policy = MasRouterPolicy(folder)
    contexts = np.zeros(1, StreamVectorEnv(1, level="joint").contexts().dtype)
    contexts["kind"], contexts["models_up"] = PLAN, 31
    embeddings = np.random.default_rng(0).normal(size=(1, 384)).astype(np.float32)
    spec = make_spec(level="joint", task_embeddings=embeddings)
    turned = make_spec(spec.models[::-1], level="joint", task_embeddings=embeddings)
    found = []
    for each in (spec, turned):
        policy.reset(each, [1])
        policy.act_batch(np.zeros((1, 14), np.float32), contexts, np.zeros(1, np.int64))
        found.append(policy._probabilities[0, 0])
    np.testing.assert_array_equal(found[0], found[1][::-1])
    assert found[0].sum() == pytest.approx(1.0) and len(set(found[0].tolist())) == 5
