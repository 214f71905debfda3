"""Passages of a folder of texts.

A section of a Markdown file is a passage, and so are about 200 words of a longer one or of a plain
text. The folder of the package has passages of this project's own writing.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Final

from inframind_gym.errors import ConfigError
from inframind_gym.files import read_text
from inframind_gym.teams.coordination.retrieval.text import words

SHIPPED: Final = Path(__file__).with_name("data")
SUFFIXES: Final = (".md", ".markdown", ".txt")
MOST_FILES: Final = 2_000
MOST_FILE_BYTES: Final = 4 * 2**20
MOST_BYTES: Final = 64 * 2**20
MOST_PASSAGES: Final = 20_000
PASSAGE_WORDS: Final = 200
_HEADING: Final = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
_FENCE: Final = re.compile(r"^ {0,3}(```|~~~)")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")
_NO_SLUG: Final = re.compile(r"[^\w]+")


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text that is retrieved as a whole.

    Attributes:
        doc_id: File and heading, such as "batching.md#chunked-prefill".
        title: Its heading; empty in a plain text.
        text: The text without the heading.
        source: File and heading for readers.
    """

    doc_id: str
    title: str
    text: str
    source: str

    @property
    def indexed(self) -> str:
        """Text that is searched."""
        return f"{self.title}. {self.text}" if self.title else self.text


@dataclass(frozen=True, eq=False)
class Corpus:
    """Passages, in the order of files and lines.

    Attributes:
        name: Name of the folder, or "built-in".
        passages: The passages.
    """

    name: str
    passages: tuple[Passage, ...]

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> Corpus:
        """Read a folder with its subfolders, or one file; None: the passages of the package.

        Files end in .md, .markdown or .txt and are UTF-8. Others, names that begin with a
        dot, and symbolic links are left out.

        Raises:
            ConfigError: There is no such folder, it has no text, or a limit is exceeded; a file
                is too large, no text or not UTF-8. Names the file.
        """
        root = SHIPPED if path is None else Path(path)
        passages: list[Passage] = []
        total = 0
        for file in _files(root):
            text = read_text(file, MOST_FILE_BYTES)
            total += len(text)
            name = file.name if root.is_file() else file.relative_to(root).as_posix()
            if "\0" in text:
                raise ConfigError(f"{file}: holds NUL characters, so it is no text.")
            if total > MOST_BYTES:
                raise ConfigError(f"{file}: the texts have more than {MOST_BYTES:,} characters.")
            passages += _passages(name, text)
            if len(passages) > MOST_PASSAGES:
                raise ConfigError(f"{file}: the texts have more than {MOST_PASSAGES:,} passages.")
        if not passages:
            raise ConfigError(f"{root}: has no text in its files ({', '.join(SUFFIXES)}).")
        return cls("built-in" if path is None else root.resolve().name, tuple(passages))

    @cached_property
    def word_counts(self) -> Counter[str]:
        """How often each word occurs, in lower case."""
        return Counter(word for passage in self.passages for word in words(passage.indexed))

    @cached_property
    def neighbours(self) -> frozenset[tuple[str, str]]:
        """Pairs of words that follow one another."""
        return frozenset(
            pair for passage in self.passages for pair in pairwise(words(passage.indexed))
        )

    @cached_property
    def words_by_initial(self) -> dict[str, list[str]]:
        """Words of at least four letters by their first letter."""
        found: dict[str, list[str]] = {}
        for word in self.word_counts:
            if len(word) > 3 and word.isalpha():
                found.setdefault(word[0], []).append(word)
        return found

    @cached_property
    def by_id(self) -> dict[str, Passage]:
        """Passages by their identifier."""
        return {passage.doc_id: passage for passage in self.passages}


def _files(root: Path) -> Iterator[Path]:
    """The texts of a folder, sorted; without links, since they may lead anywhere."""
    if root.is_file():
        if root.suffix.lower() not in SUFFIXES:
            raise ConfigError(f"{root}: a text must end in {', '.join(SUFFIXES)}.")
        yield root
        return
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder of texts.")
    count = 0
    for folder, folders, names in os.walk(root, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            is_text = path.suffix.lower() in SUFFIXES and not name.startswith(".")
            if not is_text or path.is_symlink():
                continue
            count += 1
            if count > MOST_FILES:
                raise ConfigError(f"{root}: has more than {MOST_FILES:,} texts.")
            yield path


def _unreadable(error: OSError) -> None:
    raise ConfigError(f"{error.filename}: cannot be read ({error.strerror}).") from None


def _passages(name: str, text: str) -> list[Passage]:
    made: list[Passage] = []
    taken: Counter[str] = Counter()
    for title, body in _sections(text, markdown=not name.lower().endswith(".txt")):
        for part in _parts(body):
            slug = _NO_SLUG.sub("-", title.lower()).strip("-")
            base = f"{name}#{slug}" if slug else name
            taken[base] += 1
            doc_id = base if taken[base] == 1 else f"{base}-{taken[base]}"
            while doc_id != base and doc_id in taken:  # a heading that ends with a number
                taken[base] += 1
                doc_id = f"{base}-{taken[base]}"
            taken[doc_id] += doc_id != base
            made.append(Passage(doc_id, title, part, f"{name}: {title}" if title else name))
    return made


def _sections(text: str, *, markdown: bool) -> list[tuple[str, str]]:
    """Headings and the text below each."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    fence = ""
    for line in text.splitlines():
        opened = _FENCE.match(line)
        if opened and (not fence or fence == opened[1]):
            fence = "" if fence else opened[1]
        heading = _HEADING.match(line) if markdown and not fence and not opened else None
        if heading:
            sections.append((heading[1], []))
        else:
            sections[-1][1].append(line)
    return [(title, "\n".join(lines).strip()) for title, lines in sections]


def _parts(body: str) -> list[str]:
    """Pieces of at most about `PASSAGE_WORDS` words, cut between paragraphs, then sentences."""
    if len(body.split()) <= 1.5 * PASSAGE_WORDS:
        return [" ".join(body.split())] if body else []
    pieces: list[str] = []
    for paragraph in re.split(r"\n\s*\n", body):
        long = len(paragraph.split()) > PASSAGE_WORDS
        pieces += _SENTENCE.split(paragraph) if long else [paragraph]
    parts: list[list[str]] = [[]]
    for piece in pieces:
        split = piece.split()
        for start in range(0, len(split), PASSAGE_WORDS):  # a sentence may be endless
            some = split[start : start + PASSAGE_WORDS]
            if parts[-1] and len(parts[-1]) + len(some) > PASSAGE_WORDS:
                parts.append([])
            parts[-1] += some
    return [" ".join(part) for part in parts if part]
