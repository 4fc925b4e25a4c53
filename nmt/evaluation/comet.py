"""COMET by the user's own `comet-score` (`pip install unbabel-comet`, in an environment of its own).

Its package pins old versions of numpy and others that cannot be installed beside ours.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nmt.errors import ConfigError, MissingExtraError, TrainingError

COMMAND = "comet-score"
_SCORE = re.compile(r"score:\s*(-?\d+(?:\.\d+)?)")


def check_comet() -> None:
    """`MissingExtraError` if there is no `comet-score` on the path."""
    if shutil.which(COMMAND) is None:
        raise MissingExtraError(
            f"--comet: there is no {COMMAND} on the path; install unbabel-comet in an environment of its own, and put "
            f"its {COMMAND} on the path"
        )


def comet_score(
    sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[Sequence[str]], model: str | None = None
) -> float:
    """The system score that `comet-score` prints, with its default model or another.

    Raises `ConfigError` for several references, of which COMET reads one, `TrainingError` if the command fails.
    """
    if len(references) != 1:
        raise ConfigError(f"--comet: COMET reads one reference, and there are {len(references)}; give one --ref")
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("src", "hyp", "ref")]
        for file, lines in zip(files, (sources, hypotheses, references[0]), strict=True):
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        src, hyp, ref = map(str, files)
        command = [shutil.which(COMMAND) or COMMAND, "-s", src, "-t", hyp, "-r", ref, "--quiet", "--only_system"]
        done = subprocess.run(
            [*command, *(["--model", model] if model else [])], capture_output=True, text=True, errors="replace"
        )
    found = _SCORE.findall(done.stdout)
    if done.returncode or not found:
        last = ([line for line in (done.stderr or done.stdout).splitlines() if line.strip()] or ["no output"])[-1]
        raise TrainingError(f"--comet: {COMMAND} failed with exit code {done.returncode}: {last.strip()}")
    return float(found[-1])
