"""Finding the code in what a model wrote. Nothing here runs any."""

from __future__ import annotations

import ast
import re
import warnings

# A fence at the start of a line, or the end of the text where the answer was cut.
_BLOCK = re.compile(
    r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE
)
_LANGUAGES = ("", "python", "python3", "py")
_FIRST = re.compile(r"^(?:def|class|import|from|async def|@)\b|^@", re.MULTILINE)
_DEFINES = r"^(?:async\s+)?(?:def|class)\s+{0}\b|^{0}\s*="
MAX_CUTS = 40  # lines of prose after code that has no fence


def final_code(text: str, entry_point: str = "") -> str:
    """Return the Python code that a response ends on, or "" if it holds none.

    Looked for in this order: the last fenced block of Python that defines `entry_point`; the last
    one that defines a function; the last one; without fences the text from its first definition or
    import on, without the prose behind it.

    Args:
        text: the response.
        entry_point: the function that is asked for; "" if that is not known.
    """
    blocks = [body for language, body in _BLOCK.findall(text) if language.lower() in _LANGUAGES]
    if blocks:
        patterns = [_DEFINES.format(re.escape(entry_point))] if entry_point else []
        for pattern in [*patterns, r"^(?:async\s+)?(?:def|class)\s"]:
            chosen = [b for b in blocks if re.search(pattern, _flush(b), re.MULTILINE)]
            if chosen:
                return _flush(chosen[-1])
        return _flush(blocks[-1])
    start = _FIRST.search(text)
    if start is None:
        return ""
    lines = text[start.start() :].replace("```", "").splitlines()
    for cut in range(min(MAX_CUTS, len(lines))):
        code = "\n".join(lines[: len(lines) - cut])
        if _is_valid(code):
            return code
    return "\n".join(lines)


def _flush(block: str) -> str:
    """Return a block without the indentation that all of its lines share (a fence in a list)."""
    lines = block.splitlines()
    margin = min((len(x) - len(x.lstrip(" ")) for x in lines if x.strip()), default=0)
    return "\n".join(line[margin:] for line in lines) + "\n"


def _is_valid(code: str) -> bool:
    """Return whether a text is Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
