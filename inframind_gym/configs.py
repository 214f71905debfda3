"""Find and read the YAML files that people exchange: pools, workloads, suites.

A file is given by the name of a shipped configuration ("b200-2gpu") or by a path. A pydantic model
checks its content; an error names the file, the line, the dotted key, what is wrong with it, the
nearest valid key and the remedy.
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from inframind_gym.errors import ConfigError, did_you_mean, require_within, shortened, unknown
from inframind_gym.files import MOST_YAML_BYTES, parse_yaml, read_text

_PACKAGE = Path(__file__).resolve().parent
_ROOTS = (_PACKAGE / "_configs", _PACKAGE.parent / "envs_configs")  # in a wheel, in a checkout
KINDS = {
    "pools": "pool",
    "workloads": "workload",
    "suites": "suite",
    "tracks": "track",
    "placement/catalogues": "catalogue of models",
    "placement/clusters": "cluster",
    "placement/demands": "demand",
    "teams": "team",
    "teams/pools": "pool of a team",
}
_SUFFIXES = (".yaml", ".yml")
_MOST_ERRORS = 20  # listed in one message
_LARGEST = 2**53  # number; up to it every whole number is exact as a float

ModelT = TypeVar("ModelT", bound=BaseModel)


class StrictModel(BaseModel):
    """Base of every configuration model: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _reject_bool(value: object) -> object:  # a text may pass: to YAML, 4e-5 is one
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


_NUMBER = BeforeValidator(_reject_bool)
Number = Annotated[float, _NUMBER, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]
Positive = Annotated[float, _NUMBER, Field(gt=0, le=_LARGEST, allow_inf_nan=False)]
NonNegative = Annotated[float, _NUMBER, Field(ge=0, le=_LARGEST, allow_inf_nan=False)]
Fraction = Annotated[float, _NUMBER, Field(ge=0, le=1, allow_inf_nan=False)]
PositiveInt = Annotated[int, _NUMBER, Field(gt=0, le=_LARGEST)]
NonNegativeInt = Annotated[int, _NUMBER, Field(ge=0, le=_LARGEST)]


def within(low: float, high: float) -> BeforeValidator:
    """Restrict a field to numbers from `low` to `high`; the error's message names both."""
    return BeforeValidator(lambda value: require_within(value, low, high))


def whole(pattern: str, what_is_wrong: str) -> AfterValidator:
    """Refuse a text that does not match as a whole."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r:.80} {what_is_wrong}")
        return text

    return AfterValidator(check)


Name = Annotated[  # also of a folder or file
    str,
    whole(
        r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}",
        "is no name: give 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-', a letter or digit first",
    ),
]


def list_configs(kind: str) -> tuple[str, ...]:
    """Return the names of the shipped configurations of a kind, a folder of `envs_configs`."""
    if kind not in KINDS:
        raise ConfigError(unknown("kind of configuration", kind, KINDS))
    found = (path for root in _ROOTS for path in (root / kind).glob("*"))
    return tuple(sorted({path.stem for path in found if path.suffix in _SUFFIXES}))


def find_config(kind: str, name_or_path: str | Path) -> Path:
    """Return the path of a configuration file.

    Args:
        kind: a folder of `envs_configs`: "pools", "workloads", "suites", "placement/clusters", …
        name_or_path: Name of a shipped configuration, or a path: whatever ends with .yaml or .yml
            or contains a path separator. Relative paths start at the working directory.

    Raises:
        ConfigError: If there is no such file; the message suggests the nearest name.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(_SUFFIXES) or "/" in text or "\\" in text:
        path = Path(name_or_path)
        if os.path.isfile(path):
            return path
        if os.path.isdir(path):
            raise ConfigError(f"{path}: is a folder, wanted the YAML file of a {KINDS[kind]}.")
        neighbours = [p.name for p in path.parent.glob("*") if p.suffix in _SUFFIXES]
        raise ConfigError(
            f"{path}: no such {KINDS[kind]} file.{did_you_mean(path.name, sorted(neighbours))} "
            "Relative paths start at the working folder."
        )
    for path in (root / kind / f"{text}{suffix}" for root in _ROOTS for suffix in _SUFFIXES):
        if os.path.isfile(path):
            return path
    known = list_configs(kind)
    message = unknown(KINDS[kind], text, known)
    raise ConfigError(f"{message} A path to a YAML file of your own is taken as well.")


