"""Reading of files from outside, within limits; writing in one step, or not at all.

Configurations, logs, traces, questions and checkpoints are read here. A file that is broken, or
built to exhaust memory or time, raises a ConfigError that names it.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, NoReturn

import yaml

from inframind_gym.errors import ConfigError, InfraMindError

MOST_YAML_BYTES: Final = 2**19
MOST_VALUES: Final = 10_000  # of a YAML file: they take half a second
MOST_JSON_BYTES: Final = 16 * 2**20  # of a document, and of one line of a file of lines
MOST_BYTES: Final = 512 * 2**20  # of a log, a trace or a file of questions, unpacked
MOST_DEPTH: Final = 64  # levels of nested lists and mappings
MOST_DIGITS: Final = 300  # of a number: it still is a finite float
_MOST_UNPACKED: Final = 100  # times the size of a gzip file; text shrinks 3 to 20 times
_SMALL_BYTES: Final = 2**20  # unpacked size up to which that ratio is not checked
_PLAIN: Final = frozenset(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float"))


@contextmanager
def _opened(path: Path, most_bytes: int) -> Iterator[IO[bytes]]:
    """Open a plain file, unpacked if it ends with .gz; errors of reading it name the file."""
    if not os.path.isfile(path):
        special = "it is a pipe or a device" if os.path.exists(path) else "no such file"
        why = "it is a folder" if os.path.isdir(path) else special
        raise ConfigError(f"{path}: cannot be read ({why}).")
    packed = path.suffix == ".gz"
    opener: Any = gzip.open if packed else open
    try:
        size = os.path.getsize(path)
        with opener(path, "rb") as file:
            if packed:  # unpack it once to check its size, before its content is used
                most_unpacked, size = max(_SMALL_BYTES, _MOST_UNPACKED * size), 0
                while size <= min(most_bytes, most_unpacked) and (raw := file.read(_SMALL_BYTES)):
                    size += len(raw)
                if size > most_unpacked:
                    raise ConfigError(
                        f"{path}: unpacks to more than {_MOST_UNPACKED} times its size. If that "
                        "is meant, unpack it first."
                    )
                file.seek(0)
            if size > most_bytes:
                raise ConfigError(f"{path}: has more than {most_bytes:,} bytes. Split it.")
            yield file
    except (OSError, EOFError, zlib.error) as error:
        what = "is a gzip file that is cut or damaged" if packed else "cannot be read"
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: {what} ({reason}).") from None


def read_bytes(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Read a plain file; one that ends with .gz is unpacked.

    Raises:
        ConfigError: It cannot be read, is no plain file, is no gzip file, or is too large.
    """
    with _opened(Path(path), most_bytes) as file:
        return file.read()


def read_text(path: str | Path, most_bytes: int = MOST_BYTES) -> str:
    """Read a text in UTF-8, see `read_bytes`.

    Raises:
        ConfigError: Also if it is not UTF-8.
    """
    return _decoded(read_bytes(path, most_bytes), str(path))


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line) of a text file, see `read_text`, a line at a time.

    Raises:
        ConfigError: Also if a line is longer than MOST_JSON_BYTES.
    """
    with _opened(Path(path), MOST_BYTES) as file:
        number = 0
        while raw := file.readline(MOST_JSON_BYTES + 1):
            number += 1
            if len(raw) > MOST_JSON_BYTES:
                raise ConfigError(
                    f"{path}:{number}: the line has more than {MOST_JSON_BYTES:,} bytes."
                )
            yield number, _decoded(raw, f"{path}:{number}")


def read_objects(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) for the lines of a JSON Lines file that are not blank.

    Raises:
        ConfigError: See `read_lines` and `parse_json`; also if a line is no object.
    """
    for number, line in read_lines(path):
        if not line.strip():
            continue
        item = parse_json(line, f"{path}, line {number}")
        if not isinstance(item, dict):
            raise ConfigError(f"{path}, line {number}: is not a JSON object but {item!r:.40}.")
        yield number, item


def read_csv(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, columns) of the rows of a CSV file, see `read_lines`.

    Raises:
        ConfigError: Also if a column is longer than the limit of `csv`, or quotes do not match.
    """
    reader = csv.reader(line for _, line in read_lines(path))
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        where = f"{path}:{reader.line_num}"
        raise ConfigError(f"{where}: is not CSV ({error}). Is a quote missing?") from None


def read_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        ConfigError: See `read_text` and `parse_json`.
    """
    return parse_json(read_text(path, MOST_JSON_BYTES), str(path))


