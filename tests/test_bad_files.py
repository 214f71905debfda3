"""Files that are broken, absurd or hostile: each is an error that names the file, and soon."""

from __future__ import annotations

import gzip
import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save as encode

from benchmarks.fit.measured_runs import read_runs
from inframind_gym.calibration.request_log import read_log
from inframind_gym.check import check
from inframind_gym.configs import find_config, read_setting
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.routing import RoutingSuite
from inframind_gym.evaluation.scenarios import load_track
from inframind_gym.policies import checkpoint
from inframind_gym.policies import resolve_policy as make_policy
from inframind_gym.policies.simple import load_swarm
from inframind_gym.simulator.arrivals import load_trace
from inframind_gym.simulator.placement.config import load_cluster, load_demand
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workload import load_workload
from inframind_gym.tasks.loaders import read_folder

MOST_S = 2.0  # of CPU time
MOST_MB = 400  # by which the process grows

Case = tuple[str, str, bytes]  # reader, name of the file or folder, content


def shipped(kind: str, name: str) -> bytes:
    return find_config(kind, name).read_bytes()


def lines(*items: Any) -> bytes:
    return "".join(f"{json.dumps(item)}\n" for item in items).encode()


READERS: dict[str, Callable[[Path], object]] = {
    "pool": load_pool,
    "workload": load_workload,
    "suite": lambda path: check(str(path), "suites"),
    "track": load_track,
    "cluster": load_cluster,
    "demand": load_demand,
    "trace": load_trace,
    "log": read_log,
    "questions": read_folder,
    "runs": read_runs,
    "swarm": load_swarm,
    "checkpoint": lambda path: checkpoint.load(path.parent),
    "inframind": lambda path: make_policy(f"inframind:{path.parent}"),
}
YAML = {
    "pool": shipped("pools", "single-gpu"),
    "workload": shipped("workloads", "math"),
    "suite": shipped("suites", "starter"),
    "track": shipped("tracks", "tenants"),
    "cluster": shipped("placement/clusters", "h100-4gpu"),
    "demand": shipped("placement/demands", "bursty"),
}
REQUEST = {
    "request_id": "a", "input_toks": 5, "output_toks": 5, "arrival_time": 100.0,
    "queued_ts": 5.0, "scheduled_ts": 5.1, "first_token_ts": 5.2, "last_token_ts": 6.0,
}  # fmt: skip
QUESTION = {"id": "m/0", "problem": "1 + 1?", "answer": "2"}
CELL = {"arrival_rate": 10, "accuracy": 0.5, "latency": {"mean": 3.0}}
DEEP = b"[" * 100_000
ALIASES = b"a: &a [x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (b, b, b", ".join([b"*%c" % (b - 1)] * 8)) for b in range(98, 110)
)


