"""`nmt attention`."""

import json
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from nmt.cli import options
from nmt.errors import ConfigError
from nmt.runs.folder import open_run
from nmt.system.console import log, show
from nmt.system.files import write_text

PICTURES = (".png", ".svg")


def attention(
    text: Annotated[list[str], Argument(metavar="TEXT", help="Source text, or the path of an image.")],
    output: Annotated[
        Path | None, Option(metavar="FILE", help="File to write: .html, .png, .svg or .json. Default: print a summary.")
    ] = None,
    tgt: Annotated[str | None, Option(metavar="TEXT", help="Translation to explain. Default: the model's own.")] = None,
    model: options.RunOption = None,
    kind: Annotated[
        Literal["encoder", "decoder", "cross"] | None, Option(help="Attention to draw. Default: cross.")
    ] = None,
    layer: Annotated[int | None, Option(min=1, help="Layer to draw, from 1. Default: all.")] = None,
    head: Annotated[int | None, Option(min=1, help="Head to draw, from 1. Default: all, and their mean.")] = None,
    is_opened: options.OpenOption = False,
    device: options.DeviceOption = None,
) -> None:
    """Show a model's attention, how it chose its translation, and the alternatives.

    Without --output, a summary is printed: the source words that each word depends on, and what the least certain words
    could have been. A page (.html) and .json hold all of it; a picture (.png, .svg) shows attention alone.
    """
    options.check_output(output, ".html", ".png", ".svg", ".json", is_opened=is_opened)
    suffix = "" if output is None else output.suffix.lower()
    source, given_tgt = options.utf8(" ".join(text)), None if tgt is None else options.utf8(tgt)
    if suffix not in PICTURES:
        given = {"--kind": kind, "--layer": layer, "--head": head}
        if chosen := [option for option, value in given.items() if value is not None]:
            raise ConfigError(f"only a picture (--output FILE.png) shows chosen heads: leave out {', '.join(chosen)}")
    run = open_run(model)
    from nmt.insight.attention_output import draw, summary, write_page
    from nmt.insight.explanation import explain, explain_attention
    from nmt.system.devices import configure_process

    configure_process()
    if output is not None and suffix in PICTURES:
        maps = explain_attention(run, source, given_tgt, device or "auto")
        draw(maps, output, kind or "cross", layer, head, run.name)
        options.show_written(output, is_opened)
        return
    explanation = explain(run, source, given_tgt, device or "auto")
    if output is None:
        show(*summary(explanation))
        log.info("--output page.html writes all of it as a page: every head, the search, other translations")
        return
    if suffix == ".html":
        write_page(explanation, output)
    else:
        write_text(output, json.dumps(explanation.to_json(), ensure_ascii=False, allow_nan=False) + "\n")
    options.show_written(output, is_opened)
