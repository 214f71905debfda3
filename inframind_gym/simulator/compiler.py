"""Machine code of entry points, by numba and LLVM; imported where something has to be compiled.

numba by itself optimises every function together with all that it calls, and makes machine code of
it, before its callers take it in. Here a function that compiled code alone calls is translated
once, to LLVM's form; everything is optimised once, where an entry point has taken it in.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import cgutils as numba_cgutils
from numba.core import types as numba_types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import intrinsic

from inframind_gym.simulator import jit
from inframind_gym.simulator.arguments import Arguments, load_arguments, type_of

types: Final[Any] = numba_types  # which have no types themselves
cgutils: Final[Any] = numba_cgutils
_njit: Final[Any] = numba.njit
_Library: Final[Any] = JITCodeLibrary
_Compiler: Final[Any] = Compiler
_OPTIMISE: Final = 3
# Without the runtime (_nrt) compiled code cannot allocate arrays, and does not count references:
# counting them would take most of the time, since every function is handed whole NamedTuples.
# Floating-point arithmetic is strict (no reassociation): every path gives the same bits.
_STRICT: Final[dict[str, Any]] = {"error_model": "numpy", "_nrt": False}
_RESULTS: Final = {types.int64: "i", types.float64: "f", types.boolean: "b", types.none: ""}


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
        for library in _reached(self):
            own = isinstance(library, _Translation)
            part = library._final_module if own else library._get_module_for_linking()
            module.link_in(part, preserve=True)
        return module

    def _get_module_for_linking(self) -> Any:
        """Return what functions that numba compiles by itself take in."""
        self._ensure_finalized()
        module = self.linked()
        for function in module.functions:
            if not function.is_declaration:
                function.linkage = "linkonce_odr"
        return module


def _reached(library: _Translation) -> list[Any]:
    """Return the libraries that a function is linked with, by its own calls or by theirs."""
    found: dict[int, Any] = {}
    waiting = [library]
    while waiting:
        for other in waiting.pop()._linking_libraries:
            if id(other) not in found:
                found[id(other)] = other
                if isinstance(other, _Translation):
                    waiting.append(other)
    return list(found.values())


class _Translator(_Compiler):  # type: ignore[misc]
    """numba's compiler up to LLVM's form of a function."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        codegen = self.state.targetctx.codegen()
        self.state.library = _Translation(codegen, "inframind_gym")


def _dispatcher(function: Callable[..., object], names: dict[str, Any]) -> Any:
    """Return numba's dispatcher of a function with other globals, for calls by compiled code."""
    twin = FunctionType(function.__code__, names, function.__name__)
    twin.__qualname__, twin.__module__ = function.__qualname__, function.__module__
    unwrapped = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return _njit(pipeline_class=_Translator, forceinline=True, **unwrapped, **_STRICT)(twin)


_names: Final[dict[str, dict[str, Any]]] = {}  # of modules
_dispatchers: Final[dict[FunctionType, Any]] = {}  # of inner functions


def names_of(function: Any) -> dict[str, Any]:
    """Return the globals of a function, with dispatchers in place of inner functions."""
    module = function.__module__
    if module not in _names:
        names = _names[module] = dict(function.__globals__)
        for name, value in function.__globals__.items():
            if isinstance(value, FunctionType) and value in jit.inner_functions:
                names[name] = _inner_dispatcher(value)
    return _names[module]


def _inner_dispatcher(function: FunctionType) -> Any:
    if function in _intrinsics:
        return _intrinsics[function]
    names = names_of(function)
    if function not in _dispatchers:
        _dispatchers[function] = _dispatcher(function, names)
    return _dispatchers[function]


