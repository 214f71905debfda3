"""Code of a submission's own, played in a process of its own.

What runs there cannot reach the environment, its hidden state, or the comparison of the results:
it is sent what a policy may see, observations and contexts, and answers with whole numbers. Its
answers are text and bytes; nothing that it sends is unpickled.

The process has the rights of the user who started it. Isolate it (a container without a network)
before you play the code of strangers.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from inframind_gym.errors import ConfigError
from inframind_gym.policies import BasePolicy

APART: Final = f"{__name__}:Apart"
PLAYS: Final = "INFRAMIND_PLAYS_APART"  # variable: family and policy, as JSON
HIDDEN: Final = ("foresee", "sees_truth", "simulation", "bound")  # members of bounds
MODULES: Final = "INFRAMIND_APART_PATH"  # variable: folders with packages for this process alone
_SAFE_PATH: Final = "PYTHONSAFEPATH"  # variable: Python imports nothing from where it starts
_HEAD: Final = struct.Struct("<QQ")  # bytes of text and of numbers in a message
_MOST_BYTES: Final = 2**30


@contextmanager
def playing(kind: str, policy: str) -> Iterator[None]:
    """Let `Apart` stand for a policy of a family, in new processes too, for the time of a block."""
    os.environ[PLAYS] = json.dumps([kind, policy])
    try:
        yield
    finally:
        del os.environ[PLAYS]


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder of strangers: neither this process nor new ones import from there."""
    before, path = os.environ.get(_SAFE_PATH), sys.path[:]
    sys.path[:] = [place for place in path if os.path.isabs(place)]
    os.environ[_SAFE_PATH] = "1"
    try:
        with chdir(folder):
            yield
    finally:
        sys.path[:] = path
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


class Apart(BasePolicy):
    """The policy that PLAYS names, in another process, behind the interface of all families."""

    def __init__(self) -> None:
        self._child = _start(os.environ[PLAYS], os.getcwd())
        self.facts: dict[str, Any] = self._child("facts")[0]
        self.name: str = self.facts["name"]
        self.requires: dict[str, Any] = self.facts["requires"]
        if self.facts["learns"]:
            self.observe = lambda completed, row: self._child("observe", completed, row)

    def reset(self, spec: Any, seeds: Sequence[int]) -> None:
        """Prepare for rows, one seed each."""
        self._child("reset", spec, list(seeds))

    def act_batch(self, observations: Any, contexts: Any, rows: Any) -> Any:
        """Return the actions of rows."""
        shape, numbers = self._child("act_batch", observations, contexts, rows)
        return np.frombuffer(numbers, np.int64).reshape(shape)


@lru_cache(maxsize=1)  # the process ends when nobody asks it any more
def _start(plays: str, folder: str) -> Callable[..., tuple[Any, bytes]]:
    """Start the process of a policy; returns a function that asks it."""
    quiet = {**os.environ, PLAYS: plays, "PYTHONDONTWRITEBYTECODE": "1"}
    more = os.environ.get(MODULES, "").split(os.pathsep)  # last: they shadow nothing
    quiet["PYTHONPATH"] = os.pathsep.join(path for path in (*sys.path, *more) if path)
    command = [sys.executable, "-P", "-m", __name__]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=folder, env=quiet)
    assert process.stdin is not None and process.stdout is not None
    to, back = process.stdin, process.stdout

    def ask(*request: Any) -> tuple[Any, bytes]:
        try:
            _send(to, pickle.dumps(request, protocol=5))
            text, numbers = _receive(back)
            answer = json.loads(text)
        except (OSError, EOFError, ValueError, RecursionError) as error:
            raise ConfigError(f"its process has ended or answers nonsense ({error!r})") from None
        if isinstance(answer, dict) and "error" in answer:
            raise ConfigError(f"apart from the environment it fails: {answer['error']}")
        return answer, numbers

    return ask


def _send(stream: IO[bytes], text: bytes, numbers: bytes = b"") -> None:
    stream.write(_HEAD.pack(len(text), len(numbers)) + text + numbers)
    stream.flush()


def _receive(stream: IO[bytes]) -> tuple[bytes, bytes]:
    head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise EOFError("no answer")
    sizes = _HEAD.unpack(head)
    if sum(sizes) > _MOST_BYTES:
        raise ValueError("an answer without end")
    return stream.read(sizes[0]), stream.read(sizes[1])


def _serve() -> None:
    """Answer requests until the parent ends; what the policy prints goes to standard error."""
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdin = open(os.devnull)  # noqa: SIM115
    sys.path.append(os.getcwd())
    policy: Any = None
    while True:
        try:
            request, _ = _receive(source)
        except EOFError:
            return
        verb, *arguments = pickle.loads(request)
        try:
            if verb == "facts":
                policy = _make()
                _send(answers, json.dumps(_facts(policy)).encode())
                continue
            given = getattr(policy, verb)(*arguments)
            actions = np.asarray(given if verb == "act_batch" else (), order="C")
            if actions.size and actions.dtype.kind not in "iub":
                raise ValueError(f"act_batch returned {str(given)[:60]}; wanted whole numbers")
            numbers = actions.astype(np.int64)
            _send(answers, json.dumps(numbers.shape).encode(), numbers.tobytes())
        except (Exception, SystemExit) as error:
            text = f"{type(error).__name__}: {error}"[:500]
            _send(answers, json.dumps({"error": text}).encode())


def _make() -> Any:
    from inframind_gym.benchmark.families import family

    kind, policy = json.loads(os.environ[PLAYS])
    return family(kind).resolve_policy(policy)


def _facts(policy: Any) -> dict[str, Any]:
    """Return what the benchmark asks a policy for."""
    from inframind_gym.benchmark.provenance import policy_fingerprint

    one = getattr(policy, "instances", [policy])[0]
    return {
        "name": str(policy.name),
        "requires": dict(getattr(policy, "requires", {})),
        "learns": callable(getattr(one, "observe", None)),
        "hidden": [member for member in HIDDEN if getattr(type(one), member, False)],
        "fingerprint": policy_fingerprint(policy),
    }


if __name__ == "__main__":
    _serve()