def shipped_file(name: str) -> Path:
    """Return the path of a shipped file that is the only one of its kind, e.g. "prices.yaml".

    Raises:
        ConfigError: It is missing.
    """
    for root in _ROOTS:
        if (root / name).is_file():
            return root / name
    raise ConfigError(f"{name}: is missing from the installation. Install the package again.")


def load_yaml_model(path: str | Path, model: type[ModelT]) -> ModelT:
    """Read a YAML file into a pydantic model; the same text is parsed once.

    Paths of .yaml and .csv files in it start at its own folder or, where there is no such file, at
    the working folder.

    Raises:
        ConfigError: If the file cannot be read, is not YAML (file, line, column), repeats a key, or
            does not satisfy the model (file, line, dotted key, nearest valid key).
    """
    path = Path(path)
    return cast(ModelT, _parsed(path, read_text(path, MOST_YAML_BYTES), model))


@lru_cache(maxsize=128)  # making an environment reads its pool and workloads several times
def _parsed(path: Path, text: str, model: type[BaseModel]) -> BaseModel:
    data, root = parse_yaml(text, path)
    if root is None or not isinstance(data, dict):
        found = "empty" if data is None else f"a {type(data).__name__}"
        keys = ", ".join(model.model_fields)
        raise ConfigError(f"{path}: is {found}, wanted `key: value` lines with the keys {keys}.")
    return validate(_beside(data, path.parent), model, source=str(path), root=root)


def _beside(data: Any, folder: Path) -> Any:
    """Return the data with paths relative to a folder resolved, where such a file is there."""
    if isinstance(data, dict):
        return {_beside(key, folder): _beside(value, folder) for key, value in data.items()}
    if isinstance(data, list):
        return [_beside(item, folder) for item in data]
    if isinstance(data, str) and data.endswith((*_SUFFIXES, ".csv")) and ":" not in data:
        beside = folder / data
        return str(beside) if not Path(data).is_absolute() and beside.is_file() else data
    return data


def read_setting(text: str, model: type[BaseModel] | None = None) -> tuple[str, Any]:
    """Read KEY=VALUE of a command line; the value is YAML, not yet checked.

    Args:
        text: The setting.
        model: Model with that field: a field of several values takes them separated by commas,
            and a field of text takes the value unchanged.

    Raises:
        ConfigError: There is no ``=``, or the value is not YAML.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals:
        raise ConfigError(f"--set {text}: write KEY=VALUE.")
    field = model.model_fields.get(key) if model else None
    annotation = str(field.annotation) if field else ""
    if annotation.startswith("<class 'str'>"):
        return key, value
    source = f"--set {key}"
    if "tuple[" in annotation and not value.lstrip().startswith("["):
        items = [part.strip() for part in value.split(",") if part.strip()]
        if "[str, ...]" in annotation:
            return key, tuple(items)
        if "," in value or "int |" not in annotation:  # one number of a field that is a count, too
            return key, tuple(_number(parse_yaml(item, source)[0]) for item in items)
    return key, parse_yaml(value, source)[0]


def _number(value: Any) -> Any:
    """Convert a text that is a number to Python and not to YAML, such as 1e3."""
    with suppress(TypeError, ValueError):
        return float(value) if isinstance(value, str) else value
    return value


def validate(
    data: object, model: type[ModelT], *, source: str, root: yaml.Node | None = None
) -> ModelT:
    """Check plain data against a pydantic model, with the errors of this module.

    Args:
        data: What was read: usually a dict.
        model: The model to build.
        source: Where the data came from, a file or an argument; every line of the message opens
            with it.
        root: The YAML node tree of `data`, if there is one, for line numbers.

    Raises:
        ConfigError: One line for each thing that is wrong.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        items = error.errors()
        places = [tuple(item["loc"]) for item in items]
        primary = [  # without errors that follow from one further down at the same place
            item
            for item, place in zip(items, places, strict=True)
            if not any(len(other) > len(place) and other[: len(place)] == place for other in places)
        ]
        lines = [_describe(item, model, source, root) for item in primary[:_MOST_ERRORS]]
        if len(primary) > _MOST_ERRORS:
            lines.append(f"{source}: {len(primary) - _MOST_ERRORS} more errors like these.")
        raise ConfigError("\n".join(lines)) from None


