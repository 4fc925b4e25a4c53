"""`nmt improve`."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt.cli import options
from nmt.errors import ConfigError
from nmt.suffixes import pairs_format

if TYPE_CHECKING:  # imported when the command runs
    from nmt.improving.drafting import Draft


def improve(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="The configuration to improve.")] = None,
    mono_tgt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Text in the target language alone, a sentence a line.")
    ] = None,
    mono_src: Annotated[Path | None, typer.Option(metavar="FILE", help="Text in the source language alone.")] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="STEP,STEP,...", help="Only these steps. Default: all that apply.")
    ] = None,
    folds: Annotated[int, typer.Option(min=2, metavar="N", help="Parts of the text, for diversification.")] = 2,
    teachers: Annotated[int, typer.Option(min=2, metavar="N", help="Models in the ensemble that teaches.")] = 3,
    min_gain: Annotated[float, typer.Option(help="The least gain in BLEU on validation for which a step stays.")] = 0.3,
    sample: Annotated[bool, typer.Option("--sample", help="Back-translations drawn at random, not searched.")] = False,
    overrides: options.SetOption = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The working folder. Default: CONFIG.improve.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the plan as a Makefile; write nothing.")] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Print how long each step will take here; train nothing.")
    ] = False,
    make: Annotated[
        str | None, typer.Option(metavar="FILE", help="Make one file of the plan, in the current folder, and end.")
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Train a better model from the same data, step by step, and keep what helps.

    Each step is compared with the best model so far on the validation set. A plan that was stopped resumes.
    """
    from nmt.config.file import load_config
    from nmt.improving.drafting import Wish
    from nmt.improving.manifest import add_manifest
    from nmt.improving.steps import draft_of

    if config is None:
        raise ConfigError("name the configuration to improve: --config FILE")
    if make is not None and (plan or estimate or folder):
        raise ConfigError("--make FILE makes one file in the current folder: leave out --plan, --estimate and --folder")
    if plan and estimate:
        raise ConfigError("--plan and --estimate print different things; give one of the two")
    check_monolingual(mono_tgt, mono_src)
    where = Path() if make is not None else folder or Path(f"{config.stem}.improve")
    wish = Wish(
        seen_from(where, config), tuple(overrides or ()), mono_tgt and seen_from(where, mono_tgt),
        mono_src and seen_from(where, mono_src),
        None if steps is None else tuple(steps.split(",")), folds, teachers, min_gain, sample,
    )  # fmt: skip
    draft = draft_of(wish, load_config(config, overrides or ()))
    add_manifest(draft)
    if plan:
        print(draft.plan().to_makefile(), end="")
    elif make is not None:
        make_file(draft, make)
    elif estimate:
        _estimate(draft, where)
    else:
        _carry_out(draft, where, as_json)


def check_monolingual(*texts: Path | None) -> None:
    """`ConfigError` for a text that would be missed hours later."""
    for path in texts:
        if path is not None and not path.is_file():
            raise ConfigError(f"{path}: no such file; name a text, a sentence a line")
        if path is not None and pairs_format(path) is not None:
            raise ConfigError(f"{path}: holds pairs, which belong to data.train; name a text, a sentence a line")


def seen_from(folder: Path, path: Path) -> Path:
    """A path of the command line as it is in a folder, where all commands of the plan run."""
    return Path(os.path.relpath(path, folder))


def make_file(draft: "Draft", file: str) -> None:
    """Make a file that is no other command's."""
    from nmt.atomic import write_text

    if file not in draft.makers:
        raise ConfigError(
            f"--make {file}: these options plan no such file that nmt {draft.request.command} makes itself"
        )
    write_text(Path(file), draft.makers[file]())


def _estimate(draft: "Draft", folder: Path) -> None:
    from nmt.improving.estimating import estimate, table
    from nmt.insight.text_table import aligned

    print(aligned(table(estimate(draft, folder, _say)), left=(0, 1)))


def _carry_out(draft: "Draft", folder: Path, as_json: bool) -> None:
    from nmt.improving import summary
    from nmt.improving.deciding import read_decision
    from nmt.insight.text_table import aligned

    for line in draft.left_out:
        _say(f"left out: {line}")
    carry_out_here(draft, folder)
    found = summary.results(draft.plan(), draft.decided, folder)
    best = folder / "runs" / read_decision(draft.decided[-1], folder).best
    if as_json:
        print(json.dumps(summary.as_json(found, best)))
        return
    print(aligned(summary.table(found), left=(0, 4)))
    print(f"the best run: {best}")
    print(f"  nmt translate --model {best}")
    for name in draft.config.data.test:
        files = draft.held_out_corpora()[f"test.{name}"]
        src, tgt = (os.path.normpath(folder / "configs" / files[side]) for side in ("src", "tgt"))
        print(f"  nmt eval --model {best} --src {src} --ref {tgt}")


def carry_out_here(draft: "Draft", folder: Path) -> None:
    """Begin or resume a plan in its working folder, and make all of its files."""
    from nmt.improving.beginning import begin
    from nmt.improving.running import carry_out

    begin(draft, folder)
    carry_out(draft.plan(), draft.makers, folder, _say)


def _say(line: str) -> None:
    print(line, file=sys.stderr)
