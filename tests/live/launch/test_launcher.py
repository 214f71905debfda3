"""The launcher over stand-ins for vLLM: what is started, told, stopped and left alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("psutil")

import psutil

from inframind_gym.errors import InfraMindError
from inframind_gym.live import launcher, processes
from inframind_gym.live.config import LiveSettings
from inframind_gym.live.launcher import Launch, Launcher, last_lines, pool_status
from inframind_gym.live.processes import StartedServers, free_ports, start_of
from inframind_gym.simulator.server.pool import PoolConfig
from tests.live.launch import play
from tests.live.launch.play import command, interpreter, pool_of, session, write_pool
from tests.live.vllm_server.fake import until

pytestmark = play.needs_linux


class Room:
    """A launcher's folders; everything that was started in it is ended with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.python = interpreter(folder)
        self.seen: list[int] = []

    def launcher(self, pool: PoolConfig) -> Launcher:
        return Launcher(pool, state=self.state, python=self.python)

    def up(self, pool: PoolConfig, **options: Any) -> list[Launch]:
        return self.launcher(pool).up(watch=self.watch, **options)

    def watch(self, launches: Any) -> None:
        self.seen += [launch.pid for launch in launches if launch.pid]

    def running(self) -> set[int]:
        """Of all servers that were ever started here."""
        for file in self.state.glob("*/state.json"):
            self.seen += [server["pid"] for server in json.loads(file.read_text())]
        return {pid for leader in set(self.seen) for pid in session(leader)}


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    monkeypatch.setattr(launcher, "_POLL_S", 0.05)
    monkeypatch.setattr(launcher, "_CHECK", LiveSettings(health_s=0.05, answer_s=10.0))
    room = Room(tmp_path)
    yield room
    for pid in room.running():
        os.kill(pid, signal.SIGKILL)


def states(pool: PoolConfig, room: Room) -> list[str]:
    return [row["state"] for row in pool_status(pool, room.state)]


def phases(launches: list[Launch]) -> list[str]:
    return [launch.phase for launch in launches]


def test_up_status_down(room: Room) -> None:
    pool = pool_of(room.folder, "", "")
    assert states(pool, room) == ["stopped"] * 2
    launches = room.up(pool)
    assert phases(launches) == ["up", "up"]
    rows = pool_status(pool, room.state)
    for row in rows:
        assert [row[n] for n in ("state", "running", "waiting", "kv_frac")] == ["up", 2, 1, 0.25]
    assert [row["pid"] for row in rows] == [launch.pid for launch in launches]
    assert len(room.running()) == 4  # each with its engine
    again = room.up(pool)
    assert all(launch.already for launch in again)
    assert [launch.pid for launch in again] == [launch.pid for launch in launches]
    for stopped, alias in zip(room.launcher(pool).down(), ("m0", "m1"), strict=True):
        assert (stopped.alias, stopped.processes, stopped.killed) == (alias, 2, False)
    assert room.running() == set()
    assert room.launcher(pool).down() == []
    assert states(pool, room) == ["stopped", "stopped"]


def test_when_a_server_fails_all_that_were_started_are_stopped(room: Room) -> None:
    pool = pool_of(room.folder, "", "fail", "silent")
    good, failed, silent = room.up(pool)
    assert failed.phase == "failed"
    assert failed.note == "it ended with status 1" and failed.log is not None
    assert "No available memory for the cache blocks." in last_lines(failed.log, 2)[0]
    assert silent.phase == good.phase == "stopped"
    assert room.running() == set()
    assert StartedServers(pool.name, room.state).read() == {}
    (late,) = room.up(pool_of(room.folder, "silent"), timeout_s=1.0)
    assert late.phase == "failed" and "not up in 1 s: " in late.note
    assert room.running() == set()


def test_what_ran_before_is_left_alone_when_another_fails(room: Room) -> None:
    both = pool_of(room.folder, "", "fail")
    room.up(both.model_copy(update={"models": both.models[:1]}))
    launches = room.up(both)
    assert phases(launches) == ["up", "failed"]
    assert launches[0].already
    assert len(room.running()) == 2


