"""Messages on standard error."""

import io
import logging
import re
import sys
from pathlib import Path

import pytest

from nmt.system.console import log, progress_bar, show_messages


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_messages_have_their_kind_and_move_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    log.info("one\x1b[2J, 100%")
    log.warning("two")
    log.error("three\nfour")
    assert capsys.readouterr() == ("", "one\ufffd[2J, 100%\nwarning: two\nnmt: three\nfour\n")


def test_a_bar_is_cleared_for_a_message_and_drawn_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress_bar(total=2) is None  # no terminal
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = progress_bar(total=2)
    assert bar is not None
    log.info("said")
    bar.close()
    before, after = sys.stderr.getvalue().split("said\n")
    drawn, blank = before.split("\r")[-3:-1]
    assert "0/2" in drawn and blank.isspace() and "0/2" in after


def test_a_written_file_is_a_link_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    page = tmp_path / ("long " * 30 + "page.html")
    log.info(f"wrote {page}", extra={"link": page})
    assert capsys.readouterr().err == f"wrote {page}\n"
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", Terminal())
    log.info(f"wrote {page}", extra={"link": page})
    said = sys.stderr.getvalue()
    assert re.fullmatch(
        rf"wrote \x1b]8;id=\d+;{re.escape(page.as_uri())}\x1b\\{re.escape(str(page))}\x1b]8;;\x1b\\\n", said
    )


def test_a_lower_level_and_a_broken_pipe_are_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show_messages(logging.WARNING)
    log.info("progress")
    show_messages()
    with monkeypatch.context() as patch, Path("/dev/full").open("w", buffering=1) as full:
        patch.setattr(sys, "stderr", full)
        log.error("no space")
        patch.setattr(sys, "stderr", None)
        log.error("nowhere")
        with pytest.raises(OSError, match="No space"):
            full.close()
    assert capsys.readouterr() == ("", "")
