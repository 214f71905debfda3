"""`inframind top`: servers, queues, decisions and SLO of a running gateway, in the terminal."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections import defaultdict
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from inframind_gym.errors import InfraMindError, friendly

_ANSWER_S = 5.0


def top(
    url: Annotated[str, typer.Argument(help="Address of the gateway.")] = "http://127.0.0.1:8080",
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once, and end.")] = False,
) -> None:
    """Watch a gateway: servers, queues, decisions and SLO.

    A key, where the gateway asks for one, is read from $INFRAMIND_API_KEY.
    """
    with friendly():
        console = Console()
        before = Look(url)
        if once:
            console.print(before.table(None))
            return
        with Live(before.table(None), console=console, screen=True) as live:
            while True:
                time.sleep(every)
                now = Look(url)
                live.update(now.table(before))
                before = now


class Look:
    """State and counters of a gateway at one instant.

    Args:
        url: its address.

    Raises:
        InfraMindError: it does not answer.
    """

    def __init__(self, url: str) -> None:
        self.at_s = time.monotonic()
        self.status: dict[str, Any] = json.loads(_get(f"{url.rstrip('/')}/status"))
        self.totals = totals(_get(f"{url.rstrip('/')}/metrics"))

    def table(self, before: Look | None) -> Group:
        """Return what is shown; rates are those since `before`."""
        status = self.status
        head = Text(
            f"pool {status['pool']}   policy {status['policy']}   "
            f"open requests {status['open_requests']}"
        )
        servers = Table("server", "state", box=None, padding=(0, 2, 0, 0))
        for name in ("own calls", "running", "waiting", "KV cache", "calls", "tokens/s"):
            servers.add_column(name, justify="right")
        for row in status["servers"]:
            servers.add_row(
                *(row["alias"], _state(row), str(row["in_flight"])),
                *(_number(row["running"]), _number(row["waiting"])),
                "-" if row["kv"] is None else f"{row['kv']:.0%}",
                f"{self.count('inframind_decisions_total', server=row['alias']):.0f}",
                self._rate(before, "inframind_tokens_total", server=row["alias"], kind="output"),
            )
        met, missed = (self.count("inframind_slo_total", slo=slo) for slo in ("met", "missed"))
        answered = met + missed
        kept = "-" if not answered else f"{met / answered:.1%} of {answered:.0f} answers"
        lines = {
            "requests/s": self._rate(before, "inframind_requests_total"),
            "within their budget": kept,
            "refused": f"{self.count('inframind_refused_total'):.0f}",
            "retries": f"{self.count('inframind_retries_total'):.0f}",
        }
        tail = Text("   ".join(f"{name} {value}" for name, value in lines.items()))
        return Group(head, Text(), servers, Text(), tail)

    def count(self, name: str, **labels: str) -> float:
        """Return the sum of a counter over the samples with the given labels."""
        wanted = set(labels.items())
        return sum(value for found, value in self.totals[name] if wanted <= found)

    def _rate(self, before: Look | None, name: str, **labels: str) -> str:
        if before is None or self.at_s <= before.at_s:
            return "-"
        gained = self.count(name, **labels) - before.count(name, **labels)
        return f"{gained / (self.at_s - before.at_s):.1f}"


def totals(text: str) -> dict[str, list[tuple[frozenset[tuple[str, str]], float]]]:
    """Return name -> labels and value of each sample of a Prometheus text."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, list[tuple[frozenset[tuple[str, str]], float]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name].append((frozenset(sample.labels.items()), float(sample.value)))
    return found


def _state(row: dict[str, Any]) -> Text:
    if not row["up"]:
        return Text("asleep" if row["asleep"] else "down", "yellow" if row["asleep"] else "red")
    return Text("left alone", "yellow") if row["breaker_open"] else Text("up", "green")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _get(url: str) -> str:
    request = urllib.request.Request(url)
    if key := os.environ.get("INFRAMIND_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    if request.type not in ("http", "https"):
        raise InfraMindError(f"{url}: give an address that begins with http:// or https://")
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as response:
            return str(response.read().decode())
    except (urllib.error.URLError, OSError) as error:
        raise InfraMindError(f"{url}: {error}. Start one: inframind serve --pool POOL") from None
