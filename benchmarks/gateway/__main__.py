"""Measurements of the gateway: `python -m benchmarks.gateway COMMAND`.

The gateway, LiteLLM's proxy (`--litellm PATH` of its command, in an environment of its own) and the
servers are processes of their own. One machine for all of them: what a client measures includes
that they compete for its cores, so ways are taken in turns, and CPU time is shown beside.
"""

from __future__ import annotations

import typer

from benchmarks.gateway.load import goodput, soak
from benchmarks.gateway.overhead import overhead, rate
from benchmarks.gateway.small import live, outcomes
from benchmarks.gateway.virtual import virtual

app = typer.Typer(help=__doc__, no_args_is_help=True)
for command in (overhead, rate, goodput, virtual, soak, outcomes, live):
    app.command()(command)

if __name__ == "__main__":
    app()
