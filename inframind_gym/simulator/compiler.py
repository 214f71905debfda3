"""Machine code of entry points, by numba and LLVM; imported where something has to be compiled.

numba by itself optimises every function together with all that it calls, and makes machine code of
it, before its callers take it in. Here a function that compiled code alone calls is translated
once, to LLVM's form; everything is optimised once, where an entry point has taken it in.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from itertools import count
from types import FunctionType
from typing import Any, Final

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import cgutils as numba_cgutils
from numba.core import types as numba_types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

types: Final[Any] = numba_types  # which have no types themselves, as the next five
cgutils: Final[Any] = numba_cgutils
_Library: Final[Any] = JITCodeLibrary
_Compiler: Final[Any] = Compiler
_njit: Final[Any] = numba.njit
_intrinsic: Final[Any] = intrinsic
_WORD: Final = ir.IntType(64)
_NUMBERS: Final = {"i": types.int64, "f": types.float64, "b": types.boolean, "u": types.uint64}
_RESULTS: Final = {types.int64: "i", types.float64: "f", types.boolean: "b", types.none: ""}


# Arguments behind one address: `jit` has their layout.


class Arguments(types.Type):  # type: ignore[misc]
    """Address of the words of some arguments.

    Args:
        members: Tuple of their types.
    """

    def __init__(self, members: Any) -> None:
        self.members = members
        super().__init__(name=f"Arguments({members})")


@register_model(Arguments)
class _AddressModel(models.PrimitiveModel):
    """A 64-bit address."""

    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _WORD)  # type: ignore[no-untyped-call]


def _type_of(kind: Any) -> Any:
    """Return numba's type of an argument, by its kind (`jit.kind_of`)."""
    if isinstance(kind, str):
        return _NUMBERS[kind]
    first, *rest = kind
    if isinstance(first, type):
        of_class = None if first is tuple else first
        return types.BaseTuple.from_types([_type_of(part) for part in rest], of_class)
    return types.Array(numba.from_dtype(first), rest[0], "C")


def _filled(builder: Any, form: Any, words: Iterator[Any]) -> Any:
    """Return a value of a native type from the words of a block."""
    if isinstance(form, ir.PointerType):
        return builder.inttoptr(next(words), form)
    if form == _WORD:
        return next(words)
    if not isinstance(form, ir.LiteralStructType | ir.ArrayType):
        raise NotImplementedError(f"no layout is known of {form}")  # numba's arrays have changed
    parts = form.elements if isinstance(form, ir.LiteralStructType) else [form.element] * form.count
    value = ir.Constant(form, ir.Undefined)
    for i, part in enumerate(parts):
        value = builder.insert_value(value, _filled(builder, part, words), i)
    return value


