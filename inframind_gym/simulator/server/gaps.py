"""Moving what stands behind a gap in an array, by the processor's own fastest means."""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_memmove: Final[Any] = cgutils.raw_memmove  # has no types


def _close_gap(typing_context: Any, array: Any, index: Any, count: Any) -> Any:
    """Move the `count` elements behind `index` of a one-dimensional array one place forward."""
    signature = types.void(array, types.intp, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        data = context.make_array(array_type)(context, builder, arguments[0]).data
        one = ir.Constant(ir.IntType(64), 1)
        to = builder.gep(data, [arguments[1]])
        source = builder.gep(data, [builder.add(arguments[1], one)])
        size = context.get_abi_sizeof(data.type.pointee)
        _memmove(builder, to, source, arguments[2], itemsize=size)
        return context.get_dummy_value()

    return signature, codegen


close_gap: Final[Any] = intrinsic(_close_gap)
