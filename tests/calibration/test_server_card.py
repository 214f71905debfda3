"""Logs that the kernel made are explained by what made them, without a look at what is unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inframind_gym.calibration.report import FIGURES, METRICS, card_yaml, log_report
from inframind_gym.calibration.request_log import read_log
from inframind_gym.calibration.server_card import BASIC, Calibration, Limits, calibrate
from inframind_gym.errors import InfraMindError
from inframind_gym.simulator.server.pool import ServerCard, StepCost
from tests.calibration.synthetic import STEP, card, rows, write

SERVERS: dict[str, ServerCard] = {
    "slots": card(),
    "async": card(async_scheduling=True),
    "kv": card(num_kv_blocks=240, max_model_len=1200),
    "kv with prefix caching": card(
        num_kv_blocks=240, max_model_len=1200, async_scheduling=True, prefix_caching=True
    ),
    "per sequence": card(step=StepCost(base_s=0.01, per_seq_s=1e-3, per_new_token_s=2e-5)),
    "experts": card(
        step=StepCost(base_s=0.004, per_new_token_s=1e-5, sparse_s=0.03, sparse_tokens=8.0)
    ),
    "roofline": card(step=STEP.model_copy(update={"roofline_power": 8.0})),
}


def limits(server: ServerCard, *, kv: bool) -> Limits:
    return Limits(
        server.max_num_seqs,
        server.max_num_batched_tokens,
        server.num_kv_blocks if kv else None,
        server.block_size,
    )


def fit(folder: Path, server: ServerCard, **keywords: Any) -> Calibration:
    log = read_log(write(folder, rows(server)))
    return calibrate(log, limits(server, kv=server.num_kv_blocks < 1000), **keywords)


@pytest.mark.parametrize("name", SERVERS)
def test_what_made_the_log_is_recovered(tmp_path: Path, name: str) -> None:
    server = SERVERS[name]
    found = fit(tmp_path, server)
    figures = log_report(found)["unseen"]
    for metric in METRICS:
        for figure in ("mean", "p50", "p90"):
            assert abs(figures[metric][figure]["error_pct"]) < 1.0, (metric, figure)
    assert found.card.async_scheduling == server.async_scheduling
    if name.startswith("kv"):
        assert found.served["evictions"].sum() > 0
        assert found.card.prefix_caching == server.prefix_caching
        assert found.card.shared_prefix_tokens == 0
    if name == "slots":
        assert found.card.step.base_s == pytest.approx(server.step.base_s, rel=0.05)
        assert found.card.step.per_new_token_s == pytest.approx(4e-5, rel=0.1)
        assert found.card.step.roofline_power == 1.0
        basic = {*BASIC, "roofline_power", "async_scheduling"}
        assert basic <= set(found.parameters) <= basic | {"per_attention_unit_s"}

    if name == "roofline":
        assert found.card.step.roofline_power == 8.0
        assert found.card.step.base_s == pytest.approx(server.step.base_s, rel=0.05)


def test_engines_that_the_log_proves(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, rows(card(data_parallel_size=2, max_num_seqs=8))))
    found = calibrate(log, Limits(8, 1024))
    assert found.card.data_parallel_size == found.parameters["data_parallel_size"] == 2
    for metric in METRICS:
        assert abs(log_report(found)["unseen"][metric]["mean"]["error_pct"]) < 1.0
    assert "the fewest engines" in card_yaml(found)
    refused = calibrate(log, Limits(8, 1024, data_parallel_size=1))
    with pytest.raises(InfraMindError, match=r"16 requests ran at once .*-parallel-size 2 or"):
        card_yaml(refused)


def test_a_full_cache_shows_how_large_it_is(tmp_path: Path) -> None:
    server = card(max_num_seqs=64, num_kv_blocks=240, max_model_len=1200)
    log = read_log(write(tmp_path, rows(server)))
    found = calibrate(log, Limits(64, 1024))
    assert found.card.num_kv_blocks == pytest.approx(240, rel=0.05)
    assert abs(log_report(found)["unseen"]["e2e_s"]["mean"]["error_pct"]) < 3.0
    assert "num_kv_blocks was not given: fitted" in card_yaml(found)


def test_a_prediction_at_odds_with_the_log_is_refused(tmp_path: Path) -> None:
    """Twice the cache: it was given, so nothing is inferred, and too many run at once."""
    server = card(max_num_seqs=64, num_kv_blocks=240, max_model_len=1200)
    log = read_log(write(tmp_path, rows(server)))
    with pytest.raises(InfraMindError, match=r"at most \d+ requests ran at once, and \d+ do"):
        card_yaml(calibrate(log, Limits(64, 1024, 480)))


def test_a_clients_log_is_enough(tmp_path: Path) -> None:
    """It doesn't know when requests were scheduled (`live/request_log.py`)."""
    server = SERVERS["slots"]
    lines = [
        line
        | {"sent_ts": 5000.0 + line["arrival_time"] - 1.75e9, "status": "ok", "model": "small"}
        | {"queued_ts": None, "scheduled_ts": None}
        for line in rows(server)
    ]
    lines[0], lines[1] = lines[1], lines[0]  # in the order in which they ended
    lines.append(lines[5] | {"request_id": "x", "status": "timeout"})
    log = read_log(write(tmp_path, lines), "small")
    figures = log_report(calibrate(log, limits(server, kv=False)))
    assert abs(figures["unseen"]["e2e_s"]["mean"]["error_pct"]) < 2.0
    assert figures["log"]["requests"] == 120
    (warning,) = figures["warnings"]
    assert warning.startswith("1 requests of the log were not answered")


