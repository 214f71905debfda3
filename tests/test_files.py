"""Files are replaced whole or not at all; progress in a file is plain lines, far apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from inframind_gym import progress
from inframind_gym.errors import InfraMindError
from inframind_gym.files import replace_text


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    replace_text(path, "one")
    replace_text(path, "two")
    assert path.read_text() == "two"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    replace_text(path, "one")

    def full_disk(self: Path, data: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(InfraMindError, match=r"a\.json: cannot be written: No space left"):
        replace_text(path, "two")
    monkeypatch.undo()
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_plain_file_stays_what_it_is(tmp_path: Path) -> None:
    replace_text(Path("/dev/null"), "nothing")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(InfraMindError, match="cannot be written"):
        replace_text(tmp_path, "a folder")
    assert tmp_path.is_dir()


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
