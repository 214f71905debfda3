"""Hundreds of requests in flight, and Ctrl-C among them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from inframind_gym.simulator.server.pool import load_pool
from tests.envs.test_live import pool_file
from tests.live.launch.play import ENV, ROOT
from tests.live.vllm_server.fake import Answer, FakeServer, each_call_once

ALL = ",".join(model.name for model in load_pool("b200-2gpu").models)
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")


SCRIPT = """
import sys
from inframind_gym.live.backend import VllmServers
from inframind_gym.live.config import LiveSettings
from inframind_gym.simulator.server.pool import load_pool
from tests.live.vllm_server.live_play import Prompts, call

settings = LiveSettings(sampling={"ignore_eos": True})
with VllmServers(load_pool(sys.argv[1]), settings, log=sys.argv[2]) as pool:
    pool.watcher.wait_up(60.0)
    backend = pool.open(Prompts(), judge=lambda task, text: True)
    for number in range(60):
        tokens = 4 if number % 2 else 4000
        backend.submit(call(number, query=number, model=number % 2, max_tokens=tokens))
    done = 0
    while done < 30:
        done += len(backend.wait(None))
    print("waiting", flush=True)
    while True:
        backend.wait(None)
"""


@contextlib.contextmanager
def waiting(log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with 30 answers of a second server, that waits for 30 of a first that is mute."""
    hang = Answer(hang=True)
    with FakeServer(model=ALL) as quick, FakeServer(lambda r, n: hang, model=ALL) as mute:
        pool = pool_file(log.parent, [mute.port, *[quick.port] * 4])
        command = [sys.executable, "-c", SCRIPT, str(pool), str(log)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=ROOT, env=ENV, **pipes) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "waiting\n", process.communicate()
                yield process
            finally:
                process.kill()


@needs_proc
def test_ctrl_c_leaves_no_process_and_loses_no_record(tmp_path: Path) -> None:
    with waiting(tmp_path / "log.jsonl") as process:
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert "was destroyed" not in errors and "never retrieved" not in errors
    ended = [line["status"] for line in each_call_once(tmp_path / "log.jsonl")]
    assert Counter(ended) == {"ok": 30, "cancelled": 30}


def test_a_kill_loses_no_record(tmp_path: Path) -> None:
    """Of what had ended: each line was written at once, whole; the next run appends."""
    log = tmp_path / "log.jsonl"
    log.write_text('{"call": -1, "sta')  # the machine went down here, once
    with waiting(log) as process:
        process.kill()
        process.communicate(timeout=60)
    torn, *lines = log.read_text(encoding="utf-8").splitlines()
    assert torn == '{"call": -1, "sta'
    assert {json.loads(line)["status"] for line in lines} == {"ok"}
    assert sorted(json.loads(line)["call"] for line in lines) == list(range(1, 60, 2))
