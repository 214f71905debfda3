"""Shards and functions that do what a fleet must survive."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

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


def square(job: int) -> int:
    return job * job


def dies_once(job: tuple[int, str]) -> int:
    number, folder = job
    flag = Path(folder) / f"died-{number}"
    if number == 2 and not flag.exists():
        flag.touch()
        os._exit(9)
    return number


def always_dies(job: Any) -> None:
    os._exit(9)


def slow_square(job: int) -> int:
    time.sleep(0.5)
    return job * job
