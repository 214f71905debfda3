"""Short trainings: they run, learn from every query once, resume, and do not depend on workers."""

import json

import numpy as np
import pytest

from agents.inframind import training
from agents.inframind.config import InfraMindConfig
from agents.inframind.learner import Learner, approx_kl, normalise
from agents.inframind.policy import InfraMindPolicy
from agents.inframind.rollouts import Shard, by_step, concatenate
from agents.inframind.rounds import cut, round_rates, shard_config
from agents.inframind.training import _play_round, train
from agents.tracking import read_metrics
from inframind_gym.errors import ConfigError
from inframind_gym.policies import multiplier_of
from inframind_gym.policies.checkpoint import load
from tests.agents.gradients import gradients_of

TINY = {
    "env": {"workload": "mixed", "num_queries": 10},
    "rates_per_min": [30, 200],
    "shards": 2,
    "rows_per_shard": 3,
    "steps_per_phase": 8,
    "batch_episodes": 16,
    "epochs": 2,
    "validation": {"rows": 1},
}


def config(**changes):
    return InfraMindConfig.model_validate(TINY | changes)


def same(a, b):
    return set(a) == set(b) and all(np.array_equal(a[name], b[name]) for name in a)


def state_of(out):
    (folder,) = out.glob("state-*")
    return load(folder)


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
    # 2 epochs of 2 rounds of 6 rows of 10 queries; a batch has 16, the last of a round what is left
    assert numbers["progress"]["episodes"] == 2 * 2 * 6 * 10
    assert numbers["progress"]["round"] == 4
    assert 4 * 3 <= numbers["learner"]["updates"] <= 4 * 4
    assert lines[-1]["global_step"] == numbers["progress"]["decisions"]


def test_the_policy_tells_the_multiplier_of_its_training(reference):
    policy = InfraMindPolicy(str(reference / "best"))
    value = state_of(reference)[1]["learner"]["multiplier"]["value"]
    assert multiplier_of(policy) == value > 0


def test_metrics_have_the_names_that_people_look_for(reference):
    lines = read_metrics(reference / "metrics.jsonl")
    names = {name for line in lines for name in line}
    assert names >= {
        "charts/episodic_return",
        "charts/episodic_cost",
        "charts/SPS",
        "charts/violation_rate",
        "losses/policy_loss",
        "losses/value_loss",
        "losses/approx_kl",
        "losses/entropy",
        "lagrange/lambda",
        "shares/model/qwen-14b",
        "shares/strategy/DeepThink",
        "shares/topology/Debate",
        "validation/solved",
    }
    for line in lines:
        shares = [v for k, v in line.items() if k.startswith("shares/")]
        assert not shares or sum(shares) == pytest.approx(3.0)


def test_learning_changes_every_tensor_that_has_a_gradient(reference):
    arrays, _ = state_of(reference)
    learner = Learner(config(), 1, Shard(**shard_config(config(), 1, 0)).facts())
    before = learner.weights()
    changed = {k for k in before if not np.array_equal(before[k], arrays[k])}
    # Texts are no parameters; a softmax over keys does not see what is added to all of them.
    assert {k for k in set(before) - changed if not k.endswith(("texts", "key.bias"))} == set()


def test_a_training_that_was_stopped_goes_on_to_the_same_result(reference, tmp_path):
    out = tmp_path / "stopped"
    train(config(), seed=1, out=out, max_rounds=1)
    assert state_of(out)[1]["progress"]["round"] == 1
    train(config(), seed=1, out=out, resume=True, max_rounds=2)
    train(config(), seed=1, out=out, resume=True)
    check_same(reference, out)


def test_a_training_that_dies_within_a_round_goes_on_to_the_same_result(
    reference, tmp_path, monkeypatch
):
    out = tmp_path / "killed"
    update, calls = Learner.update, []

    def dying(self, batch):
        calls.append(len(batch))
        if len(calls) == 5:
            raise KeyboardInterrupt
        return update(self, batch)

    monkeypatch.setattr(Learner, "update", dying)
    with pytest.raises(KeyboardInterrupt):
        train(config(), seed=1, out=out)
    monkeypatch.undo()
    assert state_of(out)[1]["progress"]["round"] == 1
    train(config(), seed=1, out=out, resume=True)
    check_same(reference, out)


