"""Progress of long work in a file: plain lines, far apart."""

from __future__ import annotations

import pytest

from inframind_gym import progress


def test_lines_of_long_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress.ProgressReport(600, 0, "embedding", "texts") as report:
        for clock[0] in (4.0, 12.0, 15.0):
            report.advance(200)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "embedding: 67 % (400/600 texts), 12 s, about 6 s left\n"
