"""Values as bytes: what goes in comes out, and no bytes do harm."""

from __future__ import annotations

import datetime
import decimal
from collections import Counter, OrderedDict, defaultdict, deque
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inframind_gym.tasks.sandbox.jail import wire

KEYS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.floats(allow_nan=False)
)
VALUES = st.recursive(
    KEYS | st.complex_numbers(allow_nan=False) | st.builds(range, st.integers(0, 9)),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(KEYS, inner),
        st.sets(KEYS),
        st.frozensets(KEYS),
    ),
    max_leaves=20,
)


@given(VALUES)
def test_what_goes_in_comes_out(value: Any) -> None:
    back = wire.decode(wire.encode(value))
    assert back == value
    assert type(back) is type(value)


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(data: bytes) -> None:
    try:
        value = wire.decode(data)
    except wire.WireError:
        return
    assert wire.encode(value) is not None


@given(VALUES, st.data())
def test_what_is_cut_off_is_no_value(value: Any, data: st.DataObject) -> None:
    encoded = wire.encode(value)
    end = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(wire.WireError):
        wire.decode(encoded[:end])


@pytest.mark.parametrize(
    "value",
    [
        Fraction(1, 3),
        decimal.Decimal("1.10"),
        datetime.date(2024, 2, 29),
        datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
        datetime.timedelta(1, 2, 3),
        datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
        bytearray(b"a"),
        Counter("aab"),
        OrderedDict(b=1, a=2),
        defaultdict(None, {1: [2]}),
        deque([1, 2], 3),
        np.float32(0.1),
        slice(1, None, 2),
        NotImplemented,
    ],
)
def test_values_of_the_standard_library(value: Any) -> None:
    back = wire.decode(wire.encode(value))
    assert (back, type(back)) == (value, type(value))


def test_containers_keep_what_they_share() -> None:
    row: list[Any] = [1]
    back = wire.decode(wire.encode([row, row, {"a": row}]))
    assert back[0] is back[1] is back[2]["a"]
    row.append(row)
    assert (again := wire.decode(wire.encode(row)))[1] is again


def test_containers_that_both_sides_know_travel_as_their_number() -> None:
    mine, theirs = [1], [2]
    data = wire.Encoder(None, [mine]).encode((mine, [mine]))
    back = wire.Decoder(None, [theirs]).decode(data)
    assert back[0] is back[1][0] is theirs


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "no plain data"),
        ("a" * (wire.MAX_MESSAGE + 1), "too large"),
        ([["a" * (1 << 20)] * 9], "too large"),
        (iter(lambda: 0, 1), "no plain data"),
        (np.array([object()]), "hold numbers"),
    ],
)
def test_what_cannot_travel(value: Any, message: str) -> None:
    with pytest.raises(wire.WireError, match=message):
        wire.encode(value)


def test_depth_is_bounded_both_ways() -> None:
    deep: list[Any] = []
    for _ in range(wire.MAX_DEPTH + 2):
        deep = [deep]
    with pytest.raises(wire.WireError, match="too deep"):
        wire.encode(deep)
    with pytest.raises(wire.WireError, match="too deep"):
        wire.decode(b"l\x01\x00\x00\x00" * 10_000 + wire.encode(None))
