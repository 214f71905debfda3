"""Cards fitted to a pool: to simulated servers whose cards are known, and to servers over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from inframind_gym.calibration import live_pool
from inframind_gym.calibration.commands import sim2real
from inframind_gym.calibration.live_episodes import Episode, play, play_simulated
from inframind_gym.calibration.live_pool import fit_pool
from inframind_gym.calibration.report import episode_report
from inframind_gym.cli import app
from inframind_gym.envs.routing.backend_simulation import BackendSimulation, open_surrogate
from inframind_gym.errors import InfraMindError
from inframind_gym.live.config import LiveConfig, live_config
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from tests.calibration.synthetic import with_base_s
from tests.envs.test_live import pool_file


def config_of(pool: str, queries: int = 40) -> LiveConfig:
    return live_config(
        {"pool": pool, "workload": "math", "num_queries": queries, "record_calls": True}
    )


def played(config: LiveConfig, rate_per_min: float, seed: int) -> Episode:
    """Play an episode on servers that are as the pool's file says."""
    simulation = BackendSimulation(config, open_surrogate, one_query=False)
    return play(simulation, rate_per_min, seed)


def other_cards(pool: PoolConfig) -> PoolConfig:
    """Return the pool with step costs that are off by a factor of 2 to 3, and no slowdown."""
    factors = [3.0 if m % 2 else 0.4 for m in range(len(pool.models))]
    models = tuple(map(with_base_s, pool.models, factors))
    gpus = tuple(gpu.model_copy(update={"colocation_slowdown": 0.0}) for gpu in pool.gpus)
    return pool.model_copy(update={"models": models, "gpus": gpus})


def test_the_same_seed_has_the_same_arrivals_plans_and_decisions() -> None:
    config = config_of("b200-2gpu", 12)
    one = played(config, 60.0, 3)
    again = play_simulated(config, load_pool("b200-2gpu"), one)
    keys = ["query", "node", "phase", "model", "strategy", "prompt_tokens", "output_tokens"]
    assert sorted(one.calls[keys].tolist()) == sorted(again.calls[keys].tolist())
    # With the same lengths, true cards play the very same episode.
    np.testing.assert_allclose(again.completed["latency_s"], one.completed["latency_s"], rtol=1e-9)


@pytest.mark.slow
def test_cards_are_found_again_and_predict_loads_that_were_not_fitted() -> None:
    config = config_of("b200-2gpu")
    truth = load_pool("b200-2gpu")
    wrong = other_cards(truth)
    fit = fit_pool(wrong, [played(config, rate, seed) for seed, rate in enumerate((20.0, 120.0))])
    assert fit.mismatch < 0.2 * fit.before
    for rate in (60.0, 200.0):
        live = played(config, rate, 9)
        found, naive = (
            episode_report(live, play_simulated(config, pool, live), truth.aliases, fitted=False)
            for pool in (fit.pool, wrong)
        )
        for metric in ("e2e_s", "query_s"):  # 0.1 % is usual, and 60 % with the wrong cards
            assert abs(found[metric]["mean"]["error_pct"]) < 5.0, metric
            assert abs(naive[metric]["mean"]["error_pct"]) > 20.0, metric


def test_too_few_calls_are_refused() -> None:
    config = config_of("b200-2gpu", 3)
    with pytest.raises(InfraMindError, match="let there be more of them"):
        fit_pool(load_pool("b200-2gpu"), [played(config, 60.0, 0)])


def gateway_log(path: Path, episode: Episode, aliases: tuple[str, ...]) -> None:
    """Write the calls of an episode as a gateway logs them: every other one was not streamed."""
    lines = []
    for k, call in enumerate(episode.calls):
        whole = bool(k % 2)
        lines.append(
            {
                "request_id": f"r{k}",
                "model": aliases[call["model"]],
                "status": "whole" if whole else "ok",
                "input_toks": int(call["prompt_tokens"]),
                "output_toks": int(call["output_tokens"]),
                "sent_ts": 1e3 + float(call["submit_s"]),
                "end_ts": 1e3 + float(call["finish_s"]),
                "first_token_ts": None if whole else 1e3 + float(call["first_token_s"]),
                "last_token_ts": None if whole else 1e3 + float(call["finish_s"]),
                "priority": float(call["priority"]),
            }
        )
    refused = {"request_id": "x", "model": None, "status": "refused", "http": 429}
    path.write_text("".join(json.dumps(line) + "\n" for line in [refused, *lines]))


