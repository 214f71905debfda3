"""`inframind top`: servers, queues, decisions and SLO of a running gateway, in the terminal."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from collections import defaultdict
from typing import Annotated

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
                try:
                    now = Look(url)
                except InfraMindError as error:  # it may come back
                    live.update(Group(before.table(None), Text(f"\n{error}", "red")))
                    continue
                live.update(now.table(before))
                before = now


class Look:
    """Metrics of a gateway at one instant.

    Args:
        url: its address.

    Raises:
        InfraMindError: it does not answer, or is no gateway.
    """

    def __init__(self, url: str) -> None:
        self.at_s = time.monotonic()
        text = _get(f"{url.rstrip('/')}/metrics")
        try:
            self.samples = samples(text)
        except ValueError:  # it is something else
            self.samples = defaultdict(list)
        if not self.samples["inframind_router_info"]:
            raise InfraMindError(f"{url}: no gateway answers there")

    def table(self, before: Look | None) -> Group:
        """Return what is shown; rates are those since `before`."""
        about = dict(self.samples["inframind_router_info"][0][0])
        head = Text(
            f"pool {about['pool']}   policy {about['policy']}   "
            f"open requests {self.sum('queries_in_flight'):.0f}"
        )
        servers = Table("server", "state", box=None, padding=(0, 2, 0, 0))
        for name in ("own calls", "queue", "KV cache", "decisions", "failed", "tokens/s"):
            servers.add_column(name, justify="right")
        for labels, up in self.samples["inframind_server_up"]:
            alias = dict(labels)["model"]
            servers.add_row(
                *(alias, self._state(alias, bool(up))),
                f"{self.sum('calls_in_flight', model=alias):.0f}",
                f"{self.sum('queue_depth_seen_requests', model=alias):.0f}",
                f"{self.sum('kv_cache_seen', model=alias):.0%}",
                f"{self.sum('decisions_total', model=alias):.0f}",
                f"{self.sum('calls_total', model=alias, outcome='failed'):.0f}",
                self._rate(before, "tokens_total", model=alias, kind="output"),
            )
        answered = self.sum("queries_total", outcome="answered")
        met = self.sum("queries_total", outcome="answered", in_budget="true")
        kept = f"{met / answered:.1%} of {answered:.0f} answers" if answered else "-"
        refused, again = self.sum("refused_total"), self.sum("call_retries_total")
        tail = Text(
            f"requests/s {self._rate(before, 'queries_total')}   within their budget {kept}   "
            f"refused {refused:.0f}   retries {again:.0f}"
        )
        return Group(head, Text(), servers, Text(), tail)

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over the samples with the given labels."""
        wanted = set(labels.items())
        found = self.samples[f"inframind_{name}"]
        return sum(value for of, value in found if wanted <= of)

    def _state(self, alias: str, up: bool) -> Text:
        if not up:
            return Text("down", "red")
        if self.sum("breaker_open", model=alias):
            return Text("left alone", "yellow")
        return Text("up", "green")

    def _rate(self, before: Look | None, name: str, **labels: str) -> str:
        if before is None or self.at_s <= before.at_s:
            return "-"
        gained = self.sum(name, **labels) - before.sum(name, **labels)
        return f"{gained / (self.at_s - before.at_s):.1f}"


def samples(text: str) -> dict[str, list[tuple[frozenset[tuple[str, str]], float]]]:
    """Return name -> labels and value of each sample of a Prometheus text."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, list[tuple[frozenset[tuple[str, str]], float]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name].append((frozenset(sample.labels.items()), float(sample.value)))
    return found


def _get(url: str) -> str:
    request = urllib.request.Request(url)
    if key := os.environ.get("INFRAMIND_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    if request.type not in ("http", "https"):
        raise InfraMindError(f"{url}: give an address that begins with http:// or https://")
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        error.close()
        remedy = (
            "Give a key of it in INFRAMIND_API_KEY" if error.code == 401 else "Is it a gateway?"
        )
        raise InfraMindError(f"{url}: HTTP {error.code}. {remedy}") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        cause = getattr(reason, "strerror", None) or reason
        raise InfraMindError(
            f"{url}: {cause}. Start a gateway: inframind serve --pool POOL"
        ) from None