@pytest.mark.slow
def test_the_number_of_workers_does_not_matter(reference, tmp_path):
    train(config(), seed=1, out=tmp_path / "two", workers=2)
    check_same(reference, tmp_path / "two")


def test_another_seed_is_another_training(reference, tmp_path):
    train(config(epochs=1), seed=2, out=tmp_path / "other")
    assert not same(load(reference / "best")[0], load(tmp_path / "other" / "best")[0])


def test_a_finished_training_has_nothing_to_resume(reference):
    before = (reference / "metrics.jsonl").read_text()
    train(config(), seed=1, out=reference, resume=True)
    assert (reference / "metrics.jsonl").read_text() == before


def test_a_folder_that_holds_another_training_is_refused(reference):
    with pytest.raises(ConfigError, match="--resume"):
        train(config(), seed=1, out=reference)
    with pytest.raises(ConfigError, match=r"another seed \(1, not 2\)"):
        train(config(), seed=2, out=reference, resume=True)
    with pytest.raises(ConfigError, match=r"config\.executor\.lr \(0\.0003, not 0\.5\)"):
        train(config(executor={"lr": 0.5}), seed=1, out=reference, resume=True)


@pytest.mark.parametrize("lagrangian", ["dual_critic", "pid", "none"])
def test_the_variants_train(lagrangian, tmp_path):
    changes = {"lagrangian": lagrangian, "reward": "goodput", "epochs": 1}
    train(config(**changes), seed=0, out=tmp_path / "v")
    tensors, _ = load(tmp_path / "v" / "best")
    assert ("executor.cost_value.weight" in tensors) == (lagrangian != "none")
    multiplier = state_of(tmp_path / "v")[1]["learner"]["multiplier"]["value"]
    assert (multiplier == 0.0) == (lagrangian == "none")


@pytest.mark.parametrize(
    "ablation", [{"joint_head": False}, {"dual_pathway": False}, {"system_state": False}]
)
def test_the_ablations_train(ablation, tmp_path):
    train(config(executor=ablation, epochs=1), seed=0, out=tmp_path / "a", max_rounds=1)
    assert state_of(tmp_path / "a")[1]["progress"]["round"] == 1


def test_rates_are_a_permutation_in_every_epoch():
    c = config(rates_per_min=[10, 30, 50, 100, 150, 200])
    rounds = [np.concatenate(round_rates(c, 0, r)) for r in range(12)]
    for epoch in (rounds[:6], rounds[6:]):
        for row in np.stack(epoch, axis=1):
            assert sorted(row) == [10, 30, 50, 100, 150, 200]
    orders = np.stack(rounds[:6], axis=1)
    assert len({tuple(row) for row in orders}) > 1


def shard(**changes):
    return Shard(**(shard_config(config(), 0, 0) | changes))


@pytest.fixture(scope="module")
def weights():
    return Learner(config(), 0, shard().facts()).weights()


def test_a_shard_notes_what_was_decided(weights):
    one = shard()
    one.begin(0, [30.0, 100.0, 200.0])
    phases = [one.play(weights, 16)]
    while phases[-1].running:
        phases.append(one.play(weights, 16))
    done = concatenate([phase.episodes for phase in phases])
    mask = done.decisions()
    assert len(done) == 30
    assert sum(phase.decisions for phase in phases) == 30 + done.length.sum()
    assert (done.log_prob[mask] < 0.0).all() and (done.log_prob[mask] > -np.log(15) - 3).all()
    assert ((done.action >= 0) & (done.action < 15)).all()
    assert (done.resource[mask][:, 0] <= np.log(1000) / np.log(300) + 1e-6).all()
    assert done.elapsed_s.sum(axis=1) == pytest.approx(done.latency_s, rel=1e-4)
    assert done.cost == pytest.approx(done.latency_s / done.budget_s)
    assert ((done.num_agents >= 1) & (done.num_agents <= 6)).all()


def reference_nets(learner):
    """The learner's networks in torch, with gradients."""
    import torch

    from agents.planner.net import PlannerNet
    from tests.agents.torch_executor import ExecutorNet

    nets = ExecutorNet(learner.shape), PlannerNet()
    weights = learner.executor.parameters.copies(), learner.planner.weights()
    for net, arrays in zip(nets, weights, strict=True):
        net.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return nets