def parse_json(text: str, source: str, most_chars: int = MOST_JSON_BYTES) -> Any:
    """Parse JSON.

    Args:
        text: One value.
        source: Where it came from, a file, a line or an argument; the message opens with it.
        most_chars: Length that it may have.

    Raises:
        ConfigError: It is not JSON, repeats a key, is nested deeper than MOST_DEPTH, or has a
            whole number of more than MOST_DIGITS digits or half of a surrogate pair.
    """
    try:
        if len(text) > most_chars:
            raise ValueError(f"more than {most_chars:,} characters")
        data = _JSON.decode(text)
        if text.count("[") + text.count("{") > MOST_DEPTH:
            level, depth = [data], -1
            while level:
                if (depth := depth + 1) > MOST_DEPTH:
                    raise RecursionError
                containers = [item for item in level if isinstance(item, dict | list)]
                level = [v for c in containers for v in (c.values() if isinstance(c, dict) else c)]
        if "\\u" in text:  # half of a pair of surrogates
            json.dumps(data, ensure_ascii=False).encode()
    except RecursionError:
        raise ConfigError(f"{source}: is nested deeper than {MOST_DEPTH} levels.") from None
    except UnicodeEncodeError:
        raise ConfigError(f"{source}: holds half of a surrogate pair (\\ud800-\\udfff).") from None
    except ValueError as error:
        raise ConfigError(f"{source}: is not valid JSON ({error}).") from None
    return data


def read_yaml(path: str | Path) -> tuple[Any, yaml.Node | None]:
    """Read a YAML file, see `parse_yaml`.

    Raises:
        ConfigError: It cannot be read, has more than MOST_YAML_BYTES, or is not what `parse_yaml`
            takes.
    """
    return parse_yaml(read_text(path, MOST_YAML_BYTES), path)


def parse_yaml(text: str, path: str | Path) -> tuple[Any, yaml.Node | None]:
    """Parse YAML: mappings, lists, texts, numbers, true, false and null; no dates.

    Args:
        text: One document.
        path: The file that it comes from; messages open with it.

    Returns:
        The data and the tree of nodes, which knows their lines; (None, None) for an empty file.

    Raises:
        ConfigError: It is malformed (file, line, column), has an anchor, an alias or a tag, or more
            than MOST_VALUES or MOST_DEPTH.
    """
    try:
        loader = _YamlLoader(text, path)
        root = loader.get_single_node()
        return (None, None) if root is None else (loader.construct_document(root), root)
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # of an escaped character
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        where, place = "", ""
        if mark is not None:
            where = f":{mark.line + 1}:{mark.column + 1}"
            place = f" at line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigError(
            f"{path}{where}: malformed YAML{place}: {problem:.300}. Check the indentation (spaces, "
            "no tabs), the colons and the quotes there."
        ) from None


def replace_text(path: Path, text: str) -> None:
    """Write a text file in one step, see `replace_bytes`."""
    replace_bytes(path, text.encode("utf-8"))


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a file in one step, with the folders that it needs.

    A path that is no plain file (a terminal, /dev/null, a pipe) is written to, not replaced.

    Raises:
        InfraMindError: The file cannot be written; its old content is still there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InfraMindError(f"{path}: cannot be written: {error.strerror or error}") from None


def _decoded(raw: bytes, place: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{place}: is not UTF-8 text ({error.reason}). Save it as UTF-8."
        ) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r:.80} is given twice")
    return data


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text):,} digits; {MOST_DIGITS} at most")
    return int(text)


_JSON: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_whole)


class _YamlLoader(yaml.SafeLoader):
    """Plain YAML: no anchors, no tags, no dates, no merged keys; bounded depth and size."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (as PyYAML declares it)
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _PLAIN]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str, path: str | Path) -> None:
        super().__init__(text)
        self._path = path
        self._depth = self._values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a value, unless that exceeds a limit."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        self._values += 1
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            self._refuse(event, "anchors (&) and aliases (*) are not taken; write the value out")
        if event.tag is not None:
            self._refuse(event, f"tags are not taken; remove {event.tag!r:.80}")
        if self._depth > MOST_DEPTH:
            self._refuse(event, f"nested deeper than {MOST_DEPTH} levels")
        if self._values > MOST_VALUES:
            self._refuse(event, f"more than {MOST_VALUES:,} values; split the file")
        if isinstance(event, yaml.ScalarEvent):
            event.value.encode()  # fails for half of a pair of surrogates
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Return a mapping; refuse one that repeats a key, of which YAML would keep the last."""
        first: dict[str, Any] = {}
        for key, _ in node.value:
            other = first.setdefault(str(key.value), key)
            if other is not key:
                line = other.start_mark.line + 1
                self._refuse(key, f"{key.value}: given twice, first in line {line}. Keep one")
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: Any) -> Any:
        """Return the text of a scalar; refuse a number of too many digits."""
        if node.tag in _PLAIN and len(node.value) > MOST_DIGITS:
            digits = f"{len(node.value):,} digits; {MOST_DIGITS} at most"
            self._refuse(node, f"a number of {digits}")
        return super().construct_scalar(node)

    def _refuse(self, place: Any, problem: str) -> NoReturn:
        mark = place.start_mark
        raise ConfigError(f"{self._path}:{mark.line + 1}:{mark.column + 1}: {problem}.")
