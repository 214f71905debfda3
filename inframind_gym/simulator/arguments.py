"""Arguments of compiled code behind one address, for numba: `native` has their layout."""

from __future__ import annotations

from typing import Any, Final

import numba
from llvmlite import ir
from numba.core import types as numba_types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

types: Final[Any] = numba_types  # which have no types themselves
_WORD: Final = ir.IntType(64)
_NUMBERS: Final = {
    "i": types.int64,
    "f": types.float64,
    "b": types.boolean,
    "u": types.uint64,
}


class Arguments(types.Type):  # type: ignore[misc]
    """Address of the words of some arguments.

    Args:
        members: Tuple of their types.
    """

    def __init__(self, members: Any) -> None:
        self.members = members
        super().__init__(name=f"Arguments({members})")


class _AddressModel(models.PrimitiveModel):
    """A 64-bit address."""

    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _WORD)  # type: ignore[no-untyped-call]


register_model(Arguments)(_AddressModel)


def type_of(kind: Any) -> Any:
    """Return numba's type of an argument, by its kind (`native.kind_of`)."""
    if isinstance(kind, str):
        return _NUMBERS[kind]
    first, *rest = kind
    if isinstance(first, type):
        of_class = None if first is tuple else first
        return types.BaseTuple.from_types([type_of(part) for part in rest], of_class)
    return types.Array(numba.from_dtype(first), rest[0], "C")


def _word(builder: Any, base: Any, i: int) -> Any:
    """Load a word of a block."""
    return builder.load(builder.gep(base, [ir.Constant(_WORD, i)]))


def _fill(builder: Any, base: Any, form: Any, place: int) -> tuple[Any, int]:
    """Load a value of a native type from the words of a block from `place` on.

    Returns:
        The value, and the place behind it.
    """
    if isinstance(form, ir.PointerType):
        return builder.inttoptr(_word(builder, base, place), form), place + 1
    if form == _WORD:
        return _word(builder, base, place), place + 1
    if not isinstance(form, ir.LiteralStructType | ir.ArrayType):
        raise NotImplementedError(f"no layout is known of {form}")  # numba's arrays have changed
    parts = form.elements if isinstance(form, ir.LiteralStructType) else [form.element] * form.count
    value = ir.Constant(form, ir.Undefined)
    for i, part in enumerate(parts):
        filled, place = _fill(builder, base, part, place)
        value = builder.insert_value(value, filled, i)
    return value, place


def _argument(context: Any, builder: Any, word: Any, form: Any) -> Any:
    """Return the value of an argument from its word."""
    if form == types.boolean:
        return builder.icmp_unsigned("!=", word, ir.Constant(_WORD, 0))
    if isinstance(form, types.Float):
        return builder.bitcast(word, ir.DoubleType())
    if isinstance(form, types.Integer):
        return word
    base = builder.inttoptr(word, _WORD.as_pointer())
    return _fill(builder, base, context.get_value_type(form), 0)[0]


def _load_arguments(typing_context: Any, address: Any) -> Any:
    """Return the arguments at an address, as a tuple.

    Of the words that compiled code does not use none is read: LLVM removes those loads.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base = builder.inttoptr(arguments[0], _WORD.as_pointer())
        values = [
            _argument(context, builder, _word(builder, base, i), form)
            for i, form in enumerate(signature.return_type)
        ]
        return context.make_tuple(builder, signature.return_type, values)

    return address.members(address), codegen


load_arguments: Final[Any] = intrinsic(_load_arguments)
