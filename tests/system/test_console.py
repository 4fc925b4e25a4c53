"""Messages on standard error, progress bars and tables, in pipes and on terminals."""

import contextlib
import io
import logging
import os
import re
import sys
import termios
from pathlib import Path

import pytest
from conftest import Screen
from rich.cells import cell_len
from rich.text import Text

from nmt.system.console import RESULT, aligned, log, progress_bar, show, show_fields, show_messages, styled

LABELLED = "model       " + ", ".join(f"layer {number} {number * 1_111:,}" for number in range(1, 15))
PROSE = "each word of it is whole, " * 8
PATH = "/a/path" * 20


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
    log.info("said", extra=RESULT)
    bar.close()
    before, after = sys.stderr.getvalue().split("said\n")
    drawn, blank = before.split("\r")[-3:-1]
    assert "0/2" in drawn and blank.isspace() and "0/2" in after


def test_a_written_file_is_a_link_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    page = tmp_path / ("long" * 30 + "page.html")
    log.info(f"wrote {page}", extra={"link": page})
    assert capsys.readouterr().err == f"wrote {page}\n"
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", Terminal())
    log.info(f"wrote {page}", extra={"link": page})
    said = re.sub(r"\x1b\[\d*m", "", sys.stderr.getvalue())
    assert re.fullmatch(
        rf"wrote\s+\x1b]8;id=\d+;{re.escape(page.as_uri())}\x1b\\{re.escape(str(page))}\x1b]8;;\x1b\\\n", said
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


def test_lines_fit_a_terminal_and_break_between_words(screen: Screen, capsys: pytest.CaptureFixture[str]) -> None:
    show(LABELLED, styled(f"  {PROSE}", "dim"), "short")
    lines = screen.lines(capsys.readouterr().out)
    assert " ".join(lines).split() == f"{LABELLED} {PROSE} short".split()
    start, last = next(index for index, line in enumerate(lines) if line.startswith("  each")), lines.pop()
    assert 1 < start < len(lines) - 1 and last == "short"
    assert all(re.match(r" {12}\S", line) for line in lines[1:start])  # below what follows the label
    assert all(re.match(r" {4}\S", line) for line in lines[start + 1 :])

    log.warning(PROSE)
    written = capsys.readouterr().err
    first, *others = screen.lines(written)
    assert first.startswith("warning: each ") and all(re.match(r"  \S", line) for line in others)
    assert ("\x1b[1;33mwarning: " in written) == screen.has_color
    show("汉" * 200)
    assert "".join(line.strip() for line in screen.lines(capsys.readouterr().out)) == "汉" * 200
    show(f"see {PATH} for more")
    assert re.sub(r"\s+", " ", capsys.readouterr().out) == f"see {PATH} for more "  # whole, to be copied


def test_files_and_pipes_get_plain_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["name", "n"], ["汉字", "1,234"]]
    show(styled(LABELLED, "bold red"), PROSE, aligned(rows, has_head=True))
    log.info(PROSE, extra={"style": "bold"})
    assert capsys.readouterr() == (f"{LABELLED}\n{PROSE}\nname      n\n汉字  1,234\n", f"{PROSE}\n")


def test_a_table_narrows_its_texts_and_no_number(screen: Screen, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[list[str | Text]] = [
        ["name", "text", "score"],
        ["a", PROSE, "1,234.56"],
        ["译文", "句" * 99, styled("7.00", "bold green")],
    ]
    show(aligned(rows, left=(0, 1), has_head=True))
    out = capsys.readouterr().out
    head, *lines = screen.lines(out)
    assert head.startswith("name  text ") and head.endswith(" score") and "\x1b[1mname" in out
    assert (
        " ".join(line[6:].removesuffix("1,234.56") for line in lines[:-1]).split()[: len(PROSE.split())]
        == PROSE.split()
    )
    ends = [line for line in lines if line.endswith(("1,234.56", "7.00"))]
    assert [cell_len(line) for line in ends] == [cell_len(head)] * 2
    assert ends[1].startswith("译文  句")
    assert aligned([["name", *["1,234,567"] * 20]]).plain.count("1,234,567") == 20


@pytest.mark.parametrize("total", [50_000, None])
def test_a_progress_bar_keeps_its_room_and_the_most_important_fields(
    screen: Screen, monkeypatch: pytest.MonkeyPatch, total: int | None
) -> None:
    reader, writer = os.openpty()
    termios.tcsetwinsize(writer, (40, screen.width))
    monkeypatch.setattr(sys, "stderr", os.fdopen(writer, "w"))
    fields = ["loss 3.214", "tokens/s 12,345", "lr 3.00e-04", "another field"]
    shape = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{remaining} left{postfix}]"
    bar = progress_bar(total=total, initial=9_000, unit=" steps", **({"bar_format": shape} if total else {}))
    assert bar is not None
    show_fields(bar, fields)
    bar.close()
    sys.stderr.close()
    written = b""
    with contextlib.suppress(OSError):  # its end
        while part := os.read(reader, 10_000):
            written += part
    os.close(reader)
    (line,) = screen.lines(written.decode().rstrip().split("\r")[-1])
    beside = ", ".join(fields if screen.width == 120 else fields[: 2 if total else 3])
    if total:
        assert re.fullmatch(rf" 18%\|.{{20,}}\| 9000/50000 \[\? left, {beside}\]", line)
    else:
        assert re.fullmatch(rf"9000 steps \[00:00, \? steps/s, {beside}\]", line)
