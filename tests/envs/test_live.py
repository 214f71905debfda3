"""The live environments: scripted servers for the contract, servers over HTTP for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import agents
import inframind_gym
from inframind_gym.errors import InfraMindError
from inframind_gym.policies import requires_of, resolve_policy
from inframind_gym.tasks.sandbox import Sandbox, SandboxError

LIVE_IDS = tuple(f"InfraMind-{name}Live-v0" for name in ("Executor", "Planner", "Stream"))
assert agents and inframind_gym  # policies and ids are registered


def play(env: gym.Env[Any, Any], policy_name: str, seed: int = 0) -> dict[str, Any]:
    """One episode of a Stream by a policy."""
    policy = resolve_policy(policy_name)
    raw: Any = env.unwrapped
    observation, _ = env.reset(seed=seed)
    policy.reset(raw.policy_spec(), [seed])
    completed, row = [], np.zeros(1, np.int64)
    over = False
    while not over:
        action = policy.act_batch(observation[None], raw.context()[None], row)[0]
        observation, _, over, _, info = env.step(action)
        completed.append(raw.completed())
    return {"records": np.concatenate(completed), "info": info, "observation": observation}


@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")  # those of earlier tests
@pytest.mark.parametrize("live_id", LIVE_IDS)
def test_live_environments_pass_gymnasiums_checks_with_the_surrogates_spaces(live_id: str) -> None:
    env = gym.make(live_id, scripted_s=1.0, num_queries=8)
    check_env(env.unwrapped)
    simulated = gym.make(live_id.replace("Live", ""), num_queries=8)
    assert env.observation_space == simulated.observation_space
    assert env.action_space == simulated.action_space
    env.close()
    assert gym.spec(live_id).nondeterministic


@pytest.mark.parametrize("executor", ["static_mix", "least_loaded", "inframind"])
def test_an_executor_carries_out_live_plans(executor: str) -> None:
    env: Any = gym.make("InfraMind-PlannerLive-v0", scripted_s=2.0, executor=executor)
    env.reset(seed=0)
    chain_of_three = np.array([2, 2, 0, 1, 2, 0, 0, 0])
    _, reward, terminated, _, info = env.step(chain_of_three)
    assert (reward, terminated, info["solved"]) == (1.0, True, True)
    assert info["latency_s"] >= 6.0
    assert info["cost"] == pytest.approx(info["latency_s"] / info["budget_s"])
    env.close()


# One of each kind: by telemetry, online learner, network that plans, recipes that plan.
@pytest.mark.parametrize(
    "policy", ["least_loaded", "linucb", "inframind", "bid_price", "masrouter"]
)
def test_any_policy_plays_both_and_gets_the_same_records(policy: str) -> None:
    needs = requires_of(resolve_policy(policy))
    arguments = {"num_queries": 6, "observation": "index", "workload": "math", **needs}
    simulated = play(gym.make("InfraMind-Stream-v0", **arguments), policy)
    env = gym.make("InfraMind-StreamLive-v0", scripted_s=0.5, **arguments)
    live = play(env, policy)
    env.close()
    assert live["records"].dtype == simulated["records"].dtype
    assert len(live["records"]) == len(simulated["records"]) == 6
    assert live["observation"].shape == simulated["observation"].shape
    assert set(live["info"]) == set(simulated["info"])
    # The same tasks arrive at the same times with the same budgets, whoever serves them.
    for records in (live["records"], simulated["records"]):
        records.sort(order="query")
    for field in ("task", "arrival_s", "budget_s"):
        assert (live["records"][field] == simulated["records"][field]).all()
    assert live["info"]["solve_rate"] == 1.0  # scripted answers are right


def test_no_servers_is_told_with_the_remedy(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="needs the extra `live`")
    from tests.live.vllm_server.live_play import pool_file

    pool = pool_file(tmp_path, ["http://127.0.0.1:9"] * 5)
    env = gym.make("InfraMind-StreamLive-v0", pool=pool, reach_s=0.3)
    with pytest.raises(InfraMindError, match=r"inframind pool up --pool .*pool.yaml"):
        env.reset(seed=0)
    env.close()
    env.close()


@pytest.fixture
def knowing_servers(tmp_path: Path) -> Iterator[tuple[str, list[Any]]]:
    """Servers over HTTP that know what the built-in questions' answers are."""
    pytest.importorskip("aiohttp", reason="needs the extra `live`")
    from inframind_gym.tasks import load_tasks
    from tests.live.vllm_server.fake import Answer
    from tests.live.vllm_server.live_play import five, pool_file

    tasks = load_tasks("builtin", split="all")
    known = {
        text.strip(): answer.value
        for text, answer in zip(tasks.texts, tasks.answers, strict=True)
        if answer.kind in ("number", "expression", "choice")
    }

    def reply(request: dict[str, Any], _: int) -> Answer:
        prompt = request["messages"][-1]["content"]
        value = next(v for text, v in known.items() if text in prompt)
        return Answer(f"So it is. \\boxed{{{value}}}")

    with five(reply) as servers:
        yield pool_file(tmp_path, [server.url for server in servers]), servers


@pytest.mark.parametrize("knows", [True, False])
def test_an_episode_over_http_is_prompted_graded_and_logged(
    knowing_servers: tuple[str, list[Any]], tmp_path: Path, knows: bool
) -> None:
    from tests.live.vllm_server.fake import Answer, records

    pool, servers = knowing_servers
    if not knows:
        for server in servers:
            server.script = lambda request, number: Answer("I do not know.")
    log = tmp_path / "requests.jsonl"
    env = gym.make(
        "InfraMind-StreamLive-v0",
        pool=pool,
        workload="math",
        num_queries=4,
        arrival_rate_per_min=1200.0,
        log=str(log),
        live={"answer_s": 20.0},  # a busy machine is not down
    )
    played = play(env, "round_robin")
    env.close()
    assert played["info"]["solve_rate"] == float(knows)  # found, extracted and graded
    assert len(played["records"]) == 4
    requests = [body for server in servers for body in server.requests]
    lines = records(log)
    assert len(lines) == len(requests)
    assert {line["status"] for line in lines} == {"ok"}
    assert all(isinstance(body["priority"], int) for body in requests)
    decided = int(played["records"]["num_nodes"].sum())
    assert len(requests) >= decided + 4  # every decision, and a deciding call for every query


@pytest.mark.parametrize(
    ("workload", "method", "told"),
    [
        ("mbpp", "run_tests", "that are code cannot be judged here: forbidden"),
        ("math", "same_formula", "formulas cannot be judged here: forbidden"),
        ("mmlu_pro", "run_tests", None),
    ],
)
def test_without_a_sandbox_nothing_is_asked(
    knowing_servers: tuple[str, list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    workload: str,
    method: str,
    told: str | None,
) -> None:
    def forbidden(*_: object) -> None:
        raise SandboxError("forbidden")

    monkeypatch.setattr(Sandbox, method, forbidden)
    pool, servers = knowing_servers
    env = gym.make("InfraMind-StreamLive-v0", pool=pool, workload=workload, num_queries=2)
    if told is None:
        env.reset(seed=0)
    else:
        with pytest.raises(InfraMindError, match=told):
            env.reset(seed=0)
        assert not any(server.requests for server in servers)
    env.close()