def yaml_cases() -> Iterator[Case]:
    """The same damage to every kind of configuration, then absurd values of single keys."""
    for kind, good in YAML.items():
        head = good.rstrip() + b"\n"
        for what, content in {
            "empty": b"",
            "list": b"- a\n- b\n",
            "cut": good[: len(good) // 2] + b"\n  - [",
            "aliases": ALIASES,
            "recursive": b"name: &a [*a]\n",
            "merged": head + b"<<: {name: b}\n",
            "tag": b"name: !!python/object/apply:os.system [ls]\n",
            "deep": b"name: " + DEEP,
            "scalar": b"name: " + b"x" * 10_000_000,
            "digits": head + b"other: " + b"9" * 100_000,
            "twice": head + head,
            "documents": head + b"---\n" + head,
            "keys": b"".join(b"key%d: 1\n" % i for i in range(40_000)),
            "list key": head + b"? [a, b]\n: 1\n",
            "escape": b'name: "\\UFFFFFFFF"\n',
            "surrogate": b'name: "\\ud800"\n',
            "utf16": good.decode().encode("utf-16"),
        }.items():
            yield kind, f"{what}.yaml", content
    for kind, key, old, values in (
        ("pool", "max_num_seqs", "8", ("1.0e+30", "9" * 200, "-1", ".nan", "[1]", "2001-01-01")),
        ("workload", "num_queries", "500", ("0", "1" * 301, "yes", "500.5")),
        ("suite", "seeds", "5", ("0", "1" * 15, "-1", "[0, 0]", "[x]", "{}", "[]", "1.5")),
        ("suite", "rates_per_min", "[10, 100, 200]", ("[]", "[0]", "[.inf]", "[1.0e+300]", "10")),
        ("suite", "workloads", "[mixed]", ("[mixt]", "[mixed, mixed]", "[/proc/self/mem.yaml]")),
        ("suite", "num_queries", "200", [f"200\n{line}" for line in (
            "arrivals: {kind: bursts}", "arrivals: {}", "arrivals: {kind: trace, path: x}",
            "kind: [a]",
        )]),
        ("cluster", "catalogue", "h100", ("x", "/dev/zero.yaml", "''")),
        ("demand", "num_agents", "{1: 1,", ("{99: 1,", "{x: 1,", "{1: 1, 1: 2,")),
    ):  # fmt: skip
        assert f"{key}: {old}".encode() in YAML[kind], key
        for number, value in enumerate(values):
            content = YAML[kind].replace(f"{key}: {old}".encode(), f"{key}: {value}".encode())
            yield kind, f"{key}{number}.yaml", content


def json_cases() -> Iterator[Case]:
    """Damage to JSON files, to lines of JSON, and to values in them."""
    for kind, name, good in (
        ("runs", "x.json", {"mas": {"math": [CELL]}}),
        ("swarm", "x.json", {"models": ["a", "b"], "edges": [[0, 1]]}),
        ("log", "x.jsonl", REQUEST),
        ("questions", "x.jsonl", QUESTION),
    ):
        text = json.dumps(good).encode()
        for what, content in {
            "empty": b"",
            "cut": text[:-2],
            "list": b"[1]",
            "deep": DEEP,
            "number": text[:-1] + b', "x": ' + b"9" * 5000 + b"}",
            "twice": text[:-1] + b"," + text[1:],
            "surrogate": b'{"request_id": "\\ud800", "id": "\\ud800"}',
            "latin1": b'{"id": "\xe4"}',
            "zeros": bytes(1000),
            "scalar": b'{"id": "' + b"x" * 20_000_000,
        }.items():
            yield kind, f"{what}-{name}", content
    tests = {"prompt": "p", "test_list": ["assert f()"]}
    own = {"id": 1, "text": "t", "domain": "Math", "answer": 1}
    for kind, whole, changes in (
        ("log", REQUEST, {"input_toks": 10**30, "output_toks": float("inf"), "queued_ts": -1}),
        ("log", REQUEST, {"arrival_time": 1e300, "last_token_ts": float("nan")}),
        ("log", REQUEST, {"first_token_ts": [], "request_id": None, "output_toks": True}),
        ("questions", QUESTION, {"problem": "", "answer": float("nan"), "split": []}),
        ("questions", own, {"difficulty": 10**299, "domain": [], "text": []}),
        ("questions", own, {"answer": {"kind": [], "value": 1}}),
        ("questions", own, {"answer": {"kind": "choice", "value": "A", "options": 3}}),
        ("questions", tests, {"test_list": [1], "test_imports": 3}),
    ):
        for key, value in changes.items():
            yield kind, f"{key}.jsonl", lines(whole | {key: value})
    for key, value in (
        ("accuracy", 2), ("arrival_rate", 0), ("latency", 1), ("latency", {"mean": -1}),
        ("model_distribution", {"a": 1e308, "b": 1e308}), ("n_episodes", 10**290), ("budget", "x"),
    ):  # fmt: skip
        yield "runs", f"{key}.json", json.dumps({"mas": {"math": [CELL | {key: value}]}}).encode()
    for content in (b'{"mas": 1}', b'{"mas": {"math": 1}}', b'{"mas": {"math": [1]}}', b"{}"):
        yield "runs", "shape.json", content
    yield "swarm", "edge.json", b'{"models": ["a"], "edges": [[0, 1]]}'
    good = lines(QUESTION)
    for what, content in {
        "no": b"this is no gzip file",
        "cut": gzip.compress(good * 500)[:-20],
        "flipped": bytes([*gzip.compress(good)[:20], 255, 255, *gzip.compress(good)[22:]]),
        "bomb": gzip.compress(b"\n" * 60_000_000, compresslevel=1),
        "line": gzip.compress(b"x" * 50_000_000, compresslevel=1),
    }.items():
        yield "questions", f"{what}.jsonl.gz", content


def trace_cases() -> Iterator[Case]:
    """Damage to traces of the three layouts."""
    plain, azure = b"timestamp,input,output\n0,1,1\n", b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
    mooncake = b"timestamp_ms,input_length,output_length\n0,1,1\n"
    for number, content in enumerate((
        b"", b"a,b,c\n1,2,3\n", plain, plain + b"0,1,1\n", plain + b"1,1\n", plain + b"1,1e30,1\n",
        plain + b"1,-1,1\n", plain + b"1,nan,1\n", plain + b"1e300,1,1\n", plain + b"x,1,1\n",
        plain + b'1,1,"' + b"1" * 200_000, plain + b"1,1,1\0\n", plain + b"1,\xff,1\n",
        plain + b"x" * 20_000_000, mooncake + b"1e30,1,1\n", mooncake + b"1,1,16777217\n",
        azure + b"2023-99-99 00:00:00,1,1\n", azure + b"999999999999-01-01 00:00:00,1,1\n",
        azure + b"0001-01-01 00:00:00,1,1\n", azure + b"00:00,1,1\n", azure + b":-,1,1\n",
    )):  # fmt: skip
        yield "trace", f"trace{number}.csv", content


def checkpoint_cases() -> Iterator[Case]:
    """Configurations that go with their weights and are no configurations of the policy."""
    for content in (
        b"", b"[]", b"null", b'"x"', DEEP, b"\xff", b'{"a": 1}', b'{"weights_sha256": 1}',
    ):  # fmt: skip
        yield "checkpoint", "config.json", content
    good = json.loads((checkpoint.SHIPPED / "inframind" / checkpoint.CONFIG_FILE).read_text())
    for changes in (
        {"models": 3}, {"models": [[]]}, {"strategies": None},
        {"system_features": 1}, {"system_features": ["queue"] * 10**5},
    ):  # fmt: skip
        yield "inframind", "inframind/config.json", json.dumps(good | changes).encode()


CASES = [*yaml_cases(), *json_cases(), *trace_cases(), *checkpoint_cases()]


def write(folder: Path, case: Case) -> Path:
    """Write a case; a checkpoint's configuration with weights that have the same one."""
    reader, name, content = case
    path = folder / Path(name).name
    if name.endswith("/config.json"):
        config = json.loads(content)
        config.pop("weights_sha256", None)
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        tensors, _ = checkpoint.load(checkpoint.SHIPPED / Path(name).parent)
        (folder / checkpoint.MODEL_FILE).write_bytes(encode(tensors, metadata={"config": text}))
        content = text.encode()
    elif reader == "checkpoint":
        checkpoint.save(folder, {}, {})
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("case", CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_a_bad_file_is_an_error_that_names_it(case: Case, tmp_path: Path) -> None:
    path = write(tmp_path, case)
    reader = READERS[case[0]]
    start_s = time.process_time()
    size_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigError) as caught:
        reader(path)
    assert time.process_time() - start_s < MOST_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - size_kb < MOST_MB * 1024
    message = str(caught.value)
    assert path.name in message or path.parent.name in message
    assert len(message) < 20_000
    message.encode()


@pytest.mark.parametrize("text", ['{"a":' * 100_000, '{"kind": ' + "9" * 5000 + "}", "&a [*a]"])
def test_settings_of_the_command_line(text: str) -> None:
    with pytest.raises(ConfigError, match="--set arrivals"):
        read_setting(f"arrivals={text}", RoutingSuite)


def test_what_is_no_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for path, why in (
        (tmp_path / "pipe.json", "a pipe or a device"),
        (Path("/dev/zero"), "a pipe or a device"),
        (tmp_path, "a folder"),
        (tmp_path / ("x" * 300), "no such file"),
        (tmp_path / "\0", "no such file"),
    ):
        with pytest.raises(ConfigError, match=why):
            read_runs(path)