def test_engines_that_outlive_their_server_are_ended(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's does, when its API server is killed; it would keep the GPU's memory."""
    pool = pool_of(room.folder, "")
    (launch,) = room.up(pool)
    os.kill(launch.pid or 0, signal.SIGKILL)
    until(lambda: launch.pid not in session(launch.pid or 0))
    (row,) = pool_status(pool, room.state)
    assert row["state"] == "died" and row["pid"] is None
    assert "1 of its processes run on" in row["note"]
    (before,) = room.running()
    (again,) = room.up(pool)
    assert again.phase == "up" and again.pid != launch.pid
    assert before not in room.running()
    os.kill(again.pid or 0, signal.SIGKILL)
    until(lambda: len(room.running()) == 1)
    (stopped,) = room.launcher(pool).down(0.5)
    assert stopped.processes == 1 and room.running() == set()
    os.kill(room.up(pool)[0].pid or 0, signal.SIGKILL)
    monkeypatch.setattr(psutil, "wait_procs", Mock(side_effect=[KeyboardInterrupt, None]))
    with pytest.raises(KeyboardInterrupt):  # while they are ended: nothing is started
        room.up(pool)
    until(lambda: room.running() == set())


def test_one_that_hangs_when_its_engine_died_is_started_anew(room: Room) -> None:
    """As vLLM's API server can: it runs, and nobody listens any more."""
    pool = pool_of(room.folder, "deaf")
    (launch,) = room.up(pool)
    (engine,) = session(launch.pid or 0) - {launch.pid}
    os.kill(engine, signal.SIGKILL)
    until(lambda: states(pool, room) == ["silent"])
    (again,) = room.up(pool)
    assert again.phase == "up" and not again.already and again.pid != launch.pid
    assert session(launch.pid or 0) == set()


def test_one_that_does_not_end_is_killed(room: Room) -> None:
    pool = pool_of(room.folder, "stubborn")
    room.up(pool)
    began_s = time.monotonic()
    (stopped,) = room.launcher(pool).down(grace_s=0.5)
    assert time.monotonic() - began_s < 20.0  # the usual grace
    assert stopped.killed and stopped.processes == 2
    assert room.running() == set()


def test_one_that_survives_is_not_forgotten(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(room.folder, "")
    room.up(pool)
    with monkeypatch.context() as patched:
        patched.setattr(psutil.Process, "send_signal", lambda *_: None)
        patched.setattr(processes, "_KILL_S", 0.1)
        room.launcher(pool).down(grace_s=0.1)
    assert states(pool, room) == ["up"] and len(room.launcher(pool).down()) == 1
    assert room.running() == set()


def test_a_process_that_has_the_id_now_is_not_stopped(room: Room) -> None:
    pool = pool_of(room.folder, "")
    room.up(pool)
    state = StartedServers(pool.name, room.state)
    (server,) = state.read().values()
    room.launcher(pool).down()
    command_line = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command_line, stdin=subprocess.PIPE, start_new_session=True) as stranger:
        try:
            start_s = start_of(psutil.Process(stranger.pid))
            state.write(server.model_copy(update={"pid": stranger.pid, "start_s": start_s - 9.0}))
            assert room.launcher(pool).down(grace_s=0.2)[0].processes == 0
            assert stranger.poll() is None
            state.write(server.model_copy(update={"pid": stranger.pid, "start_s": start_s}))
            assert room.launcher(pool).down(grace_s=0.2)[0].processes == 1
            stranger.wait(10.0)  # this one is the server
        finally:
            stranger.kill()


def test_taken_ports_are_told_apart(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(room.folder, "", "")
    port = pool.models[1].port or 0
    with (
        monkeypatch.context() as patched,
        socket.create_server(("127.0.0.1", port)),  # which never answers
        pytest.raises(InfraMindError, match=rf"m1: port {port} is taken"),
    ):
        patched.setattr(launcher, "_CHECK", LiveSettings(answer_s=0.5))
        room.up(pool)
    assert room.running() == set()
    room.up(pool)
    other = pool.model_copy(update={"name": "another"})
    with pytest.raises(InfraMindError, match=r"m0: port .* is taken.* `url"):
        room.up(other)
    changed = pool.models[0].model_copy(update={"env": {"A": "1"}})
    with pytest.raises(InfraMindError, match=r"m0: runs already .* other settings.* pool down"):
        room.up(pool.model_copy(update={"models": (changed, pool.models[1])}))


def test_adopted_servers_are_neither_started_nor_stopped(room: Room) -> None:
    pool = pool_of(room.folder, "")
    (launch,) = room.up(pool)
    here = pool.models[0].model_copy(update={"url": launch.url, "port": None})
    (port,) = free_ports(1)
    ours = pool.models[0].model_copy(update={"alias": "m1", "port": port})
    adopting = pool.model_copy(update={"name": "adopting", "models": (here, ours)})
    launches = room.up(adopting)
    assert phases(launches) == ["up", "up"] and launches[0].already
    assert [row["pid"] for row in pool_status(adopting, room.state)] == [None, launches[1].pid]
    assert [each.alias for each in room.launcher(adopting).down()] == ["m1"]
    assert len(session(launch.pid or 0)) == 2
    wrong = here.model_copy(update={"name": "other"})
    with pytest.raises(InfraMindError, match=r"m0: .* serves model-0, not other"):
        room.up(pool.model_copy(update={"name": "wrong", "models": (wrong, ours)}))


def test_servers_that_share_a_gpu_come_up_one_after_the_other(room: Room) -> None:
    """vllm-project/vllm#55827: at once, each takes the other's weights for its own memory."""
    gpus = [{"name": "cpu", "device": "H100"}, {"name": "gpu1", "device": "H100"}]
    pool = pool_of(room.folder, "", "", "", gpus=gpus)
    third = pool.models[2].model_copy(update={"gpu": "gpu1"})
    pool = pool.model_copy(update={"models": (*pool.models[:2], third)})
    seen: set[tuple[str, ...]] = set()
    launches = room.launcher(pool).up(watch=lambda now: seen.add(tuple(each.phase for each in now)))
    room.watch(launches)
    assert phases(launches) == ["up"] * 3
    assert ("starting", "queued", "starting") in seen
    assert not any(phase[:2] == ("starting", "starting") for phase in seen)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_up_stops_what_it_started(room: Room, number: signal.Signals) -> None:
    path = write_pool(room.folder, "", "silent")
    arguments = ["up", "--pool", path, "--state", room.state, "--python", room.python]
    line = [*play.CLI, "pool", *map(str, arguments)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=play.ENV)
    assert process.stdout is not None
    while "m0: up after" not in (line := process.stdout.readline()):
        assert line, "it ended"
    assert len(room.running()) == 4
    busy = command("down", "--pool", path, "--state", room.state)
    assert busy.exit_code == 2 and "wait for it" in busy.stderr
    process.send_signal(number)
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert rest.endswith("Interrupted. What this command started was stopped.\n")
    assert room.running() == set()


def test_down_ends_all_parts_or_none(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"fake-{room.folder.name}"
    for folder in (f"{name}+m0+0", name):  # as of a killed `place`, and of `up`
        where = ("--pool", write_pool(room.folder, "stubborn"), "--state", room.state)
        assert command("up", *where, "--python", room.python).exit_code == 0
        (room.state / name).rename(room.state / folder)
    with StartedServers(f"{name}+placement", room.state).locked():
        assert "'+placement': wait" in command("down", *where).stderr.replace(name, "")
    assert len(room.running()) == 4
    pressed = Mock(wraps=psutil.wait_procs, side_effect=[KeyboardInterrupt, *[DEFAULT] * 9])
    monkeypatch.setattr(psutil, "wait_procs", pressed)
    assert command("down", *where).exit_code == 130
    assert room.running() == set()


def test_the_commands(room: Room) -> None:
    path = write_pool(room.folder, "", "fail")
    where = ("--pool", path, "--state", room.state)
    failed = command("up", *where, "--python", room.python)
    assert failed.exit_code == 1
    assert "m1: it ended with status 1" in failed.stdout
    assert "No available memory for the cache blocks." in failed.stdout  # the log's last lines
    assert room.running() == set()
    both = json.loads(path.read_text())
    path.write_text(json.dumps(both | {"models": both["models"][:1]}))
    assert command("up", *where, "--python", room.python).exit_code == 0
    name = f"fake-{room.folder.name}"
    left = (room.state / name).rename(room.state / f"{name}+m0+0")  # as of a killed `place`
    assert "m0: stopped (process " in command("down", "--pool", name, *where[2:]).stdout
    assert not (left / "state.json").exists() and room.running() == set()
    up = [*play.CLI, "pool", "up", *map(str, where), "--python", str(room.python)]
    subprocess.run(up, env=play.ENV, check=True)  # the server outlives it
    path.write_text(json.dumps(both))
    status = command("status", *where, "--json")
    assert status.exit_code == 1
    assert [row["state"] for row in json.loads(status.stdout)] == ["up", "stopped"]
    path.write_text("name: [")
    assert command("down", *where).exit_code == 2
    down = command("down", "--pool", name, "--state", room.state)
    assert down.exit_code == 0
    assert "m0: stopped (process " in down.stdout and ", 2 in all)" in down.stdout
    assert room.running() == set()
    path.write_text(json.dumps(both))
    room.python.write_text('#!/bin/sh\ntest "$1" = -c')
    assert "m0.log is empty." in command("up", *where, "--python", room.python).stdout
    (damaged := room.state / name / "state.json").write_text("[{}]")
    assert "it is damaged: 0.alias: Field required. See with" in command("down", *where).stderr
    damaged.unlink()
