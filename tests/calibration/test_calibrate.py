"""`inframind calibrate`: logs are read with care, and explained by what made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inframind_gym.calibration import server_card
from inframind_gym.calibration.report import FIGURES, METRICS, card_yaml, log_report
from inframind_gym.calibration.request_log import read_log
from inframind_gym.calibration.server_card import Calibration, Limits, calibrate, minimise
from inframind_gym.configs import load_yaml_model
from inframind_gym.errors import InfraMindError
from inframind_gym.simulator.server.pool import ServerCard
from tests.calibration.synthetic import STEP, card, rows, write

STARVED = card(max_num_seqs=64, num_kv_blocks=240, max_model_len=1200)


# Logs


def line(number: int, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "request_id": f"bench-{number}",
        "input_toks": 100 + number,
        "output_toks": 20,
        "arrival_time": 1.7e9 + number,
        "queued_ts": 500.0 + number + 0.25 / (1 + number),
        "scheduled_ts": 500.5 + number,
        "first_token_ts": 501.0 + number,
        "last_token_ts": 502.0 + number,
    }
    return fields | changes


def test_a_log_is_read_and_its_clocks_are_matched(tmp_path: Path) -> None:
    path = write(tmp_path, [line(i, comment="ignored") for i in range(4)])
    path.write_text("\ufeff" + path.read_text() + "\n  \n", encoding="utf-8")  # blank lines, BOM
    log = read_log(path)
    assert log.ids == tuple(f"bench-{i}" for i in range(4))
    assert log.prompt_tokens.tolist() == [100, 101, 102, 103]
    np.testing.assert_allclose(log.first_token_s - log.scheduled_s, 0.5)
    # Among the first three, the last waited least; the fourth, which waited less, is not asked.
    waited_s = log.queued_s - log.submit_s(3)
    np.testing.assert_allclose(waited_s, [0.25 - 0.25 / 3, 0.125 - 0.25 / 3, 0.0, -0.25 / 12])


def clients_line(number: int, **changes: Any) -> dict[str, Any]:
    """As `live/request_log.py` writes them."""
    sent = {"submit_ts": 499.5 + number, "sent_ts": 500.0 + number}
    unknown = {"queued_ts": None, "scheduled_ts": None}
    fields = {"request_id": f"run-0-{number}", "model": "small", "status": "ok", **sent, **unknown}
    return line(number, **fields | changes)


def test_a_clients_log(tmp_path: Path) -> None:
    """In the order in which requests ended, of several models, some of them failed."""
    path = write(
        tmp_path,
        [
            clients_line(2),
            clients_line(0, status="truncated"),
            clients_line(5, model="large"),
            clients_line(3, status="timeout", first_token_ts=None, last_token_ts=None),
            clients_line(4, status="down", sent_ts=None, arrival_time=None, input_toks=None),
            clients_line(6, input_toks=None, output_toks=None),  # the server counts no tokens
            clients_line(1, arrival_time=1.7e9 + 0.5),
            clients_line(8, request_id="run-0-2"),  # a gateway's clients name their requests
        ],
    )
    log = read_log(path, "small")
    assert log.ids == ("run-0-0", "run-0-1", "run-0-2", "run-0-2")
    assert log.failed == 3 and not log.has_schedule
    np.testing.assert_allclose(log.first_token_s, [1.0, 2.0, 3.0, 9.0])
    for model, message in ((None, "choose one of large, small"), ("smal", "Did you mean 'small'")):
        with pytest.raises(InfraMindError, match=message):
            read_log(path, model)
    timed = [clients_line(i, queued_ts=500.1 + i, scheduled_ts=500.6 + i) for i in (1, 0, 2)]
    assert read_log(write(tmp_path, timed)).has_schedule
    assert not read_log(write(tmp_path, [*timed, clients_line(3)])).has_schedule
    simulated = [each | {"speed": 2} for each in timed]
    np.testing.assert_allclose(read_log(write(tmp_path, simulated)).arrival_s, [0.0, 2.0, 4.0])
    with pytest.raises(InfraMindError, match=r"at the speeds 1 and 2 .lines without `speed`"):
        read_log(write(tmp_path, [*simulated, clients_line(3)]))


# Cards


def limits(server: ServerCard) -> Limits:
    blocks = server.num_kv_blocks if server.num_kv_blocks < 1000 else None
    return Limits(server.max_num_seqs, server.max_num_batched_tokens, blocks)


def explained(folder: Path, lines: list[dict[str, Any]]) -> Calibration:
    return calibrate(read_log(write(folder, lines)), limits(card()))


def test_what_made_the_log_is_recovered(tmp_path: Path) -> None:
    """A log of a server without surprises."""
    calibration = explained(tmp_path, rows(card()))
    step = calibration.card.step
    assert step.base_s == pytest.approx(STEP.base_s, rel=0.05)
    assert step.per_new_token_s == pytest.approx(STEP.per_new_token_s, rel=0.1)
    assert step.roofline_power == 1.0 and not calibration.card.async_scheduling
    figures = log_report(calibration)
    json.dumps(figures, allow_nan=False)
    assert figures["warnings"] == [] and figures["log"]["fitted"] == 60
    log, unseen = calibration.log, slice(60, 120)
    e2e_s = (log.last_token_s - calibration.submit_s)[unseen]
    predicted_s = (calibration.served["finish_s"] - calibration.submit_s)[unseen]
    of = figures["unseen"]["e2e_s"]
    assert set(of) == {*FIGURES, "mae_pct"}
    assert of["mean"]["measured"] == pytest.approx(e2e_s.mean())
    assert of["p95"]["predicted"] == pytest.approx(np.percentile(predicted_s, 95))
    assert all(abs(figures["unseen"][metric]["mean"]["error_pct"]) < 1.0 for metric in METRICS)
    path = tmp_path / "card.yaml"
    path.write_text(card_yaml(calibration), encoding="utf-8")
    assert load_yaml_model(path, ServerCard) == calibration.card
    assert log.sha256 in path.read_text() and "first 60 requests" in path.read_text()


def test_the_unseen_part_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"evaluations": 60}  # of every search
    monkeypatch.setattr(server_card, "minimise", lambda *of, **x: minimise(*of, **(x | few)))
    lines = rows(card())
    seen = explained(tmp_path, lines)
    for each in lines[60:]:
        each["queued_ts"] += 1.0
        for name in ("scheduled_ts", "first_token_ts", "last_token_ts"):
            each[name] = 3.0 * each[name]
    blind = explained(tmp_path, lines)
    assert blind.card == seen.card
    assert log_report(blind)["unseen"]["e2e_s"]["mean"]["error_pct"] < -50


@pytest.mark.slow
@pytest.mark.parametrize(
    "server",
    [
        card(async_scheduling=True),
        card(num_kv_blocks=240, max_model_len=1200, async_scheduling=True, prefix_caching=True),
        card(step=STEP.model_copy(update={"roofline_power": 8.0})),
    ],
    ids=["async", "caching", "roofline"],
)
def test_scheduling_is_recovered(tmp_path: Path, server: ServerCard) -> None:
    found = calibrate(read_log(write(tmp_path, rows(server))), limits(server))
    assert found.card.async_scheduling == server.async_scheduling
    assert found.card.step.roofline_power == server.step.roofline_power
    assert found.card.prefix_caching == server.prefix_caching
    e2e = log_report(found)["unseen"]["e2e_s"]
    assert all(abs(e2e[figure]["error_pct"]) < 1.0 for figure in ("mean", "p50", "p90"))


@pytest.mark.slow
def test_limits_that_the_log_proves(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, rows(card(data_parallel_size=2, max_num_seqs=8))))
    found = calibrate(log, Limits(8, 1024))
    assert found.card.data_parallel_size == found.parameters["data_parallel_size"] == 2
    with pytest.raises(InfraMindError, match=r"16 requests ran at once .*-parallel-size 2 or"):
        card_yaml(calibrate(log, Limits(8, 1024, data_parallel_size=1)))
    log = read_log(write(tmp_path, rows(STARVED)))
    found = calibrate(log, Limits(64, 1024))
    assert found.card.num_kv_blocks == pytest.approx(240, rel=0.05)
    assert "Give --num-kv-blocks" in log_report(found)["warnings"][0]
    with pytest.raises(InfraMindError, match=r"at most \d+ requests ran at once, and \d+ do"):
        card_yaml(calibrate(log, Limits(64, 1024, 480)))