@_intrinsic  # type: ignore[untyped-decorator]
def _load_arguments(typing_context: Any, address: Any) -> Any:
    """Return the arguments at an address, as a tuple.

    Of the words that compiled code does not use none is read: LLVM removes those loads.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def words(address: Any) -> Iterator[Any]:
            base = builder.inttoptr(address, _WORD.as_pointer())
            return (builder.load(builder.gep(base, [ir.Constant(_WORD, i)])) for i in count())

        values = []
        for word, form in zip(words(arguments[0]), signature.return_type, strict=False):
            if form == types.boolean:
                values.append(builder.icmp_unsigned("!=", word, ir.Constant(_WORD, 0)))
            elif isinstance(form, types.Float):
                values.append(builder.bitcast(word, ir.DoubleType()))
            elif isinstance(form, types.Integer):
                values.append(word)
            else:
                values.append(_filled(builder, context.get_value_type(form), words(word)))
        return context.make_tuple(builder, signature.return_type, values)

    return address.members(address), codegen


@_intrinsic  # type: ignore[untyped-decorator]
def _prefetch(typing_context: Any, array: Any, element: Any, byte: Any) -> Any:
    """Compile `jit.prefetch`."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte_pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        size = ir.Constant(_WORD, context.get_abi_sizeof(data.type.pointee))
        offset = builder.add(builder.mul(arguments[1], size), arguments[2])
        address = builder.gep(builder.bitcast(data, byte_pointer), [offset])
        hint = ir.FunctionType(ir.VoidType(), [byte_pointer, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch.p0", (), hint)
        flags = [ir.Constant(word, flag) for flag in (0, 3, 1)]  # read, keep, data
        builder.call(function, [address, *flags])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), codegen


@_intrinsic  # type: ignore[untyped-decorator]
def _close_gap(typing_context: Any, array: Any, index: Any, count: Any) -> Any:
    """Compile `jit.close_gap`."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        to = builder.gep(data, [arguments[1]])
        source = builder.gep(data, [builder.add(arguments[1], ir.Constant(_WORD, 1))])
        size = context.get_abi_sizeof(data.type.pointee)
        cgutils.raw_memmove(builder, to, source, arguments[2], itemsize=size)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), codegen


class _Codegen:
    """numba's code generator, but for calls from Python: there are none."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, *_: object) -> None:
        """Set nothing."""


class _Translation(_Library):  # type: ignore[misc]
    """LLVM's form of one function, without machine code."""

    @property
    def codegen(self) -> Any:
        """The code generator."""
        return _Codegen(self._codegen)

    def finalize(self) -> None:
        """Let nothing be added any more."""
        self._raise_if_finalized()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0: there is no machine code."""
        return 0

    def linked(self) -> Any:
        """Return a module of the function and all that it calls."""
        module = self._final_module.clone()
        libraries: dict[int, Any] = {}
        waiting: list[Any] = [self]
        while waiting:
            for library in waiting.pop()._linking_libraries:
                if id(library) not in libraries:
                    libraries[id(library)] = library
                    waiting += [library] if isinstance(library, _Translation) else []
        for library in libraries.values():
            own = isinstance(library, _Translation)
            part = library._final_module if own else library._get_module_for_linking()
            module.link_in(part, preserve=True)
        return module


class _Translator(_Compiler):  # type: ignore[misc]
    """numba's compiler up to LLVM's form of a function."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.state.library = _Translation(self.state.targetctx.codegen(), "inframind_gym")


# Without the runtime (_nrt) compiled code cannot allocate arrays, and does not count references:
# counting them would take most of the time, since every function is handed whole NamedTuples.
# Floating-point arithmetic is strict (no reassociation): every path gives the same bits.
_translated: Final = _njit(
    pipeline_class=_Translator,
    forceinline=True,
    no_cpython_wrapper=True,
    no_cfunc_wrapper=True,
    error_model="numpy",
    _nrt=False,
)
_names: Final[dict[str, dict[str, Any]]] = {}  # of modules
_dispatchers: Final[dict[Any, Any]] = {}
_INTRINSICS: Final = {"prefetch": _prefetch, "close_gap": _close_gap}  # inner functions of `jit`


def _dispatcher(function: Any) -> Any:
    """Return numba's dispatcher of a function, for which inner functions are dispatchers, too."""
    module = function.__module__
    if module == "inframind_gym.simulator.jit":
        return _INTRINSICS[function.__name__]
    if function not in _dispatchers:
        if module not in _names:
            names = _names[module] = dict(function.__globals__)
            for name, value in function.__globals__.items():
                if isinstance(value, FunctionType) and "is_inner" in value.__dict__:
                    names[name] = _dispatcher(value)
        if function not in _dispatchers:  # its module's names may have needed it
            twin = FunctionType(function.__code__, _names[module], function.__name__)
            twin.__qualname__, twin.__module__ = function.__qualname__, module
            _dispatchers[function] = _translated(twin)
    return _dispatchers[function]


# The result is written into word 0, in front of the arguments.
_ENTRY: Final = """
declare i32 @"{inside}"(ptr, ptr, i64)
define i32 @"{symbol}"(ptr %words) {{
  %error = alloca ptr
  store i64 0, ptr %words
  %arguments = getelementptr i64, ptr %words, i64 1
  %address = ptrtoint ptr %arguments to i64
  %status = call i32 @"{inside}"(ptr %words, ptr %error, i64 %address)
  ret i32 %status
}}
"""


def compile_entry(
    function: Callable[..., object], kinds: tuple[Any, ...], symbol: str, cpu: str, features: str
) -> tuple[str, bytes]:
    """Compile an entry point.

    Args:
        function: the entry point.
        kinds: of its arguments (`jit.kind_of`).
        symbol: name of the function in the object file.
        cpu: processor, by LLVM's name.
        features: of the processor, as LLVM writes them; "": those of its name.

    Returns:
        Kind of its result, and the object file.

    Raises:
        TypeError: It returns neither an integer, nor a float, a bool or nothing; or it calls what
            only a process that has imported numba has.
    """
    inside = _dispatcher(function)
    enter = _translated(lambda address: inside(*_load_arguments(address)))
    signature = (Arguments(_type_of((tuple, *kinds))),)
    enter.compile(signature)
    compiled = enter.overloads[signature]
    result = _RESULTS.get(compiled.signature.return_type)
    if result is None:
        raise TypeError(f"{function.__name__} returns {compiled.signature.return_type}")
    module = compiled.library.linked()
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration:
            value.linkage = "internal"
    name = compiled.fndesc.llvm_func_name
    # The call is to be found by its linkage while modules are put together.
    module.get_function(name).linkage = "external"
    module.link_in(llvm.parse_assembly(_ENTRY.format(inside=name, symbol=symbol)))
    module.get_function(name).linkage = "internal"

    target = llvm.Target.from_triple(llvm.get_process_triple())
    # "large": the loader may put code and constants of one file more than 2 GB apart.
    machine = target.create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="static", codemodel="large"
    )
    for level in (0, 3):  # the first passes take callees in
        tuning = llvm.create_pipeline_tuning_options(speed_level=level)
        tuning.loop_vectorization = level > 0
        tuning.slp_vectorization = False
        builder = llvm.create_pass_builder(machine, tuning)
        manager = builder.getModulePassManager()
        if level == 0:
            manager.add_loop_rotate_pass()
            manager.add_instruction_combine_pass()
            manager.add_jump_threading_pass()
        manager.run(module, builder)
    code: bytes = machine.emit_object(module)
    system = ctypes.CDLL(None)  # what every process finds by itself
    declared = [function.name for function in module.functions if function.is_declaration]
    missing = [n for n in declared if not n.startswith("llvm.") and not hasattr(system, n)]
    if missing:
        raise TypeError(f"{function.__name__} calls {', '.join(missing)}: no code of the system's")
    return result, code
