"""Stable-Baselines3: credit by query, short trainings of every family, their play."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback

from agents.runs import Run
from baselines.sb3 import (
    LEARNERS,
    CreditByQuery,
    Price,
    export_network,
    make_envs,
    make_learner,
    train,
)
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.scenarios import load_limits
from inframind_gym.policies import checkpoint, resolve_policy
from inframind_gym.policies.checkpoint import SHIPPED
from inframind_gym.policies.mlp import MaskablePpoPlacement
from inframind_gym.train import read_config
from tests.golden.trainers import BASELINES
from tests.policies.rollout import play_assignment, play_coordination, play_token_budget

ROOT = Path(__file__).parents[2]
ROWS = 6
EPISODES = {"token_budget_ppo": play_token_budget, "coordination_ppo": play_coordination}


def short(name: str, *changes: str) -> Any:
    """A configuration with few updates."""
    return read_config(name, [*BASELINES[name], *changes])[1]


@pytest.mark.parametrize("name", BASELINES)
def test_a_short_training_is_played_and_not_repeated(name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    result = train(short(name), Run(out, seed=1))
    assert result["timesteps"] >= 96 and result["episodes"] > 0 and result["last_mean_return"]
    assert (out / "metrics.jsonl").is_file()
    before = (out / "best" / checkpoint.MODEL_FILE).read_bytes()
    assert train(short(name), Run(out, seed=1, resume=True)) == result
    assert (out / "best" / checkpoint.MODEL_FILE).read_bytes() == before
    with pytest.raises(ConfigError, match="another seed"):
        train(short(name), Run(out, seed=2, resume=True))
    if name == "assignment_ppo":
        ppo = resolve_policy(f"sb3_ppo:{out}", family="assignment")
        played = list(play_assignment(ppo, [0, 1], load="queue", num_tasks=10))
        assert sum(len(done.row) for done in played) == 20
        with pytest.raises(ConfigError, match="trained for load 'queue', not 'window'"):
            next(play_assignment(resolve_policy(f"sb3_ppo:{out}", family="assignment"), [0]))
    elif name == "placement_ppo":
        assert MaskablePpoPlacement(str(out)).config.hidden == 4
    elif name in EPISODES:
        ppo = resolve_policy(f"sb3_maskable_ppo:{out}", family=name.removesuffix("_ppo"))
        assert (EPISODES[name](ppo, range(20))["decisions"] > 0).all()
    else:
        config = resolve_policy(f"{name}:{out}").config
        assert config.layers == (37, 64, 64, 15) and config.observation == "compact"
        assert config.training["config"]["env"]["split"] == "train"


@pytest.mark.parametrize(
    ("change", "says"),
    [("arguments.gamma=0.9", "gamma must be 0"), ("env.observation=index", "must be compact")],
)
def test_credit_that_would_be_wrong_is_refused(change: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        short("sb3_ppo", change)


def test_the_cause_of_a_refused_argument_is_kept() -> None:
    config = short("sb3_ppo", "arguments.learning_rate=-1")
    with pytest.raises(ConfigError, match="ppo refuses them") as raised:
        make_learner(config, make_envs(config, workload="math")[1], seed=0)
    assert isinstance(raised.value.__cause__, ValueError)


def test_capacities_are_those_of_the_track() -> None:
    limits = load_limits("steady")
    for learner in LEARNERS:
        for workload, rate in short(f"sb3_{learner}").capacity_per_min.items():
            share = 0.886 if workload == "humaneval" else 1.0  # trained before its bound was wider
            assert rate == pytest.approx(share * limits[workload].capacity_per_min, rel=1e-3)


class Notes(BaseCallback):
    """Notes for which decision an observation was shown, how its query ended, what is learned."""

    def __init__(self, batch: Any) -> None:
        super().__init__()
        self.batch, self.stream = batch, np.zeros(ROWS, np.int64)
        self.shown, self.ended, self.clock_s = dict[bytes, list[Any]](), dict[Any, Any](), {}
        self.learned: list[tuple[Any, ...]] = []

    def _on_training_start(self) -> None:
        self.due = self.batch.simulation.decisions.copy()

    def _on_step(self) -> bool:
        model: Any = self.model
        for row, due in enumerate(self.due):
            key = row, self.stream[row], due["query"]
            decided = key, self.locals["actions"][row], due
            self.shown.setdefault(model._last_obs[row].tobytes(), []).append(decided)
            self.clock_s[key[:2]] = due["time_s"]
        for row, done in zip(*self.batch.completed(), strict=True):
            self.ended[row, self.stream[row], done["query"]] = done.copy()
        self.stream += self.locals["dones"]
        self.due = self.batch.simulation.decisions.copy()
        return True

    def _on_rollout_end(self) -> None:
        model: Any = self.model
        if isinstance(model, stable_baselines3.DQN):
            buffer, last, self.learned = model.replay_buffer, model.replay_buffer.size(), []
            learns = np.ones(last * ROWS, np.bool_)
        else:
            buffer, last = model.rollout_buffer, model.n_steps
            learns = buffer.advantages.ravel() != 0.0
        seen = buffer.observations[:last].reshape(len(learns), buffer.observations.shape[-1])
        columns = seen, buffer.actions[:last].ravel(), buffer.rewards[:last].ravel()
        if not isinstance(model, stable_baselines3.DQN):  # as the policy of now judges them
            masks = [buffer.action_masks] if hasattr(buffer, "action_masks") else []
            given = (torch.from_numpy(each) for each in (seen, columns[1].astype(np.int64), *masks))
            values, log_probs, _ = model.policy.evaluate_actions(*given)
            for kept, now in ((buffer.values, values), (buffer.log_probs, log_probs)):
                now = now.detach().numpy().ravel()
                np.testing.assert_allclose(kept.ravel()[learns], now[learns], atol=1e-5)
        self.learned += zip(*(column[learns] for column in columns), strict=True)


@pytest.mark.parametrize("overrun_s", ["null", "5"])
@pytest.mark.parametrize("learner", LEARNERS)
def test_a_decision_earns_what_its_own_query_has(learner: str, overrun_s: str) -> None:
    changes = {"dqn": "arguments.buffer_size=6000", "a2c": "arguments.n_steps=10"}
    rollout = changes.get(learner, "arguments.n_steps=40")
    stream = ["env.num_queries=400", f"env.truncate_overrun_s={overrun_s}"]
    base, envs = make_envs(short(f"sb3_{learner}", *stream, rollout), workload="math")
    rates = np.linspace(60.0, 500.0, ROWS)
    base.set_options([{"arrival_rate_per_min": rate} for rate in rates.tolist()])
    model: Any = make_learner(short(f"sb3_{learner}", *stream, rollout), envs, seed=0)
    notes, simulation = Notes(base.batch), base.batch.simulation
    credit = CreditByQuery(simulation, Price(target=0.1, gain=0.01))
    for _ in range(2):  # turns; what is open goes over to the next
        model.learn(150 * ROWS, callback=[credit, notes], reset_num_timesteps=False)
    learned, failed = set(), 0
    for seen, action, reward in notes.learned:
        if len(notes.shown[seen.tobytes()]) > 1:  # two decisions look the same
            continue
        key, chosen, due = notes.shown[seen.tobytes()][0]
        assert action == chosen and key not in learned
        learned.add(key)
        price = 0.01 * max(simulation.layout.servers(seen)[chosen // 3, 1] - 0.1, 0.0)
        deadline_s, done = due["arrival_s"] + due["budget_s"], notes.ended.get(key)
        wanted = []
        if done is not None:
            good = done["solved"] and done["latency_s"] <= done["budget_s"]
            wanted.append(good - min(price * done["node_latency_s"][0], 1.0))
        if done is None or done["latency_s"] > done["budget_s"]:  # known at its deadline
            assert deadline_s < notes.clock_s[key[:2]] + 60.0
            wanted.append(-min(price * (deadline_s - due["time_s"]), 1.0))
            failed += 1
        assert min(abs(reward - each) for each in wanted) < 1e-5
    assert failed > 10 and len(learned) > 0.9 * len(notes.ended)


def observations_of(count: int, env_id: str, **arguments: Any) -> tuple[np.ndarray, Any, Any]:
    """Observations of an environment, the contexts of the last step, and its facts."""
    envs: Any = gym.make_vec(env_id, num_envs=ROWS, workload="math", num_queries=200, **arguments)
    seen, rng = [envs.reset(seed=0)[0]], np.random.default_rng(0)
    while len(seen) * ROWS < count:
        seen.append(envs.step(rng.integers(0, 15, ROWS))[0])
    return np.concatenate(seen)[:count], envs.unwrapped.contexts(), envs.unwrapped.policy_spec()


@pytest.mark.parametrize("algorithm", LEARNERS)
def test_numpy_chooses_as_stable_baselines3_does(algorithm: str, tmp_path: Path) -> None:
    config = short(f"sb3_{algorithm}")
    model: Any = make_learner(config, make_envs(config, workload="math")[1], seed=0)
    stream, one_agent = "InfraMind-Stream-v0", {"planner": {"topology": "IO", "num_agents": 1}}
    compact, _, _ = observations_of(240, stream, observation="compact", **one_agent)
    with torch.no_grad():  # weights with which different observations get different actions
        for parameter in model.policy.parameters():
            parameter.normal_(0.0, 0.5)
        for module in model.policy.modules():
            if isinstance(module, torch.nn.Linear) and module.in_features == compact.shape[1]:
                module.weight *= 8.0
                module.bias[:] = -module.weight @ torch.from_numpy(compact.mean(axis=0))
    tensors, network = export_network(model)
    _, shipped = checkpoint.load(SHIPPED / f"sb3_{algorithm}")
    checkpoint.save(tmp_path, tensors, shipped | network | {"observation": "compact"})
    policy = resolve_policy(f"sb3_{algorithm}:{tmp_path}")
    assert policy.requires["planner"] == one_agent["planner"]
    arguments = one_agent | {"system_features": policy.requires["system_features"]}
    index, contexts, spec = observations_of(240, stream, observation="index", **arguments)
    policy.reset(spec, [0] * ROWS)
    expected, _ = model.predict(compact, deterministic=True)
    values = policy.values(compact)
    margins = np.diff(np.sort(values, axis=1)[:, -2:])[:, 0]
    clear = margins > 1e-5  # float32 and float64 may part where two actions tie
    assert clear.mean() > 0.95 and len(set(expected.tolist())) > 3
    np.testing.assert_array_equal(values.argmax(axis=1)[clear], expected[clear])
    contexts["models_up"] = 0b10110  # models 0 and 3 are down
    masked = policy.act_batch(index[-ROWS:], contexts, np.arange(ROWS))
    assert set((masked // 3).tolist()) <= {1, 2, 4}


def test_playing_needs_neither_torch_nor_sb3() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'stable_baselines3', 'sb3_contrib'): sys.modules[name] = None\n"
        "import gymnasium as gym, inframind_gym\n"
        "from inframind_gym.policies import policy_names, resolve_policy\n"
        "for name in {*policy_names()}:\n"
        "    policy = resolve_policy(name)\n"
        "    env = gym.make('InfraMind-Stream-v0', num_queries=4, **policy.requires)\n"
        "    observation, _ = env.reset(seed=0)\n"
        "    policy.reset(env.unwrapped.policy_spec(), [0])\n"
        "    env.step(policy.act(observation, env.unwrapped.context()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
