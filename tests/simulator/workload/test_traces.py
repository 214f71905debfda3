"""Trace replay: three layouts, ties, rescaling, wrapping, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.simulator.arrivals import make_arrivals
from inframind_gym.simulator.traces import load_trace

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "arrivals"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MOONCAKE = "timestamp_ms,input_length,output_length\n"
PLAIN = "timestamp,input,output\n"


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        AZURE
        + "2023-11-16 23:59:59.5000000,100,10\n2023-11-17 00:00:00.7500001,5,6\n"
        + "2023-11-17 00:00:02.5000000,1,1\n",
        AZURE.lower()
        + "2024-05-10 00:00:00.5+00:00,100,10\n2024-05-10T00:00:01.7500001Z,5,6\n"
        + "2024-05-10 00:00:03.5,1,1\n",
        MOONCAKE + "1000,100,10\n2250.0001,5,6\n4000,1,1\n",
        PLAIN + "7,100,10\n8.2500001,5,6\n10,1,1\n",
        "\ufeff id , output,timestamp,input\nx,10,7,100\n\ny,6,8.2500001,5\nz,1,10.0,1\n",
    ],
)
def test_layouts(tmp_path: Path, text: str) -> None:
    trace = load_trace(write(tmp_path, text))
    assert trace.times_s == pytest.approx([0.0, 1.2500001, 3.0], abs=1e-9)
    assert trace.input_tokens.tolist() == [100, 5, 1]
    assert trace.output_tokens.tolist() == [10, 6, 1]
    assert len(trace) == 3 and trace.rate_per_min == pytest.approx(40.0)
    assert not trace.times_s.flags.writeable


@pytest.mark.parametrize(
    ("text", "times_s", "input_tokens"),
    [
        ("0,1,1\n0,2,1\n0,3,1\n3,4,1\n10,5,1\n10,6,1\n", [0, 1, 2, 3, 10, 11.5], range(1, 7)),
        ("5,1,1\n1,2,1\n3,3,1\n", [0, 2, 4], [2, 3, 1]),
    ],
)
def test_rows_are_sorted_and_ties_spread_over_the_resolution(
    tmp_path: Path, text: str, times_s: list[float], input_tokens: list[int]
) -> None:
    trace = load_trace(write(tmp_path, PLAIN + text))
    assert trace.times_s.tolist() == times_s
    assert trace.input_tokens.tolist() == list(input_tokens)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN + "0,1,1\n1,1,1\n")
    assert len(load_trace(path)) == 2
    assert load_trace(path) is load_trace(path)
    write(tmp_path, PLAIN + "0,1,1\n1,1,1\n2,1,1\n")
    assert len(load_trace(path)) == 3


def test_replay_keeps_the_gaps_and_wraps(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN + "0,1,1\n1,1,1\n3,1,1\n6,1,1\n")
    process = make_arrivals({"kind": "trace", "path": str(path), "rescale": False})
    cycle = [1.0, 2.0, 3.0, 2.0]  # the last one joins end and beginning: the mean gap
    starts = set()
    for seed in range(20):
        gaps = np.diff(process.sample(1.0, 11, np.random.default_rng(seed)), prepend=0.0)
        start = next(
            k for k in range(4) if np.allclose(gaps, [cycle[(k + i) % 4] for i in range(11)])
        )
        starts.add(start)
    assert starts == {0, 1, 2, 3}


def test_rescaled_replay_has_the_rate_and_the_shape(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN + "0,1,1\n1,1,1\n3,1,1\n6,1,1\n")
    for rate in (10.0, 600.0):
        times = make_arrivals(str(path)).sample(rate, 8, np.random.default_rng(0))
        assert times[-1] == pytest.approx(8 * 60.0 / rate)
        gaps = np.diff(times, prepend=0.0)
        assert gaps.max() / gaps.min() == pytest.approx(3.0)
    assert make_arrivals(str(path)).to_json() == {
        "kind": "trace",
        "path": str(path),
        "rescale": True,
    }


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "trace.csv:1: unknown columns. Found: nothing. Wanted: TIMESTAMP,ContextTokens"),
        ("time,in,out\n0,1,1\n", "Found: time,in,out. Wanted: "),
        (PLAIN, "too short, 0 rows"),
        (PLAIN + "1,1,1\n", "too short, 1 rows with 1 distinct times"),
        (PLAIN + "1,1,1\n1,2,2\n", "too short, 2 rows with 1 distinct times"),
        (PLAIN + "0,1,1\n1,one,1\n", "trace.csv:3: cannot read the row '1,one,1'"),
        (PLAIN + "0,1,1\n1,1\n", "trace.csv:3: cannot read the row '1,1'"),
        (PLAIN + "0,1,1\n\n2,1,\n", "trace.csv:4: cannot read the row '2,1,'"),
        (PLAIN + "nan,1,1\n1,1,1\n", "trace.csv:2: cannot read the row 'nan,1,1'"),
        (PLAIN + "inf,1,1\n1,1,1\n", "trace.csv:2: cannot read"),
        (PLAIN + "0,inf,1\n1,1,1\n", "trace.csv:2: cannot read"),
        (PLAIN + "0,1,1\n1,-1,1\n", "trace.csv:3: cannot read the row"),
        (AZURE + "18:17:03,1,1\n", "trace.csv:2: cannot read the row '18:17:03,1,1'"),
        (AZURE + "1700000000,1,1\n", "trace.csv:2: cannot read"),
        (AZURE + "2023-13-16 18:17:03.9,1,1\n", "trace.csv:2: cannot read"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, part: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        make_arrivals({"kind": "trace", "path": str(path)})
    assert part in str(caught.value)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, "azure_code.csv")
    with pytest.raises(ConfigError, match=r"azure_cod\.csv: no such trace file\. Did you mean 'az"):
        load_trace(tmp_path / "azure_cod.csv")
    with pytest.raises(ConfigError, match="is a folder, wanted a CSV file"):
        load_trace(tmp_path)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\x89PNG\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.csv:1: is not UTF-8 text"):
        load_trace(binary)


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared/data/arrivals is not beside the repository")
@pytest.mark.parametrize(
    ("name", "rows", "rate_per_min"),
    [
        ("azure_llm_2023_code.csv", 8819, 154.1),
        ("azure_llm_2023_conv.csv", 19366, 331.7),
        ("mooncake_conversation.csv", 12031, 204.0),
    ],
)
def test_production_traces(name: str, rows: int, rate_per_min: float) -> None:
    trace = load_trace(SHARED / name)
    assert len(trace) == rows
    assert trace.rate_per_min == pytest.approx(rate_per_min, rel=0.002)
    assert trace.times_s[0] == 0.0 and np.all(np.diff(trace.times_s) > 0.0)
    process = make_arrivals({"kind": "trace", "path": str(SHARED / name)})
    times = process.sample(100.0, 500, np.random.default_rng(0))
    assert times[-1] == pytest.approx(300.0)
    assert times[0] > 0.0 and np.all(np.diff(times) > 0.0)
    assert np.array_equal(times, process.sample(100.0, 500, np.random.default_rng(0)))