def _prefetch_type(typing_context: Any, array: Any, element: Any, byte: Any) -> Any:
    """Type and code of `jit.prefetch`."""
    signature = types.void(array, types.intp, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        data = context.make_array(array_type)(context, builder, arguments[0]).data
        byte_pointer = ir.IntType(8).as_pointer()
        size = ir.Constant(ir.IntType(64), context.get_abi_sizeof(data.type.pointee))
        offset = builder.add(builder.mul(arguments[1], size), arguments[2])
        address = builder.gep(builder.bitcast(data, byte_pointer), [offset])
        word = ir.IntType(32)
        signature_of_hint = ir.FunctionType(ir.VoidType(), [byte_pointer, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch.p0", (), signature_of_hint)
        flags = [ir.Constant(word, flag) for flag in (0, 3, 1)]  # read, keep, data
        builder.call(function, [address, *flags])
        return context.get_dummy_value()

    return signature, codegen


def _close_gap_type(typing_context: Any, array: Any, index: Any, count: Any) -> Any:
    """Type and code of `jit.close_gap`."""
    signature = types.void(array, types.intp, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        data = context.make_array(array_type)(context, builder, arguments[0]).data
        one = ir.Constant(ir.IntType(64), 1)
        to = builder.gep(data, [arguments[1]])
        source = builder.gep(data, [builder.add(arguments[1], one)])
        size = context.get_abi_sizeof(data.type.pointee)
        cgutils.raw_memmove(builder, to, source, arguments[2], itemsize=size)
        return context.get_dummy_value()

    return signature, codegen


_intrinsics: Final[dict[Any, Any]] = {  # inner functions that are written in LLVM's form
    jit.prefetch: intrinsic(_prefetch_type),
    jit.close_gap: intrinsic(_close_gap_type),
}


def _enter(address: Any) -> Any:
    """Call `function` with the arguments that lie at an address."""
    return function(*load_arguments(address))  # noqa: F821  # type: ignore[name-defined]


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
        kinds: of its arguments (`native.kind_of`).
        symbol: name of the function in the object file.
        cpu: processor, by LLVM's name.
        features: of the processor, as LLVM writes them; "": those of its name.

    Returns:
        Kind of its result, and the object file.

    Raises:
        TypeError: It returns neither an integer, nor a float, a bool or nothing; or it calls what
            only a process that has imported numba has.
    """
    own = _dispatcher(function, names_of(function))
    enter = _dispatcher(_enter, {"function": own, "load_arguments": load_arguments})
    signature = (Arguments(type_of((tuple, *kinds))),)
    enter.compile(signature)
    compiled = enter.overloads[signature]
    result = _RESULTS.get(compiled.signature.return_type)
    if result is None:
        raise TypeError(f"{function.__name__} returns {compiled.signature.return_type}")
    module = compiled.library.linked()
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration:
            value.linkage = "internal"
    inside = compiled.fndesc.llvm_func_name
    # The call is to be found by its linkage while modules are put together.
    module.get_function(inside).linkage = "external"
    module.link_in(llvm.parse_assembly(_ENTRY.format(inside=inside, symbol=symbol)))
    module.get_function(inside).linkage = "internal"
    code = _emit(module, cpu, features)
    if missing := _missing(module):
        raise TypeError(f"{function.__name__} calls {', '.join(missing)}: no code of the system's")
    return result, code


def _emit(module: Any, cpu: str, features: str) -> bytes:
    """Optimise a module and return its object file."""
    target = llvm.Target.from_triple(llvm.get_process_triple())
    # "large": the loader may put code and constants of one file more than 2 GB apart.
    machine = target.create_target_machine(
        cpu=cpu, features=features, opt=_OPTIMISE, reloc="static", codemodel="large"
    )
    early = _passes(machine, 0)
    manager = early.getModulePassManager()
    manager.add_loop_rotate_pass()
    manager.add_instruction_combine_pass()
    manager.add_jump_threading_pass()
    manager.run(module, early)  # takes callees in
    late = _passes(machine, _OPTIMISE)
    late.getModulePassManager().run(module, late)
    code: bytes = machine.emit_object(module)
    return code


def _missing(module: Any) -> list[str]:
    """Return the functions that a module calls and that no process finds by itself."""
    system = ctypes.CDLL(None)
    names = [function.name for function in module.functions if function.is_declaration]
    return [n for n in names if not n.startswith("llvm.") and not hasattr(system, n)]


def _passes(machine: Any, level: int) -> Any:
    tuning = llvm.create_pipeline_tuning_options(speed_level=level)
    tuning.loop_vectorization = level > 0
    tuning.slp_vectorization = False
    return llvm.create_pass_builder(machine, tuning)
