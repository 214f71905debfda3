"""The gateway's decisions in virtual time."""

from __future__ import annotations

from typer.testing import CliRunner

from benchmarks.gateway_load import Load, app, play, right_answers
from inframind_gym.live.gateway.choose import SingleCallPolicy
from inframind_gym.live.gateway.config import GatewayConfig
from inframind_gym.live.simulated.answers import AnswerLengths
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workload import load_workload


def test_requests_of_two_gateways_are_answered() -> None:
    pool = load_pool("b200-2gpu")
    lengths = AnswerLengths(load_workload("mixed"), pool.aliases)
    load = Load("mixed", None, 120.0, 40, 1.0, seed=1)
    desks = [SingleCallPolicy(GatewayConfig(policy="least_loaded")) for _ in range(2)]
    found, right = play(load, desks, pool, lengths), right_answers(pool, "mixed")
    assert all(out.status == 200 and out.latency_s > 0.0 for out in found)
    assert all(0.2 < right[out.domain, out.model, out.strategy] < 1.0 for out in found)


def test_the_command_prints_a_row_for_a_policy_and_a_rate() -> None:
    options = "--policies least_loaded --per-min 60,90 --minutes 1 --repeats 1"
    done = CliRunner().invoke(app, ["virtual", *options.split()])
    assert done.exit_code == 0, done.output
    assert done.output.count("least_loaded") == 2
