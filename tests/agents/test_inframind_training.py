"""Short trainings: they run, learn from every query once, and resume."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from agents import runs
from agents.config import InfraMindConfig
from agents.inframind import Agent, Learner, approx_kl, gae, round_rates, train
from agents.planner_network import Plan
from agents.rollouts import Rollouts, concatenate
from agents.runs import read_metrics, weights_of
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint, multiplier_of
from inframind_gym.policies.checkpoint import load
from inframind_gym.policies.inframind import InfraMindPolicy
from inframind_gym.simulator import SIMULATOR_VERSION

TINY = {
    "env": {"workload": "mixed", "num_queries": 10},
    "rates_per_min": [30, 200],
    "rows": 6,
    "batch_episodes": 16,
    "epochs": 2,
    "validation": {"rows": 1},
}


def config(**changes):
    return InfraMindConfig.model_validate(TINY | changes)


def same(a, b):
    return set(a) == set(b) and all(np.array_equal(a[name], b[name]) for name in a)


def state_of(out):
    return load(out / "state")


def results_of(out):
    """Everything that a training leaves behind, but for how long it took."""
    arrays, numbers = state_of(out)
    numbers["progress"].pop("seconds")
    lines = read_metrics(out / "metrics.jsonl")
    for line in lines:
        line.pop("charts/SPS", None)
    return arrays, numbers, lines, load(out / "best")[0]


def check_same(one, other):
    (arrays, numbers, lines, best), (arrays2, numbers2, lines2, best2) = map(
        results_of, (one, other)
    )
    assert numbers == numbers2
    assert lines == lines2
    assert same(arrays, arrays2)
    assert same(best, best2)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    out = tmp_path_factory.mktemp("training") / "reference"
    train(config(), seed=1, out=out)
    return out


def test_every_query_is_learned_from_once(reference):
    _, numbers, lines, _ = results_of(reference)
    # 2 epochs of 2 rounds of 6 rows of 10 queries; batches of 16, 16 and the other 28 of a round
    assert numbers["progress"]["episodes"] == 2 * 2 * 6 * 10
    assert numbers["progress"]["round"] == 4
    assert numbers["updates"] == 4 * 3
    assert lines[-1]["global_step"] == numbers["progress"]["decisions"]
    policy = InfraMindPolicy(str(reference / "best"))
    assert multiplier_of(policy) == numbers["multiplier"]["value"] > 0


def test_metrics_have_the_names_that_people_look_for(reference):
    lines = read_metrics(reference / "metrics.jsonl")
    names = {name for line in lines for name in line}
    assert names >= {
        *(f"charts/{n}" for n in ("episodic_return", "episodic_cost", "SPS", "violation_rate")),
        *(f"losses/{n}" for n in ("policy_loss", "value_loss", "approx_kl", "entropy")),
        *(f"shares/{n}" for n in ("model/qwen-14b", "strategy/DeepThink", "topology/Debate")),
        "lagrange/lambda",
        "validation/solved",
    }
    for line in lines:
        shares = [v for k, v in line.items() if k.startswith("shares/")]
        assert not shares or sum(shares) == pytest.approx(3.0)


def test_learning_changes_every_tensor_that_has_a_gradient(reference):
    arrays, _ = state_of(reference)
    spec = Rollouts(config().env.arguments("train"), 1).spec
    before = weights_of(Agent(config(), spec, 1))
    assert not same(before, weights_of(Agent(config(), spec, 2)))
    unchanged = {k for k in before if np.array_equal(before[k], arrays[k])}
    # Texts are no parameters; a softmax over keys does not see what is added to all of them.
    assert {k for k in unchanged if not k.endswith(("texts", "key.bias"))} == set()


def test_a_training_that_dies_within_a_round_goes_on_to_the_same_result(
    reference, tmp_path, monkeypatch
):
    out = tmp_path / "killed"
    update, calls = Learner.update, []

    def dying(self, batch):
        calls.append(len(batch))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return update(self, batch)

    monkeypatch.setattr(Learner, "update", dying)
    with pytest.raises(KeyboardInterrupt):
        train(config(), seed=1, out=out)
    monkeypatch.undo()
    assert state_of(out)[1]["progress"]["round"] == 1
    for _ in range(2):  # a training that has finished has nothing to resume
        train(config(), seed=1, out=out, resume=True)
        check_same(reference, out)


def test_a_training_that_is_killed_before_its_first_state_begins_again(
    reference, tmp_path, monkeypatch
):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            train(config(), seed=1, out=tmp_path)
    assert read_metrics(tmp_path / "metrics.jsonl")  # of the first round, which is played again
    train(config(), seed=1, out=tmp_path)
    check_same(reference, tmp_path)


def test_a_folder_that_holds_another_training_is_refused(reference, monkeypatch):
    with pytest.raises(ConfigError, match="--resume"):
        train(config(), seed=1, out=reference)
    with pytest.raises(ConfigError, match=r"another seed \(1, not 2\)"):
        train(config(), seed=2, out=reference, resume=True)
    with pytest.raises(ConfigError, match=r"config\.executor\.lr \(0\.0003, not 0\.5\)"):
        train(config(executor={"lr": 0.5}), seed=1, out=reference, resume=True)
    monkeypatch.setattr(runs, "SIMULATOR_VERSION", 0)
    with pytest.raises(
        ConfigError, match=rf"another simulator_version \({SIMULATOR_VERSION}, not 0\)"
    ):
        train(config(), seed=1, out=reference, resume=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"lagrangian": "dual_critic", "reward": "goodput"},
        {"lagrangian": "pid", "executor": {"joint_head": False}},
        {"lagrangian": "none", "executor": {"dual_pathway": False, "system_state": False}},
    ],
    ids=str,
)
def test_the_variants_and_ablations_train(changes, tmp_path):
    train(config(**changes, epochs=1, rates_per_min=[100]), seed=0, out=tmp_path)
    tensors, _ = load(tmp_path / "best")
    without = changes["lagrangian"] == "none"
    assert ("executor.cost_value.weight" in tensors) != without
    assert (state_of(tmp_path)[1]["multiplier"]["value"] == 0.0) == without


def test_rates_are_a_permutation_in_every_epoch():
    c = config(rates_per_min=[10, 30, 50, 100, 150, 200])
    rounds = np.stack([round_rates(c, 0, r) for r in range(12)])
    for epoch in (rounds[:6], rounds[6:]):
        assert (np.sort(epoch, axis=0).T == [10, 30, 50, 100, 150, 200]).all()
    assert len(np.unique(rounds[:6], axis=1).T) > 1


def played(learner, rates=(30.0, 100.0, 200.0), **changes):
    """All queries of one episode a rate, with the weights of a learner, and the decisions made."""
    rollouts = Rollouts(learner.config.env.arguments("train"), len(rates), **changes)
    rollouts.begin(0, 0, np.array(rates))
    parts, decisions = [], 0
    while rollouts.running.any():
        decisions += int(rollouts.running.sum())
        parts.append(rollouts.step(*learner.players()))
    return concatenate(parts), decisions


def learner_of(**changes):
    c = config(**changes)
    return Learner(c, 0, Rollouts(c.env.arguments("train"), 1).spec)


def test_a_batch_holds_what_was_decided():
    done, decisions = played(learner_of())
    mask, records = done.mask, done.records
    assert len(records) == 30
    assert decisions == 30 + records["num_nodes"].sum()
    assert (done.log_prob[mask] < 0.0).all() and (done.log_prob[mask] > -np.log(15) - 3).all()
    assert (done.resource[mask][:, 0] <= np.log(1000) / np.log(300) + 1e-6).all()
    assert done.elapsed_s.sum(axis=1) == pytest.approx(records["latency_s"], rel=1e-4)
    assert (done.elapsed_s[~mask] == 0.0).all()
    _, count, roles = done.plans()
    assert ((count >= 1) & (count <= 6)).all()
    assert (roles >= 0).all() and (roles[:, 1:][count == 1] == 0).all()


def executor_says(learner, done):
    mask, spec = done.mask, learner.spec
    tasks = done.records["task"][np.nonzero(mask)[0]]
    return learner.agent.executor(
        torch.from_numpy(spec.task_embeddings[tasks]),
        torch.from_numpy(spec.role_embeddings[done.records["role"][mask]]),
        torch.from_numpy(done.resource[mask]),
    )


def test_what_was_noted_is_what_the_networks_say():
    """log π of the noted action, from the noted observation; plans that the planner can draw."""
    learner = learner_of()
    done, _ = played(learner)
    out = executor_says(learner, done)
    routes = torch.from_numpy(done.routes(learner.spec))
    said = out.log_probs.gather(1, routes[:, None])[:, 0]
    assert done.log_prob[done.mask] == pytest.approx(said.detach().numpy(), abs=1e-5)
    plan = Plan(*map(torch.from_numpy, done.plans()))
    planner = learner.agent.planner
    output = planner(
        torch.from_numpy(learner.spec.task_embeddings[done.records["task"]]),
        torch.from_numpy(done.records["domain"].astype(np.int64)),
    )
    assert torch.isfinite(planner.log_prob(output, plan)).all()


def gradients(net):
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("lagrangian", ["paper", "dual_critic"])
def test_the_executors_update_is_the_published_one(lagrangian):
    """Losses and gradients of the first step, written out query by query."""
    learner = learner_of(
        lagrangian=lagrangian,
        executor={"mini_epochs": 1, "gae_lambda": 0.9, "max_grad_norm": 1e9},
    )
    done, _ = played(learner)
    rng = np.random.default_rng(0)
    done.log_prob += rng.normal(0.0, 0.3, done.log_prob.shape).astype(np.float32)  # some clipped
    records, mask = done.records, done.mask
    q, cost = records["solved"].astype(np.float32), records["cost"]
    out = executor_says(learner, done)
    ends = np.cumsum(records["num_nodes"])
    targets, cost_targets, advantage = [], [], []
    for i, record in enumerate(records):
        n = int(record["num_nodes"])
        of = slice(ends[i] - n, ends[i])
        value = out.value[of].detach().numpy()
        if lagrangian == "paper":
            earned = q[i] - 0.2 * record["node_latency_s"][:n] / record["budget_s"]
            targets.append(earned)
            advantage.append(earned - value)
            continue
        rewards, costs = np.zeros((1, n)), done.elapsed_s[i : i + 1, :n] / record["latency_s"]
        rewards[0, -1] = q[i]
        cost_value = out.cost_value[of].detach().numpy()
        of_reward = gae(rewards, value[None], np.array([n]), 1.0, 0.9)[0]
        of_cost = gae(costs * cost[i], cost_value[None], np.array([n]), 1.0, 0.9)[0]
        targets.append(of_reward + value)
        cost_targets.append(of_cost + cost_value)
        advantage.append((of_reward - 0.2 * of_cost) / 1.2)
    a = np.concatenate(advantage)
    a = torch.tensor((a - a.mean()) / a.std(), dtype=torch.float32)
    routes = torch.from_numpy(done.routes(learner.spec))
    log_prob = out.log_probs.gather(1, routes[:, None])[:, 0]
    ratio = (log_prob - torch.from_numpy(done.log_prob[mask])).exp()
    policy = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
    assert 0.0 < ((ratio - 1.0).abs() > 0.2).float().mean() < 1.0
    value_loss = ((out.value - torch.tensor(np.concatenate(targets)).float()) ** 2).mean()
    if lagrangian == "dual_critic":
        wanted = torch.tensor(np.concatenate(cost_targets)).float()
        value_loss = value_loss + ((out.cost_value - wanted) ** 2).mean()
    entropy = torch.distributions.Categorical(logits=out.log_probs).entropy().mean()
    learner.agent.zero_grad()
    (policy + 0.5 * value_loss - 0.10 * entropy).backward()
    expected = gradients(learner.agent.executor)

    found = learner.update_executor(done, q, cost, 0.2)
    assert found["losses/policy_loss"] == pytest.approx(policy.item(), abs=1e-5)
    assert found["losses/value_loss"] == pytest.approx(value_loss.item(), rel=1e-4)
    assert found["losses/entropy"] == pytest.approx(entropy.item(), rel=1e-4)
    assert found["losses/lag_kl"] == pytest.approx(approx_kl(ratio.log().detach()), rel=1e-3)
    for name, gradient in gradients(learner.agent.executor).items():
        near = 1e-3 * float(expected[name].abs().max())
        assert gradient.numpy() == pytest.approx(expected[name].numpy(), abs=near), name


def test_the_planners_update_is_the_published_one():
    """REINFORCE with the task loss of weight 1 and the encoders' loss of weight 0.001."""
    learner = learner_of(planner={"max_grad_norm": 1e9, "vae_weight": 0.0})
    done, _ = played(learner)
    q, cost = done.records["solved"].astype(np.float32), done.records["cost"]
    planner = learner.agent.planner
    domain = torch.from_numpy(done.records["domain"].astype(np.int64))
    query = torch.from_numpy(learner.spec.task_embeddings[done.records["task"]])
    out = planner(query, domain)  # without noise: the heads see the means
    utility = q - 0.2 * cost
    advantage = torch.tensor((utility - utility.mean()) / utility.std()).float()
    policy = -(planner.log_prob(out, Plan(*map(torch.from_numpy, done.plans()))) * advantage).mean()
    task = F.cross_entropy(out.task_logits, domain)
    learner.agent.zero_grad()
    (policy + task).backward()
    expected = gradients(planner)

    found = learner.update_planner(done, q, cost, 0.2)
    assert found["losses/planner_loss"] == pytest.approx(policy.item(), abs=1e-4)
    assert found["losses/task_loss"] == pytest.approx(task.item(), rel=1e-4)
    assert found["losses/vae_loss"] > 0.0
    for name, gradient in gradients(planner).items():
        if name in expected:  # what reads latents back has no part in these two losses
            near = 1e-3 * max(float(expected[name].abs().max()), 1e-2)
            assert gradient.numpy() == pytest.approx(expected[name].numpy(), abs=near), name


def test_without_system_state_nothing_of_the_servers_is_seen():
    done, _ = played(learner_of(), see_system=False)
    assert (done.resource[..., 1:] == 0.0).all()
    assert (done.resource[done.mask][:, 0] > 0.0).any()
