"""Headway as others play it: a policy of shipped or own checkpoints, one for every workload."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agents.config import CHECKPOINTS
from agents.headway.lessons import ALGORITHM, load_lessons
from agents.headway.policy import kind_of
from inframind_gym.errors import ConfigError
from inframind_gym.policies import BasePolicy, Contexts, PolicySpec
from inframind_gym.policies.checkpoint import CONFIG_FILE, fingerprint

SHIPPED: Final = CHECKPOINTS / "headway"
FALLBACK: Final = "all"  # the checkpoint of workloads that have none of their own


def _configs(folder: Path) -> list[Path]:
    """Of the checkpoint that a folder is, or of those that it holds, one for every workload."""
    found = [folder / CONFIG_FILE, *sorted(folder.glob(f"*/{CONFIG_FILE}"))]
    return [path for path in found if path.is_file()]


def check_folder(folder: Path) -> str | None:
    """Look whether a folder holds checkpoints of Headway.

    Returns:
        The mode that they were trained in, see `HeadwayConfig.mode`.

    Raises:
        ConfigError: it holds none, or such of several modes.
    """
    configs = _configs(folder)
    if not configs:
        raise ConfigError(
            f"{folder}: holds no checkpoint. Train one: python -m agents.train --config headway "
            "--out FOLDER, and play headway:FOLDER/best"
        )
    modes = {}
    for path in configs:
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            algorithm, mode = config.get("algorithm"), config.get("config", {}).get("mode")
        except (ValueError, AttributeError):
            continue  # damaged: told when it is opened
        if algorithm != ALGORITHM:
            raise ConfigError(
                f"{path.parent}: is a checkpoint of {algorithm!r}, not of {ALGORITHM!r}."
            )
        modes[path.parent.name] = mode
    if len(set(modes.values())) > 1:
        told = ", ".join(f"{name} in mode {mode!r}" for name, mode in modes.items())
        raise ConfigError(f"{folder}: checkpoints were trained in several modes: {told}.")
    return next(iter(modes.values()), None)


class HeadwayPolicy(BasePolicy):
    """Every server has a price: the shipped agent.

    Args:
        checkpoint: folder of a trained checkpoint, or one that holds a folder for every workload;
            the shipped ones if None or "".
        mode: an ablation, one of MODES, taken away as it plays, with the prices of the checkpoint;
            None plays as the checkpoint was trained (`HeadwayConfig.mode`).

    Raises:
        ConfigError: there is no such mode, or no checkpoint of Headway in the folder.
    """

    carries_out_any_plan = False

    def __init__(self, checkpoint: str | None = None, mode: str | None = None) -> None:
        kind_of(mode)  # there is one
        arguments = [] if checkpoint is None else [checkpoint]
        self.name = ":".join(["headway", *arguments, *([] if mode is None else [mode])])
        self._root = Path(checkpoint) if checkpoint else SHIPPED
        trained = check_folder(self._root)
        self._kind = kind_of(trained if mode is None else mode)
        self.requires = self._kind.requires

    @property
    def fingerprint(self) -> str:
        """Digest of all weights that it may play with: results of others are not its own."""
        return " ".join(fingerprint(path.parent) for path in _configs(self._root))

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Open the workload's checkpoint and prepare for `len(seeds)` rows.

        Raises:
            ConfigError: there is no checkpoint, or one of another pool.
        """
        super().reset(spec, seeds)
        self._policy = self._kind(load_lessons(self.folder(spec.workload)))
        self._policy.name = self.name
        self._policy.reset(spec, seeds)

    def act_batch(
        self, observations: NDArray[np.float32], contexts: Contexts, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Plans and routes of `rows`, (n, 9)."""
        return self._policy.act_batch(observations, contexts, rows)

    def folder(self, workload: str) -> Path:
        """The checkpoint for a workload."""
        for folder in (self._root, self._root / workload, self._root / FALLBACK):
            if (folder / CONFIG_FILE).is_file():
                return folder
        raise ConfigError(
            f"{self._root}: has no checkpoint for workload {workload!r}, and none for {FALLBACK!r} "
            "to fall back on. Train one: python -m agents.train --config headway "
            f"--set env.workload={workload} --out FOLDER, and play headway:FOLDER/best"
        )
