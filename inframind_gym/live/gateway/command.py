"""`inframind serve`, the gateway as a process, and its metrics as somebody else reads them."""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from inframind_gym.errors import InfraMindError, friendly, require

_ANSWER_S: Final = 5.0


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
    with friendly():
        for module in ("uvicorn", "httptools", "uvloop", "starlette"):
            require(module, "the gateway", "serve")
        from inframind_gym.live.gateway.app import run
        from inframind_gym.live.gateway.config import gateway_config

        options: dict[str, Any] = {"pool": pool, "policy": policy, "workload": workload}
        options |= {"host": host, "port": port, "log": record, "speed": speed}
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        run(gateway_config(config, options))


class Scrape:
    """Metrics of a gateway at one instant.

    Args:
        url: its address.

    Attributes:
        at_s: when, on the monotonic clock.
        samples: by name, labels and value of each sample.

    Raises:
        InfraMindError: it does not answer, or is no gateway.
    """

    def __init__(self, url: str) -> None:
        from prometheus_client.parser import text_string_to_metric_families

        from inframind_gym.live.client import DownError, ask

        self.at_s, key = time.monotonic(), os.environ.get("INFRAMIND_API_KEY", "")
        try:
            text = ask(f"{url.rstrip('/')}/metrics", limit_s=_ANSWER_S, key=key)
        except DownError as error:
            remedy = "Start a gateway: inframind serve --pool POOL"
            if error.status == 401:
                remedy = "Give a key of it in INFRAMIND_API_KEY"
            raise InfraMindError(f"{url}: {error}. {remedy}") from None
        self.samples = defaultdict[str, list[tuple[frozenset[tuple[str, str]], float]]](list)
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    labels = frozenset(sample.labels.items())
                    self.samples[sample.name].append((labels, float(sample.value)))
        except ValueError:  # it is something else
            self.samples.clear()
        if not self.samples["inframind_router_info"]:
            raise InfraMindError(f"{url}: no gateway answers there")

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over the samples with the given labels."""
        samples = self.samples[f"inframind_{name}"]
        return sum(value for of, value in samples if set(labels.items()) <= of)
