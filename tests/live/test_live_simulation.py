"""A live closed loop on servers and with prompts that somebody else made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.live.config import LiveConfig
from inframind_gym.live.prompts import Prompts
from inframind_gym.live.simulation import LiveSimulation
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.backend import Call
from tests.envs.test_live import pool_file
from tests.simulator.workflow.backend_play import by_node, play

pytest.importorskip("aiohttp", reason="needs the extra `live`")

from inframind_gym.live.backend import VllmServers
from inframind_gym.live.config import LiveSettings
from tests.live.vllm_server.fake import Answer, records
from tests.live.vllm_server.live_play import QUICK, five


def config_of(path: str) -> LiveConfig:
    return LiveConfig.model_validate(
        {"pool": path, "workload": "mmlu_pro", "num_queries": 4, "record_calls": True}
    )


class Reminding(Prompts):
    """The real prompts, with a word more."""

    def messages(self, call: Call, *more: Any) -> Any:
        made = super().messages(call, *more)
        return [*made[:-1], {"role": "user", "content": made[-1]["content"] + "\nTake care."}]


def test_servers_and_prompts_can_be_handed_in(tmp_path: Path) -> None:
    with five(lambda request, number: Answer("\\boxed{A}")) as servers:
        path = pool_file(tmp_path, [server.port for server in servers])
        settings = LiveSettings(**QUICK)
        with VllmServers(load_pool(path), settings, log=tmp_path / "log.jsonl") as pool:
            pool.watcher.wait_up(10.0)
            for sweeps in (1, 2):  # they stay open when a simulation is done with them
                simulation = LiveSimulation(
                    config_of(path), one_query=False, servers=pool, prompts=Reminding
                )
                sweep = play(simulation, by_node([0, 1, 2, 3, 4]), rate_per_min=1200.0)
                simulation.close()
                simulation.close()
                assert simulation.servers is pool and pool.episodes == sweeps
                assert len(sweep.completed) == 4
            assert all(pool.watcher.is_up(m) for m in range(5))
        asked = [r["messages"][-1]["content"] for server in servers for r in server.requests]
    assert len(asked) >= 8
    assert all(text.endswith("\nTake care.") for text in asked)
    lines = records(tmp_path / "log.jsonl")  # the log is the servers' own
    assert len(lines) == len(asked)
    assert all(line["right"] is not None for line in lines if line["phase"] == "final")


def test_servers_of_other_models_are_refused(tmp_path: Path) -> None:
    path = pool_file(tmp_path, [9] * 5)
    pool = load_pool(path)
    other = pool.model_copy(update={"models": tuple(reversed(pool.models))})
    with (
        VllmServers(other, LiveSettings(**QUICK)) as servers,
        pytest.raises(ConfigError, match="other models"),
    ):
        LiveSimulation(config_of(path), one_query=False, servers=servers)
