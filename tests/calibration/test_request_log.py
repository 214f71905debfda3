"""Request logs are read, and wrong ones refused in words."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inframind_gym.calibration.request_log import read_log
from inframind_gym.errors import InfraMindError
from tests.calibration.synthetic import write


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


def without(number: int, field: str) -> dict[str, Any]:
    return {name: value for name, value in line(number).items() if name != field}


def test_a_log_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, [line(0), line(1, comment="ignored"), line(2)])
    path.write_text("\ufeff" + path.read_text() + "\n  \n", encoding="utf-8")  # blank lines, BOM
    log = read_log(path)
    assert len(log) == 3
    assert log.ids == ("bench-0", "bench-1", "bench-2")
    assert log.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert log.prompt_tokens.tolist() == [100, 101, 102]
    assert log.arrival_s.tolist() == [0.0, 1.0, 2.0]
    np.testing.assert_allclose(log.first_token_s - log.scheduled_s, 0.5)


def test_clocks_are_matched_by_the_request_that_waited_least(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, [line(i) for i in range(4)]))
    waited_s = log.queued_s - log.submit_s(3)
    # Among the first three, the last waited least; the fourth, which waited less, is not asked.
    np.testing.assert_allclose(waited_s, [0.25 - 0.25 / 3, 0.125 - 0.25 / 3, 0.0, -0.25 / 12])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "holds no request"),
        ([line(0), without(1, "output_toks")], "line 2: 'output_toks' is missing"),
        ([without(0, "queued_ts") | {"queued_tss": 1.0}], "Did you mean 'queued_tss'"),
        ([line(0, first_token_ts=None)], "'first_token_ts' is missing"),
        ([line(0, queued_ts=-1.0)], "line 1: queued_ts: .*greater than or equal to 0"),
        ([line(0), line(1, last_token_ts=501.5)], r"line 2: last_token_ts \(501.5\) comes before"),
        ([line(0, scheduled_ts=500.1)], "would be negative"),
        ([line(0, arrival_time=math.nan)], "arrival_time: .*finite number, got nan"),
        ([line(0, arrival_time=10**290)], "arrival_time: .*less than or equal to"),
        ([line(0, arrival_time=-(10**290))], "arrival_time: .*greater than or equal to"),
        ([line(0, input_toks=10**12)], "input_toks: .*less than or equal to 16777216"),
        ([line(0, output_toks=1e30)], "output_toks: .*less than or equal to 16777216"),
        ([line(0, output_toks=math.nan)], "output_toks: .*valid integer, got nan"),
        ([line(0, last_token_ts=math.inf)], "last_token_ts: .*finite number, got inf"),
        ([line(0, input_toks="12")], "input_toks: .*valid integer, got '12'"),
        ([line(0, input_toks=True)], "input_toks: .*valid integer, got True"),
        ([line(0, output_toks=0)], "output_toks: .*greater than or equal to 1, got 0"),
        ([line(0, output_toks=1.5)], "output_toks: .*valid integer, got 1.5"),
        ([line(0), line(0)], "line 2: request_id 'bench-0' was used on line 1"),
        ([line(1), line(0)], "sort the lines by arrival_time"),
        ([line(0, request_id="bench-1"), line(1, request_id="bench-0")], "not in order"),
    ],
)
def test_wrong_logs_are_refused(tmp_path: Path, lines: list[Any], message: str) -> None:
    with pytest.raises(InfraMindError, match=message):
        read_log(write(tmp_path, lines))


def test_ids_that_are_no_numbering_may_come_in_any_order(tmp_path: Path) -> None:
    names = ("chat-81", "chat-7", "chat-900")
    log = read_log(write(tmp_path, [line(i, request_id=name) for i, name in enumerate(names)]))
    assert log.ids == names


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"request_id": ', "line 1: is not valid JSON"),
        (b"[1, 2]", "line 1: is not a JSON object"),
        (b"[" * 100_000, "line 1: is nested deeper than 64"),
        (b"\xff\xfe", ":1: is not UTF-8 text"),
    ],
)
def test_files_that_are_no_log(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "log.jsonl"
    with pytest.raises(InfraMindError, match="cannot be read"):
        read_log(path)
    path.write_bytes(content)
    with pytest.raises(InfraMindError, match=message):
        read_log(path)


def clients_line(number: int, **changes: Any) -> dict[str, Any]:
    """As `live/request_log.py` writes them."""
    sent = {"submit_ts": 499.5 + number, "sent_ts": 500.0 + number}
    unknown = {"queued_ts": None, "scheduled_ts": None}
    fields = {"request_id": f"run-0-{number}", "model": "small", "status": "ok", **sent, **unknown}
    return line(number, **fields | changes)


def test_a_clients_log(tmp_path: Path) -> None:
    """In the order in which requests ended, of several models, some of them failed."""
    lines = [
        clients_line(2),
        clients_line(0, status="truncated"),
        clients_line(5, model="large"),
        clients_line(3, status="timeout", first_token_ts=None, last_token_ts=None),
        clients_line(4, status="down", sent_ts=None, arrival_time=None, input_toks=None),
        clients_line(6, input_toks=None, output_toks=None),  # the server counts no tokens
        clients_line(1, arrival_time=1.7e9 + 0.5),
    ]
    path = write(tmp_path, lines)
    log = read_log(path, "small")
    assert log.ids == ("run-0-0", "run-0-1", "run-0-2")
    twice = [*lines, clients_line(8, request_id="run-0-2")]  # a gateway's clients may
    assert len(read_log(write(tmp_path, twice), "small")) == 4
    assert log.failed == 3
    assert not log.has_schedule
    np.testing.assert_allclose(log.queued_s, [0.0, 1.0, 2.0])
    np.testing.assert_allclose(log.first_token_s, [1.0, 2.0, 3.0])
    assert len(read_log(path, "large")) == 1
    for model, message in (
        (None, "several models; choose one of large, small"),
        ("smal", "Did you mean 'small'"),
    ):
        with pytest.raises(InfraMindError, match=message):
            read_log(path, model)
    only = write(tmp_path, [clients_line(0, status="down")])
    with pytest.raises(InfraMindError, match="no request that was answered"):
        read_log(only)


def test_a_clients_log_of_a_server_that_tells_its_times(tmp_path: Path) -> None:
    told = [clients_line(i, queued_ts=500.1 + i, scheduled_ts=500.6 + i) for i in (1, 0, 2)]
    log = read_log(write(tmp_path, told))
    assert log.has_schedule
    np.testing.assert_allclose(log.first_token_s - log.scheduled_s, 0.4)
    mixed = read_log(write(tmp_path, [*told, clients_line(3)]))
    assert not mixed.has_schedule
    assert np.isnan(mixed.scheduled_s).all()
