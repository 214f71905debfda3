"""Hooks of the site: pages from outside of docs/, and links between and out of the pages.

Links are written as they work in the repository. On the site a link to another page leads there;
one to a file outside of `docs` leads to the repository (`$INFRAMIND_REPO_URL`), or is text.
"""

from __future__ import annotations

import json
import os.path
import posixpath
import re
from pathlib import Path
from typing import Any, Final

from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
# Pages of the site that lie outside of docs/.
OUTSIDE: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples": "examples.md",
}
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCE: Final = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside of docs/."""
    for source, page in OUTSIDE.items():
        text = _examples() if source == "examples" else (ROOT / source).read_text(encoding="utf-8")
        if page == "index.md":
            text = f"---\nhide: [navigation]\n---\n{text}"
        files.append(File.generated(config, page, content=text))
    return files


def _examples() -> str:
    """Return the page of the scripts and notebooks in examples/."""
    parts = ["# Examples\n\nThe files of `examples/` in a checkout, which the tests run."]
    for file in sorted((ROOT / "examples").iterdir()):
        if file.suffix not in (".py", ".ipynb"):
            continue
        text = file.read_text(encoding="utf-8").rstrip()
        cells = [{"cell_type": "code", "source": [text]}]
        if file.suffix == ".ipynb":
            cells = json.loads(text)["cells"]
        parts += [f"## {file.name}", *map(_cell, cells)]
    return "\n\n".join(parts) + "\n"


def _cell(cell: dict[str, Any]) -> str:
    """Return a cell of a notebook as Markdown, its headings as text in bold."""
    text = "".join(cell["source"])
    if cell["cell_type"] == "code":
        return f"```python\n{text}\n```"
    return re.sub(r"^#+ (.*)$", r"**\1**", text, flags=re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text with its links as the site needs them."""
    here = page.file.src_uri
    outside = {site: source for source, site in OUTSIDE.items()}
    origin = outside.get(here, f"docs/{here}")
    if (ROOT / origin).is_dir():
        origin += "/"  # of links in its files

    def link(match: re.Match[str]) -> str:
        target = _target(match[3], origin, here, config.repo_url)
        if target is None:
            return match[2]
        return f"{match[1]}[{match[2]}]({target})"

    parts = _FENCE.split(markdown)
    return "".join(p if i % 2 else _LINK.sub(link, p) for i, p in enumerate(parts))


def _target(link: str, origin: str, here: str, repo_url: Any) -> str | None:
    """Return where a link leads on the site; None if it has to be text."""
    path, hash_, anchor = link.partition("#")
    if "://" in link or not path:
        return link
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
    if posixpath.dirname(wanted) == "examples":
        wanted, hash_, anchor = "examples", "#", slugify(posixpath.basename(wanted), "-")
    site = OUTSIDE.get(wanted, wanted.removeprefix("docs/"))
    if wanted in OUTSIDE or wanted.startswith("docs/"):
        return os.path.relpath(site, posixpath.dirname(here) or ".") + hash_ + anchor
    return f"{repo_url.rstrip('/')}/blob/main/{wanted}{hash_}{anchor}" if repo_url else None