def executor_says(net, learner, done):
    """Output of the reference for all decisions of finished queries."""
    import torch

    mask = done.decisions()
    return net(
        torch.from_numpy(learner.tasks[done.task]),
        torch.from_numpy(np.repeat(np.arange(len(done)), done.length)),
        torch.from_numpy(np.array(learner.facts["role_embeddings"])),
        torch.from_numpy(done.role[mask]),
        torch.from_numpy(done.resource[mask]),
    )


def test_what_was_noted_is_what_the_network_says(weights):
    """log π of the noted action, from the noted observation, in torch."""
    import torch

    one = shard()
    learner = Learner(config(), 0, one.facts())
    done = one.evaluate(weights, 0, [100.0] * 3)
    mask = done.decisions()
    executor, planner = reference_nets(learner)
    out = executor_says(executor, learner, done)
    said = out.log_probs.gather(1, torch.from_numpy(done.action[mask])[:, None])[:, 0]
    assert done.log_prob[mask] == pytest.approx(said.detach().numpy(), abs=1e-5)
    plan = planner.log_prob(
        torch.from_numpy(learner.tasks[done.task]),
        torch.from_numpy(done.domain),
        torch.from_numpy(done.topology),
        torch.from_numpy(done.num_agents),
        torch.from_numpy(done.plan_roles),
    )
    assert torch.isfinite(plan).all()


def test_a_shard_acts_alike_with_the_weights_that_it_is_sent():
    learner = Learner(config(), 0, shard().facts())
    assert len(learner.acting()) < len(learner.weights())
    a = shard().evaluate(learner.weights(), 0, [100.0] * 3)
    b = shard().evaluate(learner.acting(), 0, [100.0] * 3)
    assert np.array_equal(a.action, b.action)
    assert np.array_equal(a.plan_roles, b.plan_roles)


@pytest.mark.parametrize("lagrangian", ["paper", "dual_critic"])
def test_the_update_is_that_of_the_specification_in_torch(weights, lagrangian):
    """Losses and gradients of the first step, from §4.3 written out with autograd."""
    import torch

    from agents.inframind.advantages import gae, last_only, paper_rewards, step_costs

    one = shard(network=config(lagrangian=lagrangian).network())
    learner = Learner(
        config(lagrangian=lagrangian, executor={"mini_epochs": 1, "gae_lambda": 0.9}),
        0,
        one.facts(),
    )
    done = one.evaluate(weights, 0, [100.0] * 3)
    rng = np.random.default_rng(0)
    done.log_prob += rng.normal(0.0, 0.3, done.log_prob.shape).astype(np.float32)  # some clipped
    mask, cost, q = done.decisions(), done.cost, done.solved
    executor, _ = reference_nets(learner)
    out = executor_says(executor, learner, done)
    values = out.value.detach().numpy()
    if lagrangian == "paper":
        targets = paper_rewards(done, q, 0.2)[mask]
        advantage = targets - values
    else:
        both = []
        earned = (last_only(done, q), values), (step_costs(done, cost), out.cost_value)
        for rewards, value in earned:
            padded = np.zeros(mask.shape)
            padded[mask] = value if value is values else value.detach().numpy()
            both.append(gae(rewards, padded, done.length, 1.0, 0.9)[mask])
        targets, advantage = both[0] + values, (both[0] - 0.2 * both[1]) / 1.2
        cost_targets = both[1] + out.cost_value.detach().numpy()
    advantage = torch.from_numpy((advantage - advantage.mean()) / advantage.std())
    log_prob = out.log_probs.gather(1, torch.from_numpy(done.action[mask])[:, None])[:, 0]
    ratio = (log_prob - torch.from_numpy(done.log_prob[mask])).exp()
    policy = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    assert 0.0 < ((ratio - 1.0).abs() > 0.2).float().mean() < 1.0
    value_loss = ((out.value - torch.from_numpy(targets)) ** 2).mean()
    if lagrangian == "dual_critic":
        value_loss = value_loss + ((out.cost_value - torch.from_numpy(cost_targets)) ** 2).mean()
    entropy = -(out.log_probs.exp() * out.log_probs).sum(1).mean()
    (policy + 0.5 * value_loss - 0.10 * entropy).backward()

    found = learner._update_executor(done, q, cost, 0.2)
    assert found["losses/policy_loss"] == pytest.approx(policy.item(), abs=1e-5)
    assert found["losses/value_loss"] == pytest.approx(value_loss.item(), rel=1e-4)
    assert found["losses/entropy"] == pytest.approx(entropy.item(), rel=1e-4)
    log_ratio = ratio.log().detach().numpy()
    assert found["losses/lag_kl"] == pytest.approx(approx_kl(log_ratio), rel=1e-3)
    for name, parameter in executor.named_parameters():
        expected = parameter.grad.numpy()
        mine = gradients_of(learner.executor.parameters)[name]
        assert mine == pytest.approx(expected, abs=1e-3 * float(abs(expected).max())), name