def test_the_unseen_part_is_not_looked_at(tmp_path: Path) -> None:
    server = SERVERS["slots"]
    lines = rows(server)
    honest = calibrate(read_log(write(tmp_path, lines)), limits(server, kv=False))
    for line in lines[60:]:
        line["queued_ts"] += 1.0
        for name in ("scheduled_ts", "first_token_ts", "last_token_ts"):
            line[name] = 3.0 * line[name]
    blind = calibrate(read_log(write(tmp_path, lines)), limits(server, kv=False))
    assert blind.card == honest.card
    np.testing.assert_array_equal(blind.served, honest.served)
    assert log_report(blind)["unseen"]["e2e_s"]["mean"]["error_pct"] < -50


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, float("nan")])
def test_fractions_out_of_range(tmp_path: Path, fraction: float) -> None:
    with pytest.raises(InfraMindError, match="fit-fraction must lie between 0 and 1"):
        fit(tmp_path, SERVERS["slots"], fit_fraction=fraction)


def test_too_few_requests(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, rows(SERVERS["slots"])[:10]))
    with pytest.raises(InfraMindError, match="5 of 10 requests would be fitted; at least 8"):
        calibrate(log, Limits(16, 1024))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Limits(0, 1024), "max-num-seqs must be between 1 and"),
        (Limits(16, 8), "must be at least max-num-seqs"),
        (Limits(16, 1024, 0), "num-kv-blocks must be between 1 and"),
        (Limits(16, 1024, 20), r"request 'r-\d+' needs \d+ KV blocks and num-kv-blocks is 20"),
    ],
)
def test_limits_that_cannot_be(tmp_path: Path, wrong: Limits, message: str) -> None:
    log = read_log(write(tmp_path, rows(SERVERS["slots"])))
    with pytest.raises(InfraMindError, match=message):
        calibrate(log, wrong)


def test_decoding_must_show(tmp_path: Path) -> None:
    lines = [
        line | {"output_toks": 1, "last_token_ts": line["first_token_ts"]}
        for line in rows(SERVERS["slots"])
    ]
    with pytest.raises(InfraMindError, match="no fitted request emitted more than one token"):
        calibrate(read_log(write(tmp_path, lines)), Limits(16, 1024))


def test_requests_of_one_token_have_no_tpot(tmp_path: Path) -> None:
    lines = rows(SERVERS["slots"])
    for line in lines[60:]:
        line |= {"output_toks": 1, "last_token_ts": line["first_token_ts"]}
    figures = log_report(calibrate(read_log(write(tmp_path, lines)), Limits(16, 1024)))
    assert figures["unseen"]["tpot_s"]["mae_pct"] is None
    assert figures["unseen"]["tpot_s"]["mean"] == dict.fromkeys(
        ("measured", "predicted", "error_pct")
    )
    assert all(figures["all"]["tpot_s"][name]["measured"] > 0 for name in FIGURES)
