"""`inframind serve`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from inframind_gym.errors import require


def _option(words: str, **more: Any) -> Any:
    return typer.Option(help=words, show_default=False, **more)


def serve(
    pool: Annotated[str | None, _option("A shipped pool's name, or a YAML file.")] = None,
    policy: Annotated[
        str | None,
        _option(
            "Router of inframind/auto and inframind/team, by name or package.module:Class. "
            "Default: adaptive."
        ),
    ] = None,
    workload: Annotated[str | None, _option("What the policy believes of questions.")] = None,
    host: Annotated[str | None, _option("Address; others than 127.0.0.1 need keys.")] = None,
    port: Annotated[int | None, _option("Default: 8080.")] = None,
    config: Annotated[Path | None, _option("gateway.yaml.")] = None,
    record: Annotated[
        str | None,
        _option("Append a line for every request, for `inframind calibrate`.", metavar="FILE"),
    ] = None,
    speed: Annotated[float | None, _option("Of simulated servers (`pool up --simulate`).")] = None,
) -> None:
    """Serve a pool's models behind one OpenAI-compatible address, routed by a policy.

    Model "inframind/auto" routes a call, "inframind/team" carries out a workflow, and the pool's
    own names pass through. SIGTERM waits for what is in flight and ends.
    """
    for module in ("uvicorn", "httptools", "uvloop", "starlette"):
        require(module, "the gateway", "serve")
    from inframind_gym.live.gateway.app import run
    from inframind_gym.live.gateway.config import gateway_config

    options: dict[str, Any] = {"pool": pool, "policy": policy, "workload": workload}
    options |= {"host": host, "port": port, "log": record, "speed": speed}
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run(gateway_config(config, options))
