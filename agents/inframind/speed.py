"""How fast the InfraMind agent trains: decisions a second, rollouts and updates together."""

from __future__ import annotations

import tempfile
from pathlib import Path

from agents.train import read_config

CORES = 2


def training_rates(repeats: int, workers: int = CORES) -> list[float]:
    """Decisions a second of whole rounds of a training as `agents/configs/inframind.yaml` says.

    Making the environments and starting the workers is not counted, nor is the first round.

    Args:
        repeats: rounds that are measured.
        workers: processes that play.
    """
    train, config = read_config("inframind", [])
    rates = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "training"
        decisions, seconds = 0, 0.0
        for round_ in range(repeats + 1):
            done = train(
                config,
                seed=0,
                out=out,
                workers=workers,
                resume=True,
                max_rounds=1,
                quiet=True,
            )
            if round_:
                rates.append((done["decisions"] - decisions) / (done["seconds"] - seconds))
            decisions, seconds = done["decisions"], done["seconds"]
    return rates
