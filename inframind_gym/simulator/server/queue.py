"""The waiting queue of a server: a binary heap ordered by (priority, order of submission)."""

from __future__ import annotations

from typing import Any

from inframind_gym.simulator.jit import inner


@inner
def goes_before(a: Any, b: Any) -> bool:
    """Return whether entry `a` is served before `b`: lower priority value, then earlier."""
    return bool(a.priority < b.priority or (a.priority == b.priority and a.seq < b.seq))


@inner
def push(heap: Any, size: int, priority: float, seq: int, request: int) -> None:
    """Add an entry to a heap of `size` entries; `heap` is an array (R,) of WAITING records."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        above = heap[parent]
        if above.priority < priority or (above.priority == priority and above.seq < seq):
            break
        heap[hole].priority = above.priority
        heap[hole].seq = above.seq
        heap[hole].request = above.request
        hole = parent
    heap[hole].priority = priority
    heap[hole].seq = seq
    heap[hole].request = request


@inner
def remove(heap: Any, size: int, request: int) -> None:
    """Take the entry of a request out of a heap of `size` entries that has it."""
    hole = 0
    while heap[hole].request != request:
        hole += 1
    while hole > 0:  # up to the top, as if it were the first
        parent = (hole - 1) >> 1
        heap[hole].priority = heap[parent].priority
        heap[hole].seq = heap[parent].seq
        heap[hole].request = heap[parent].request
        hole = parent
    pop(heap, size)


@inner
def pop(heap: Any, size: int) -> int:
    """Take the first entry off a heap of `size` > 0 entries and return its request id."""
    first = int(heap[0].request)
    last = heap[size - 1]
    end = size - 1
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= end:
            break
        if child + 1 < end and goes_before(heap[child + 1], heap[child]):
            child += 1
        if goes_before(last, heap[child]):
            break
        heap[hole].priority = heap[child].priority
        heap[hole].seq = heap[child].seq
        heap[hole].request = heap[child].request
        hole = child
    heap[hole].priority = last.priority
    heap[hole].seq = last.seq
    heap[hole].request = last.request
    return first
