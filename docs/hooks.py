"""Hooks of the site: pages from outside of docs/, and links between and out of the pages.

Links are written as they work in the repository. On the site a link to another page leads there;
one to a file outside of `docs` leads to the repository (`$INFRAMIND_REPO_URL`), or is text.
"""

from __future__ import annotations

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
    """Return the page of the scripts in examples/."""
    parts = ["# Examples\n\nThe scripts of `examples/` in a checkout, which the tests run."]
    for script in sorted((ROOT / "examples").glob("*.py")):
        code = script.read_text(encoding="utf-8").rstrip()
        parts.append(f"## {script.name}\n\n```python\n{code}\n```")
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text with its links as the site needs them."""
    here = page.file.src_uri
    origin = {site: source for source, site in OUTSIDE.items()}.get(here, f"docs/{here}")

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