def _describe(
    item: Mapping[str, Any], model: type[BaseModel], source: str, root: yaml.Node | None
) -> str:
    """Return one line for one pydantic error: source, line, dotted key, what is wrong, remedy."""
    loc = [part for part in item["loc"] if part != "[key]"]
    dotted = ".".join(shortened(part) for part in loc)
    line = "" if root is None else f":{_line(root, loc)}"
    head = f"{source}{line}: {dotted}: " if dotted else f"{source}: "
    kind = item["type"]
    if kind == "extra_forbidden":
        known = _keys_at(model, loc[:-1])
        hint = did_you_mean(loc[-1], known)
        return f"{head}unknown key.{hint} Valid keys here: {', '.join(known)}. Rename or remove it."
    if kind == "missing":
        return f"{head}this key is required. Add it."
    if kind == "literal_error":
        expected = item["ctx"]["expected"].replace(" or ", ", ")
        known = [part.strip(" '") for part in expected.split(",")]
        hint = did_you_mean(str(item["input"]), known)
        return f"{head}{_shown(item['input'])} is not valid.{hint} Valid: {', '.join(known)}."
    message = str(item["msg"]).removeprefix("Value error, ")
    if kind == "value_error":
        return f"{head}{message.rstrip('.')}."
    message = message[:1].lower() + message[1:]
    return f"{head}{message}, got {_shown(item['input'])}. Correct the value."


def _shown(value: object) -> str:
    """Format a value for a message; of containers of text only the kind: they may hold secrets."""
    if isinstance(value, Mapping):
        return f"a mapping of {len(value)} keys"
    numbers = isinstance(value, list | tuple) and all(isinstance(v, int | float) for v in value)
    if isinstance(value, list | tuple | set) and not (numbers and len(value) <= 8):
        return f"a list of {len(value)}"
    return shortened(repr(value))


def _line(node: yaml.Node, loc: Sequence[str | int]) -> int:
    """Return the 1-based line of the deepest node of `loc` that is in the file."""
    line = node.start_mark.line
    for part in loc:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line
        elif isinstance(node, yaml.MappingNode):
            pairs = [pair for pair in node.value if str(pair[0].value) == str(part)]
            if not pairs:
                break
            line, node = pairs[0][0].start_mark.line, pairs[0][1]
        else:
            break
    return line + 1


def _keys_at(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """Return the keys that are valid where `loc` points in a model."""
    for part in loc:  # an index of a list and a key of a dict are no fields
        if field := model.model_fields.get(str(part)):
            model = next(_models(field.annotation), model)
    return list(model.model_fields)


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type: the items' of a list, the values' of a dict, X of `X | None`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for argument in get_args(kind):
        yield from _models(argument)


def without_checks(kind: Any) -> Any:
    """Return a type without pydantic's annotations, as `help` shows it."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return without_checks(parts[0])
    if origin in (Union, types.UnionType):
        return reduce(or_, map(without_checks, parts))
    return kind if origin in (None, Literal) else origin[tuple(map(without_checks, parts))]
