"""Workers that do what a pool must survive."""

import os
import time
from pathlib import Path
from typing import Any

from inframind_gym.benchmark.workers import Emit
from inframind_gym.errors import ConfigError


class Square:
    """Takes a while to square a number or an array."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self, emit: Emit, job: Any) -> None:
        time.sleep(self.seconds)
        emit(job * job)


class Facts:
    """Emits its process, how often that was asked, and its folder."""

    asked = 0

    def __call__(self, emit: Emit, job: object) -> None:
        self.asked += 1
        emit((os.getpid(), self.asked, os.getcwd()))


class Fragile:
    """Answers (number, folder) with the number; number 2 kills it the first time."""

    def __call__(self, emit: Emit, job: tuple[int, str]) -> None:
        number, folder = job
        flag = Path(folder) / f"died-{number}"
        if number == 2 and not flag.exists():
            flag.touch()
            os._exit(9)
        emit(number)


class Mortal:
    """Dies of every job."""

    def __call__(self, emit: Emit, job: object) -> None:
        os._exit(9)


class Fails:
    """Raises an error of ours, or another one."""

    def __call__(self, emit: Emit, job: str) -> None:
        if job == "own":
            raise ConfigError("queue_norm must be positive")
        raise KeyError("my own mistake")


class Busy:
    """Emits its process, and is at work for half a minute: it computes, or it waits."""

    def __call__(self, emit: Emit, job: str) -> None:
        emit(os.getpid())
        over_s = time.monotonic() + 30.0
        while time.monotonic() < over_s:
            time.sleep(30.0 if job == "wait" else 0.0)
