"""From servers to a surrogate of them: servers whose cards are known, and servers over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from inframind_gym.calibration.sim2real.command import run
from inframind_gym.calibration.sim2real.fit import fit_pool
from inframind_gym.calibration.sim2real.report import compared
from inframind_gym.calibration.sim2real.sweep import Sweep, _play, play_simulated
from inframind_gym.cli import app
from inframind_gym.envs.routing.backend_simulation import BackendSimulation, open_surrogate
from inframind_gym.errors import InfraMindError
from inframind_gym.live.config import LiveConfig, live_config
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from tests.envs.test_live import pool_file


def config_of(pool: str, queries: int = 40) -> LiveConfig:
    return live_config(
        {"pool": pool, "workload": "math", "num_queries": queries, "record_calls": True}
    )


def played(config: LiveConfig, rate_per_min: float, seed: int) -> Sweep:
    """A sweep of servers that are what the pool's file says."""
    simulation = BackendSimulation(config, open_surrogate, one_query=False)
    return _play(simulation, rate_per_min, seed)


def other_cards(pool: PoolConfig) -> PoolConfig:
    """The pool with step costs that are off by a factor of 2 to 3, and no slowdown."""
    models = tuple(
        model.model_copy(
            update={
                "server": model.server.model_copy(
                    update={
                        "step": model.server.step.model_copy(
                            update={"base_s": model.server.step.base_s * (3.0 if m % 2 else 0.4)}
                        )
                    }
                )
            }
        )
        for m, model in enumerate(pool.models)
    )
    gpus = tuple(gpu.model_copy(update={"colocation_slowdown": 0.0}) for gpu in pool.gpus)
    return pool.model_copy(update={"models": models, "gpus": gpus})


def test_the_same_seed_has_the_same_arrivals_plans_and_decisions() -> None:
    config = config_of("b200-2gpu", 12)
    one = played(config, 60.0, 3)
    again = play_simulated(config, load_pool("b200-2gpu"), one)
    keys = ["query", "node", "phase", "model", "strategy", "prompt_tokens", "output_tokens"]
    assert sorted(one.calls[keys].tolist()) == sorted(again.calls[keys].tolist())
    # Told the lengths, true cards play the very same sweep.
    np.testing.assert_allclose(again.completed["latency_s"], one.completed["latency_s"], rtol=1e-9)


def test_cards_are_found_again_and_predict_loads_that_were_not_fitted() -> None:
    config = config_of("b200-2gpu")
    truth = load_pool("b200-2gpu")
    wrong = other_cards(truth)
    fit = fit_pool(wrong, [played(config, rate, seed) for seed, rate in enumerate((20.0, 120.0))])
    assert fit.mismatch < 0.2 * fit.before
    for rate in (60.0, 200.0):
        live = played(config, rate, 9)
        found = compared(live, play_simulated(config, fit.pool, live), truth.aliases, fitted=False)
        naive = compared(live, play_simulated(config, wrong, live), truth.aliases, fitted=False)
        assert abs(found["e2e_s"]["error_pct"]) < 5.0
        assert abs(found["query_s"]["error_pct"]) < 5.0
        assert abs(naive["e2e_s"]["error_pct"]) > 20.0


def test_too_few_calls_are_told() -> None:
    config = config_of("b200-2gpu", 3)
    with pytest.raises(InfraMindError, match="let the sweeps have more queries"):
        fit_pool(load_pool("b200-2gpu"), [played(config, 60.0, 0)])


@pytest.fixture
def slow_pool(tmp_path: Path) -> Iterator[str]:
    """Servers over HTTP that take 10 ms a token, whatever their load."""
    pytest.importorskip("aiohttp", reason="needs the extra `live`")
    from tests.live.vllm_server.fake import Answer
    from tests.live.vllm_server.live_play import five

    def reply(request: dict[str, Any], number: int) -> Answer:
        tokens = 6 + 9 * (number % 3)
        return Answer("\\boxed{1}", tokens=tokens, first_s=0.01, each_s=0.01)

    with five(reply) as servers:
        yield pool_file(tmp_path, [server.port for server in servers])


def test_a_pool_over_http_is_fitted_and_predicted(slow_pool: str, tmp_path: Path) -> None:
    told: list[str] = []
    out = tmp_path / "out"
    figures = run(
        slow_pool, "math", (300.0,), (600.0,), queries=24, seed=0, out=out, say=told.append
    )
    assert json.loads((out / "report.json").read_text(encoding="utf-8")) == figures
    fitted, unseen = figures["sweeps"]
    assert (fitted["fitted"], unseen["fitted"]) == (True, False)
    assert figures["fit"]["mismatch"] < figures["fit"]["before"]
    assert len(told) == 3 and "300 queries/min" in told[0]
    calls = [json.loads(line) for line in (out / "requests.jsonl").open(encoding="utf-8")]
    assert len(calls) == fitted["calls"] + unseen["calls"]
    # How well it predicts depends on what else this machine does; what is compared does not.
    for number, sweep in enumerate((fitted, unseen)):
        logged = [c["end_ts"] - c["submit_ts"] for c in calls if c["sweep"] == number]
        assert sweep["e2e_s"]["live"] == pytest.approx(np.mean(logged), rel=0.02, abs=0.01)
    written = load_pool(out / "pool.yaml")
    assert written.name == "b200-2gpu-fitted"
    found = [model.server.step.base_s for model in written.models]
    assert all(0.002 < base_s < 0.05 for base_s in found), found
    assert yaml.safe_load((out / "pool.yaml").read_text(encoding="utf-8"))["models"][0]["url"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--fit-rates", "40", "--check-rates", "40"], "not fitted"),
        (["--fit-rates", "fast"], "list of positive numbers"),
        (["--check-rates", "-1"], "list of positive numbers"),
        (["--pool", "no-such-pool"], "no-such-pool"),
    ],
)
def test_the_command_tells_what_is_wrong(options: list[str], told: str, tmp_path: Path) -> None:
    arguments = ["sim2real", "--pool", "b200-2gpu", "--out", str(tmp_path), *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())
