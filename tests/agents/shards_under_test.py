"""Shards and workers that do what a fleet must survive."""

import os
import time
from pathlib import Path

import numpy as np

from inframind_gym.benchmark.workers import Emit
from inframind_gym.errors import ConfigError


class Counter:
    """Adds up what it is told; its state shows every call that it has seen."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.total = float(seed)

    def add(self, amount: float, own: float = 0.0) -> tuple[float, float]:
        self.total += amount + own
        return self.total, float(self.rng.random())

    def double(self, array: np.ndarray) -> np.ndarray:
        assert array.flags.writeable  # wherever the shard is
        return array * 2

    def die_once(self, flag: str) -> float:
        if self.total == 1.0 and not Path(flag).exists():
            Path(flag).touch()
            os._exit(9)
        self.total += 100.0
        return self.total

    def fail(self, how: str) -> None:
        if self.total >= 1.0:
            if how == "own":
                raise ConfigError("queue_norm must be positive")
            raise KeyError("my own mistake")

    def folder(self) -> str:
        return os.getcwd()

    def where(self) -> int:
        return os.getpid()


class Fragile:
    """A worker that answers (number, folder) with the number; number 2 kills it the first time."""

    def __call__(self, emit: Emit, job: tuple[int, str]) -> None:
        number, folder = job
        flag = Path(folder) / f"died-{number}"
        if number == 2 and not flag.exists():
            flag.touch()
            os._exit(9)
        emit(number)


class SlowSquare:
    """A worker that takes half a second to square a number."""

    def __call__(self, emit: Emit, job: int) -> None:
        time.sleep(0.5)
        emit(job * job)