def test_the_planners_update_is_that_of_the_specification_in_torch(weights):
    """REINFORCE with task loss of weight 1 and VAE loss of weight 0.001 (§4.2), without noise."""
    import torch
    import torch.nn.functional as F

    one = shard()
    learner = Learner(config(), 0, one.facts())
    learner.planner.noise = lambda rng, n: tuple(np.zeros((k, 64), np.float32) for k in (n, 6, 25))
    done = one.evaluate(weights, 0, [100.0] * 3)
    _, planner = reference_nets(learner)
    domain = torch.from_numpy(done.domain)
    out = planner(torch.from_numpy(learner.tasks[done.task]), domain)
    plans = (torch.from_numpy(a) for a in (done.topology, done.num_agents, done.plan_roles))
    advantage = torch.from_numpy(normalise(done.solved - 0.2 * done.cost))
    policy = -(planner.log_prob_of(out, *plans) * advantage).mean()
    task = F.cross_entropy(out.task_logits, domain)
    (policy + task + 0.001 * out.vae_loss).backward()

    found = learner._update_planner(done, done.solved, done.cost, 0.2)
    assert found["losses/planner_loss"] == pytest.approx(policy.item(), abs=1e-4)
    assert found["losses/task_loss"] == pytest.approx(task.item(), rel=1e-4)
    assert found["losses/vae_loss"] == pytest.approx(out.vae_loss.item(), rel=1e-4)
    for name, parameter in planner.named_parameters():
        expected = parameter.grad.numpy()
        mine = gradients_of(learner.planner.parameters)[name]
        scale = 1e-2 if name.endswith("key.bias") else float(abs(expected).max())
        assert mine == pytest.approx(expected, abs=1e-3 * scale), name


def test_without_system_state_nothing_of_the_servers_is_seen(weights):
    done = shard(see_system=False).evaluate(weights, 0, [200.0] * 3)
    assert (done.resource[..., 1:] == 0.0).all()
    assert (done.resource[done.decisions()][:, 0] > 0.0).any()


def test_the_same_round_is_played_again(weights):
    first, second = shard(), shard()
    a = first.evaluate(weights, 3, [50.0] * 3)
    first.evaluate(weights, 4, [50.0] * 3)
    again, b = first.evaluate(weights, 3, [50.0] * 3), second.evaluate(weights, 3, [50.0] * 3)
    for other in (again, b):
        assert np.array_equal(a.action, other.action)
        assert np.array_equal(a.latency_s, other.latency_s)


def test_episodes_are_cut_in_order(weights):
    done = shard().evaluate(weights, 0, [100.0] * 3)
    merged = by_step([done.take(slice(20, 30)), done.take(slice(0, 20))])
    assert (np.diff(merged.step) >= 0).all()
    batches, rest = cut([done], 8, last=False)
    assert [len(b) for b in batches] == [8, 8, 8] and len(rest) == 6
    batches, rest = cut([done], 8, last=True)
    assert [len(b) for b in batches] == [8, 8, 14] and len(rest) == 0
    assert np.array_equal(concatenate(batches).task, done.task)


def test_a_lost_worker_costs_its_round_a_second_try(reference, tmp_path, monkeypatch):
    from inframind_gym.benchmark.workers import WorkerDiedError

    failed = []

    def losing(learner, fleet, tracker, progress):
        if progress.round == 1 and not failed:
            failed.append(1)
            monkeypatch.setattr(learner, "updates", learner.updates + 7)
            tracker.log(0, {"charts/SPS": 0.0})
            raise WorkerDiedError("a worker died")
        return _play_round(learner, fleet, tracker, progress)

    monkeypatch.setattr(training, "_play_round", losing)
    train(config(), seed=1, out=tmp_path / "lost")
    assert failed
    check_same(reference, tmp_path / "lost")


def test_the_metrics_file_is_json_lines(reference):
    for line in (reference / "metrics.jsonl").read_text().splitlines():
        assert isinstance(json.loads(line), dict)
