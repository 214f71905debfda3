"""The templates of the written pages: finished, before anybody reads a page made from them."""

import re

from benchmarks.pages.writing import TEMPLATES


def test_no_template_holds_a_note_of_what_is_still_to_be_written() -> None:
    templates = sorted(TEMPLATES.rglob("*.md"))
    assert templates
    notes = {
        str(path.relative_to(TEMPLATES)): found
        for path in templates
        if (found := re.findall(r"<!--\s*LEAD\b.*", path.read_text(encoding="utf-8")))
    }
    assert not notes
