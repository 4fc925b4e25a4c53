#!/usr/bin/env python3
"""Record the terminal session of docs/evaluating.md: real commands, run now, drawn as docs/images/scoring.svg.

usage: scripts/record_session.py [--text FILE]

Runs in an empty folder with the Python that runs this script, which needs nmt and rich (typer brings it). It takes as
long as its training. Of a long output, the lines in the middle are left out, and their number is shown. --text keeps
the whole output.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

REPOSITORY = Path(__file__).resolve().parent.parent
COLUMNS = 100
# Commands, and how many lines of their output are shown from the beginning and from the end. A line that begins with a
# space is run and not shown.
COMMANDS = [
    (
        " nmt train configs/tiny.yaml &> log\n"
        " head -n 3 configs/../data/tiny/test.en > captions.en\n"
        " head -n 3 configs/../data/tiny/test.zh > captions.zh\n"
        "nmt score --src captions.en --tgt captions.zh",
        9,
        9,
    ),
    ("nmt score --src captions.en --tgt captions.zh --tokens | expand -t 3", 9, 9),
]
PICTURE = REPOSITORY / "docs" / "images" / "scoring.svg"
# Light text on a dark window, which reads the same on a light and on a dark page.
THEME = TerminalTheme(
    (24, 27, 33),
    (222, 226, 232),
    [(24, 27, 33), (240, 113, 120), (152, 215, 126), (255, 203, 107), (130, 170, 255), (199, 146, 234), (137, 221, 255),
     (222, 226, 232)],
)  # fmt: skip


def run(command: str, folder: Path) -> list[str]:
    """Return the lines that a command writes to standard output and standard error."""
    script = f'nmt() {{ "$PYTHON" -m nmt "$@"; }}; {command}'
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.stdout.splitlines()


def shown(lines: list[str], first: int, last: int) -> list[Text]:
    """Return the lines without those in the middle."""
    texts = [Text(line) for line in lines]
    if len(lines) <= first + last + 1:
        return texts
    left_out = Text(f"[{len(lines) - first - last} lines]", style="cyan")
    return [*texts[:first], left_out, *texts[-last:]]


def picture(session: list[tuple[str, list[Text]]]) -> str:
    """Return the session as SVG, with the reader's own monospaced font."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115, PTH123
    for command, lines in session:
        for line in command.splitlines():
            if not line.startswith(" "):
                console.print(Text.assemble(("$ ", "bold green"), (line, "bold")))
        for text in lines:
            console.print(text)
    console.print()  # the picture's lower edge cuts into the last line
    svg = console.export_svg(title="nmt", theme=THEME, unique_id=PICTURE.stem)
    # rich gives each character one column, also those that are two wide
    svg = re.sub(
        r'textLength="([\d.]+)"([^>]*)>([^<]*[^\x00-\x7f\xa0][^<]*)<',
        lambda match: f'textLength="{float(match[1]) * cell_len(match[3]) / len(match[3]):g}"{match[2]}>{match[3]}<',
        svg,
    )
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono").rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Record a terminal session that the documentation shows.")
    parser.add_argument("--text", type=Path, metavar="FILE", help="write the whole output here, too")
    arguments = parser.parse_args()
    text: Path | None = arguments.text
    session = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "configs").symlink_to(REPOSITORY / "configs")
        for command, first, last in COMMANDS:
            lines = run(command, folder)
            if any(str(REPOSITORY) in line or name in line for line in lines):
                sys.exit(f"{command}: the output names a folder of this machine")
            if text:
                with text.open("a", encoding="utf-8") as file:
                    file.writelines(f"{line}\n" for line in [f"$ {command}", *lines])
            session.append((command, shown(lines, first, last)))
    PICTURE.write_text(picture(session), encoding="utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
