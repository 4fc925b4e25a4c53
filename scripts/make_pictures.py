#!/usr/bin/env python3
"""Make docs/images/*.png: pages of nmt in a browser without a network, and a picture of attention.

    .venv/bin/python scripts/make_pictures.py --model runs/multi30k_en_de [--other RUN]

Needs Debian's chromium and chromium-driver.
"""

import argparse
import dataclasses
import io
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

REPOSITORY = Path(__file__).resolve().parent.parent
if TYPE_CHECKING:
    from browser import Browser

SENTENCE = "A man in a blue shirt is standing on a ladder cleaning a window."
CHOSEN = """
    document.getElementById("attention").scrollIntoView();
    document.querySelectorAll("#heads button")[11].click();
    document.querySelectorAll("#lines .lines-side:last-child button")[6].click();
    document.activeElement.blur();"""
AT_STEP = """
    const step = document.getElementById("step");
    step.value = 11;
    step.dispatchEvent(new Event("input"));
    document.getElementById("choice-title").scrollIntoView();"""

TO_TRANSLATIONS = """
    document.querySelector(".example details").open = true;
    document.getElementById("translations").scrollIntoView();"""


@dataclasses.dataclass(frozen=True)
class Picture:
    """A window of a page that a command writes."""

    name: str
    command: tuple[str, ...]
    """Arguments of nmt, without the run and --output; `report` always writes into the run."""
    script: str = ""
    """JavaScript that runs in the page first."""
    width: int = 1280
    height: int = 1100
    dark: bool = False


PICTURES = (
    Picture("attention", ("attention", SENTENCE), height=1240),
    Picture("attention-search", ("attention", SENTENCE), AT_STEP, height=1300),
    Picture("attention-heads", ("attention", SENTENCE), CHOSEN, height=1540),
    Picture("attention-phone", ("attention", SENTENCE), width=390, height=1180, dark=True),
    Picture("compare", ("compare",), height=1330),
    Picture("report", ("report", "--with-data"), height=1480),
    Picture("report-phone", ("report", "--with-data"), TO_TRANSLATIONS, width=390, height=1180, dark=True),
)


def take(browser: "Browser", picture: Picture, page: Path, folder: Path) -> Path:
    """Open the page, and save the window as a PNG of 256 colours."""
    browser.open_page(page, picture.width, picture.dark, picture.height)
    browser.wait("document.readyState === 'complete'")
    browser.wait("!document.getElementById('attention') || document.documentElement.dataset.ready")
    browser.run(picture.script)
    browser.check_page(page)
    path = folder / f"{picture.name}.png"
    image = Image.open(io.BytesIO(browser.screenshot())).convert("RGB")
    # Several rounds of k-means keep both the rare colours and the exact shade of the background.
    image.quantize(256, kmeans=5, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the run to show")
    parser.add_argument("--other", help="the run to compare it with; without one, there is no picture of nmt compare")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "docs/images", help="a folder")
    arguments = parser.parse_args()
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from browser import started_browser

    cross = ["attention", SENTENCE, "--model", arguments.model, "--layer", "3"]
    cross += ["--output", str(arguments.output / "attention_cross.png")]
    subprocess.run([sys.executable, "-m", "nmt", *cross], check=True)
    with tempfile.TemporaryDirectory() as folder, started_browser() as browser:
        for number, command in enumerate(dict.fromkeys(picture.command for picture in PICTURES)):
            page = Path(folder, f"{number}.html")
            if command == ("compare",) and not arguments.other:
                continue
            runs = [arguments.model, arguments.other] if command == ("compare",) else ["--model", arguments.model]
            made = [sys.executable, "-m", "nmt", *command, *runs]
            if command[0] == "report":
                done = subprocess.run(made, check=True, stdout=subprocess.PIPE, text=True)
                page = Path(done.stdout.strip())
            else:
                subprocess.run([*made, "--output", str(page)], check=True, stdout=subprocess.DEVNULL)
            for picture in PICTURES:
                if picture.command == command:
                    path = take(browser, picture, page, arguments.output)
                    print(f"{path}  {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
