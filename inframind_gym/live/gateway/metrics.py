"""Metrics of the gateway, for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from inframind_gym.live.watcher import ServerStatus

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
_LONG_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_SHORT_S: Final = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.1, 0.5)


class Metrics:
    """Counters that outlive reloads.

    Label `model` is what was asked for, `server` the alias of the server; `tenant` is the name of
    a key. Names that clients make up are no labels.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        on = self.registry
        asked, server = ("model", "tenant"), ("server",)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"inframind_{name}", text, labels, registry=on)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"inframind_{name}", text, labels, registry=on)

        def seconds(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(
                f"inframind_{name}_seconds", text, labels, buckets=buckets, registry=on
            )

        self.requests = counter("requests", "Requests that are over.", *asked, "status")
        self.slo = counter("slo", "Answers within (met) and after the budget.", *asked, "slo")
        self.refused = counter("refused", "Requests refused.", "reason")
        self.decisions = counter("decisions", "Calls decided on.", "server", "strategy")
        self.retries = counter("retries", "Failed attempts made again.", "server", "reason")
        self.tokens = counter("tokens", "Tokens, as servers count them.", "server", "kind")
        self.policy_errors = counter("policy_errors", "Decisions that the policy did not make.")
        self.reloads = counter("reloads", "Reloads of the configuration.", "result")
        self.duration_s = seconds(
            "request_duration", "From arrival to the last token.", _LONG_S, "model"
        )
        self.first_token_s = seconds(
            "time_to_first_token", "From arrival to the first token, of streams.", _LONG_S, "model"
        )
        self.decision_s = seconds("decision", "Time that a policy took.", _SHORT_S)
        self.open = gauge("open_requests", "Requests being answered.")
        self.up = gauge("server_up", "1: it can be sent to.", *server)
        self.breaker = gauge("breaker_open", "1: it is left alone.", *server)
        self.in_flight = gauge("in_flight_requests", "Calls of this gateway.", *server)
        self.running = gauge("server_running_requests", "As polled last.", *server)
        self.waiting = gauge("server_waiting_requests", "As polled last.", *server)
        self.kv = gauge("server_kv_cache_usage", "As polled last, 0 to 1.", *server)

    def write(
        self,
        statuses: Sequence[ServerStatus],
        in_flight: Sequence[int],
        closed: int,
        open_requests: int,
    ) -> bytes:
        """Return the text of `/metrics`.

        Args:
            statuses: of M servers.
            in_flight: (M,) calls of the gateway.
            closed: bit mask of the servers whose breaker lets requests through.
            open_requests: requests being answered.
        """
        self.open.set(open_requests)
        for m, status in enumerate(statuses):
            reading = status.reading
            self.up.labels(status.alias).set(status.up)
            self.breaker.labels(status.alias).set(not closed >> m & 1)
            self.in_flight.labels(status.alias).set(in_flight[m])
            if reading is not None:
                self.running.labels(status.alias).set(reading.running_req)
                self.waiting.labels(status.alias).set(reading.waiting_req)
                self.kv.labels(status.alias).set(reading.kv_frac)
        return bytes(generate_latest(self.registry))