def test_a_model_with_few_calls_keeps_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_pool, "_EVALUATIONS", 160)
    config, pool = config_of("b200-2gpu", 40), load_pool("b200-2gpu")
    episode = played(config, 60.0, 3)
    rare = pool.aliases.index("llama-3b")
    few = np.flatnonzero(episode.calls["model"] == rare)[5:]
    episode = replace(episode, calls=np.delete(episode.calls, few))
    wrong = other_cards(pool)
    with pytest.raises(InfraMindError, match="llama-3b has answered 5 calls"):
        fit_pool(wrong, [episode])
    fit = fit_pool(wrong, [episode], all_models=False)
    assert fit.kept == ("llama-3b",)
    changed = [a.server != b.server for a, b in zip(wrong.models, fit.pool.models, strict=True)]
    assert changed == [m != rare for m in range(len(changed))]


def test_a_gateways_log_fits_its_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_pool, "_EVALUATIONS", 1600)
    config, truth = config_of("b200-2gpu", 120), load_pool("b200-2gpu")
    episode = played(config, 20.0, 3)
    gateway_log(tmp_path / "access.jsonl", episode, truth.aliases)
    wrong = other_cards(truth).model_dump(mode="json", exclude_none=True)
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    out, report = tmp_path / "fitted.yaml", tmp_path / "report.json"
    arguments = ["calibrate", str(tmp_path / "access.jsonl"), "--out", str(out)]
    arguments += ["--pool", str(tmp_path / "wrong.yaml"), "--report", str(report)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    figures = json.loads(report.read_text())
    assert figures["kept"] == [] and figures["fit"]["calls"] == len(episode.calls) // 2
    assert figures["checked"]["fitted"] < 0.5 * figures["checked"]["before"]
    assert load_pool(out).name == f"{truth.name}-fitted"
    assert "warning" not in result.stderr
    monkeypatch.setattr(live_pool, "_EVALUATIONS", 160)  # the right cards are not made better
    right = [*arguments[:4], "--pool", "b200-2gpu"]
    assert "worse than the pool's own" in CliRunner().invoke(app, right).stderr
    # A server's limits belong to a log of one server.
    result = CliRunner().invoke(app, [*arguments, "--max-num-seqs", "4"])
    assert result.exit_code == 2 and "give no option of one" in " ".join(result.output.split())
    result = CliRunner().invoke(app, arguments[:4])
    assert result.exit_code == 2 and "or --pool" in " ".join(result.output.split())


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


def test_a_pool_over_http_is_fitted_and_predicted(
    slow_pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_pool, "_EVALUATIONS", 2000)
    out = tmp_path / "out"
    sim2real(slow_pool, "math", "300", "600", queries=24, seed=0, out=out)
    figures = json.loads((out / "report.json").read_text(encoding="utf-8"))
    fitted, unseen = figures["episodes"]
    assert (fitted["fitted"], unseen["fitted"]) == (True, False)
    assert figures["fit"]["mismatch"] < figures["fit"]["before"]
    calls = [json.loads(line) for line in (out / "requests.jsonl").open(encoding="utf-8")]
    assert len(calls) == fitted["calls"] + unseen["calls"]
    # How well it predicts depends on what else this machine does; what is compared does not.
    for number, episode in enumerate((fitted, unseen)):
        logged = [c["end_ts"] - c["submit_ts"] for c in calls if c["episode"] == number]
        assert episode["e2e_s"]["mean"]["measured"] == pytest.approx(
            np.mean(logged), rel=0.02, abs=0.01
        )
    written = load_pool(out / "pool.yaml")
    assert written.name == "b200-2gpu-fitted"
    # A step of one sequence: which constant takes the 10 ms is not identified by so few calls.
    steps = [model.server.step for model in written.models]
    found = [step.base_s + step.per_seq_s + step.per_new_token_s for step in steps]
    assert all(0.002 < step_s < 0.05 for step_s in found), found
    assert yaml.safe_load((out / "pool.yaml").read_text(encoding="utf-8"))["models"][0]["url"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fit-rates", "40", "--check-rates", "40"], "not fitted"),
        (["--fit-rates", "fast"], "list of positive numbers"),
        (["--check-rates", "-1"], "list of positive numbers"),
        (["--pool", "no-such-pool"], "no-such-pool"),
    ],
)
def test_errors_of_the_command(options: list[str], message: str, tmp_path: Path) -> None:
    arguments = ["sim2real", "--pool", "b200-2gpu", "--out", str(tmp_path), *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
