"""Calls of compiled code by one address: kinds of arguments, and arguments that are replaced."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

import inframind_gym  # noqa: F401  (registers the environments)
from inframind_gym.simulator.jit import make_jit
from inframind_gym.simulator.native import Bound, kind_of

RECORD = np.dtype([("small", "i2"), ("large", "f8")], align=True)


class Part(NamedTuple):
    numbers: NDArray[np.float64]
    table: NDArray[np.int32]  # (n, m)


class World(NamedTuple):
    part: Part
    record: NDArray[Any]


@make_jit(Path(__file__))
def read(
    world: World, whole: int, real: float, flag: bool, key: Any, out: NDArray[np.float64]
) -> int:
    """Write one number of every argument; return an extent."""
    table = world.part.table
    out[0] = world.part.numbers[1]
    out[1] = table[1, 2]
    out[2] = world.record[0].large
    out[3] = whole
    out[4] = real
    out[5] = 1.0 if flag else 0.0
    out[6] = key >> np.uint64(60)
    world.record[0].small += 1
    return table.shape[1] + table.size


@make_jit(Path(__file__))
def half(whole: int) -> float:
    """Return a float."""
    return whole / 2


@make_jit(Path(__file__))
def is_even(whole: int) -> bool:
    """Return a bool."""
    return whole % 2 == 0


@make_jit(Path(__file__))
def fill(out: Any) -> None:
    """Write the number of axes everywhere, and the value 7 into the first element."""
    value = 7
    for index in np.ndindex(out.shape):
        out[index] = value
        value = out.ndim


@make_jit(Path(__file__))
def flatten(out: Any) -> None:
    """Write a number through a view, which numba makes by a C function of its own."""
    out.reshape(out.size)[0] = 7


def world() -> World:
    part = Part(np.arange(3.0), np.arange(6, dtype=np.int32).reshape(2, 3))
    return World(part, np.array([(4, 2.5)], RECORD))


@pytest.mark.parametrize("call", [read, Bound(read)])
def test_every_kind_of_argument_arrives(call: Any) -> None:
    given, out = world(), np.zeros(7)
    assert call(given, -3, 0.25, True, np.uint64(2**63), out) == 3 + 6
    assert out.tolist() == [1.0, 5.0, 2.5, -3.0, 0.25, 1.0, 8.0]
    assert given.record["small"].tolist() == [5]


@pytest.mark.parametrize("value", [-3, 0, 7, np.int64(8)])
def test_results_have_their_type(value: int) -> None:
    assert half(value) == value / 2 and type(half(value)) is float
    assert is_even(value) is bool(value % 2 == 0)


def test_what_is_replaced_is_written_and_the_rest_stays() -> None:
    run, given, out = Bound(read), world(), np.zeros(7)
    arguments = [given, 1, 1.5, False, np.uint64(0), out]
    run(*arguments)
    other = np.zeros(7)
    run(*arguments[:5], other)
    assert other.tolist() == [1.0, 5.0, 2.5, 1.0, 1.5, 0.0, 0.0]
    run(given, 2, 2.5, True, np.uint64(2**60), out)
    assert out.tolist() == [1.0, 5.0, 2.5, 2.0, 2.5, 1.0, 1.0]
    wide = World(Part(np.full(2, 9.0), np.zeros((4, 5), np.int32)), given.record)
    assert run(wide, 2, 2.5, True, np.uint64(0), out) == 5 + 20
    assert out[0] == 9.0 and given.record["small"].tolist() == [8]


def test_arrays_of_other_kinds_have_code_of_their_own() -> None:
    run = Bound(fill)
    for out in (np.zeros(3), np.zeros(5), np.zeros(2, np.int32), np.zeros((2, 2)), np.zeros(3)):
        run(out)
        assert out.ravel().tolist() == [7.0] + [float(out.ndim)] * (out.size - 1)
    assert len(fill.programs) == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "array", [np.zeros(4)[::2], np.zeros((2, 2)).T, np.zeros(9, np.uint8)[1:].view(np.float64)]
)
def test_arrays_that_compiled_code_would_misread_are_refused(array: Any) -> None:
    with pytest.raises(ValueError, match="C order"):
        fill(array)
    array = np.zeros(3)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        fill(array)


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="takes no list"):
        kind_of([1, 2])


def test_a_copy_writes_into_arrays_of_its_own() -> None:
    run = Bound(fill)
    run(np.zeros(3))
    for twin in (copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        out = np.zeros(3)
        twin(out)
        assert out.tolist() == [7.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["Stream", "Executor", "Placement"])
def test_a_copied_environment_goes_on_like_the_first(name: str) -> None:
    env: Any = gym.make(f"InfraMind-{name}-v0").unwrapped
    env.reset(seed=3)
    action = 0 * env.action_space.sample()
    for _ in range(20):
        if env.step(action)[2]:
            env.reset()
    twin = copy.deepcopy(env)
    steps = [env.step(action) for _ in range(3)], [twin.step(action) for _ in range(3)]
    for ours, its in zip(*steps, strict=True):
        assert np.array_equal(ours[0], its[0])
        assert ours[1:4] == its[1:4]
        assert {k: v for k, v in ours[4].items() if k != "action_mask"} == {
            k: v for k, v in its[4].items() if k != "action_mask"
        }


def test_code_that_needs_numba_is_refused() -> None:
    with pytest.raises(TypeError, match="flatten calls numba_attempt_nocopy_reshape"):
        flatten(np.zeros((2, 3)))


_SCATTERED = """
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
import gymnasium as gym
import inframind_gym
from inframind_gym.simulator import programs
programs._engine()
size = PAGES * 4096
for _ in range(3000):  # fill what is free between libraries
    libc.mmap(None, 16 * 4096, 0, 0x22, -1, 0)
holes = [libc.mmap(None, size, 0, 0x22, -1, 0) for _ in range(6)]
libc.mmap(None, 6 << 30, 0, 0x4022, -1, 0)  # what does not fit into a hole lies 6 GB away
for hole in holes[::2]:
    libc.munmap(hole, size)
env = gym.make("InfraMind-Stream-v0")
env.reset(seed=0)
for _ in range(50):
    env.step(3)
"""


@pytest.mark.parametrize("pages", [8, 40])
def test_code_may_lie_far_from_its_constants(pages: int) -> None:
    program = _SCATTERED.replace("PAGES", str(pages))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
