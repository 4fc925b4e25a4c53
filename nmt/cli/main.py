"""The command line: all commands, and the one place where errors become messages and exit codes.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 a bug (with its traceback),
2 the user's mistake, 3 the run could not continue, 130 and 143 interrupted or terminated. Each command imports what it
needs inside its function, so that `--help` and small commands load no torch.
"""

import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer import Option
from typer.core import TyperGroup

from nmt.cli.adapt import adapt
from nmt.cli.attention import attention
from nmt.cli.average import average
from nmt.cli.compare import compare
from nmt.cli.config import config
from nmt.cli.data import data
from nmt.cli.distill import distill
from nmt.cli.evaluate import evaluate
from nmt.cli.export import export_argos, export_ctranslate2, export_huggingface, export_onnx
from nmt.cli.filtering import filter_corpora
from nmt.cli.imported import import_model
from nmt.cli.info import info
from nmt.cli.init import init
from nmt.cli.options import PanelCommand, write_panels
from nmt.cli.report import report
from nmt.cli.runs import runs, show
from nmt.cli.score import score
from nmt.cli.train import train
from nmt.cli.translate import translate
from nmt.cli.vocab import vocab
from nmt.errors import ConfigError, NmtError, TrainingError, is_out_of_memory, missing_package
from nmt.system.console import log, show_messages
from nmt.system.openmp import limit_spinning
from nmt.system.processes import bound_kernel_caches
from nmt.version import __version__

# System errors, which are not the user's mistake (exit code 3, no traceback).
_MACHINE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_UsageError: Any = typer.BadParameter.__base__  # typer exports no other name for it


class ReaderGoneError(Exception):
    """The end of the reader of standard output; typer would report a broken pipe as an error."""


class _Commands(TyperGroup):
    """The commands in groups: the panel that each is registered with is its heading in the help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands, each with the first sentence of its help."""
        names = self.list_commands(ctx)
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in names:
            command: Any = self.get_command(ctx, name)
            text = command.get_short_help_str(1_000)  # the formatter wraps it
            row = name.ljust(max(map(len, names))), text  # in columns that all panels share
            panels.setdefault(command.rich_help_panel or "Commands", []).append(row)
        write_panels(formatter, panels)

    def invoke(self, ctx: Any) -> Any:
        """Run a command and flush its output; the error for an unknown option says how a text may begin with "-"."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderGoneError from None
        except _UsageError as error:
            is_text = hasattr(error, "possibilities") and (not error.possibilities or " " in error.option_name)
            if is_text and any(parameter.param_type_name == "argument" for parameter in error.ctx.command.params):
                error.message += (
                    f'; put -- before a text or name that begins with "-": nmt {error.ctx.info_name} -- ...'
                )
            raise
        return result


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train a translator from two text files, translate with it, and score it.",
)
exports = typer.Typer(
    cls=_Commands, no_args_is_help=True, rich_markup_mode=None, help="Export a run's model to another program's format."
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"nmt {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options before the command."""
    bound_kernel_caches("64" if context.invoked_subcommand in ("train", "adapt", "distill") else "128")


# For each panel of the help, by name: the command, and the arguments of two examples.
_COMMANDS: dict[str, dict[str, tuple[Callable[..., None], str, str]]] = {
    "Set up": {
        "init": (init, "--src train.en --tgt train.de", "memory.tmx --test test.tsv"),
        "config": (config, "> captions.yaml", "training.learning_rate"),
        "import": (import_model, "opus-mt-en-de", "opus-mt-en-gmw --tgt-tag deu"),
        "info": (info, "", "--json"),
        "data": (data, "train.en train.de --against test.en --against test.de", "memory.tmx --write cleaned"),
    },
    "Train": {
        "train": (train, "captions.yaml", "captions.yaml --set training.max_epochs=50 --name captions-50"),
        "adapt": (adapt, "--model captions --data domain.tmx", "--model opus-en-de --data domain.tmx --keep news.tsv"),
        "filter": (
            filter_corpora,
            "a.tsv --forward en-de --keep 0.8 --write b",
            "a.tsv --backward de-en --round-trip --keep 0.8 --write b",
        ),
        "distill": (
            distill,
            "--teacher captions --config student.yaml",
            "--teacher a --teacher b --config student.yaml",
        ),
        "vocab": (vocab, "captions.yaml", "captions.yaml --set tokenizer.vocab_size=4000"),
        "show": (show, "", "--model captions --watch"),
        "runs": (runs, "", "--sort validation"),
        "average": (average, "--last 5", "--model captions --last 3 --name captions-mean"),
    },
    "Translate": {
        "translate": (translate, '"A man is sleeping on a couch."', "--input new.en --output new.de --continue")
    },
    "Evaluate": {
        "eval": (evaluate, "", "--hyp translated.de --ref test.de --json"),
        "score": (score, "--src test.en --tgt test.de", "memory.tmx --tokens"),
        "compare": (compare, "baseline deeper --output compare.html", "--hyp ours.de --hyp theirs.de --ref test.de"),
    },
    "Look inside": {
        "attention": (attention, '"A man."', '"A man." --output page.html --open'),
        "report": (report, "--with-data", "--model captions --license mit --dataset bentrevett/multi30k"),
    },
    "Ship": {
        "export ctranslate2": (export_ctranslate2, "", "--model captions --quantization float32"),
        "export argos": (export_argos, "", "--model captions --src new.en --ref new.de"),
        "export huggingface": (export_huggingface, "", "--model captions --license cc-by-4.0"),
        "export onnx": (export_onnx, "", "--model captions --src new.en --ref new.de"),
    },
}
for _panel, _commands in _COMMANDS.items():
    for _name, (_command, *_examples) in _commands.items():
        # Below the options in the help; without the mark \b, they would be one paragraph.
        _lines = ["\b", "Examples:", *(f"  nmt {_name} {example}".rstrip() for example in _examples)]
        _group = exports if _panel == "Ship" else app
        _group.command(_name.split()[-1], cls=PanelCommand, rich_help_panel=_panel, epilog="\n".join(_lines))(_command)
app.add_typer(exports, name="export", rich_help_panel="Ship")


def main() -> None:
    """Run the command line; the one place where errors become messages and exit codes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal shows what it can; files and pipes always get UTF-8
            if stream.isatty():
                stream.reconfigure(errors="replace")
            elif stream.encoding.lower() != "utf-8":
                stream.reconfigure(encoding="utf-8", errors=stream.errors)
    limit_spinning()
    show_messages()
    if sys.stdin is None or sys.stdout is None:  # the next opened file would get its descriptor
        _fail("standard input and output must be open; use < /dev/null or > /dev/null", ConfigError.exit_code)
    for number in (signal.SIGINT, signal.SIGTERM):  # a training handles them itself while it runs
        signal.signal(number, _end)
    try:
        app()
    except NmtError as error:
        _fail(error, error.exit_code)
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is None:
            raise
        _fail(missing, missing.exit_code)
    except ReaderGoneError:  # `nmt translate ... | head` is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        is_machine_error = error.errno in _MACHINE_ERRORS
        if error.filename is None and not is_machine_error:
            raise
        code = TrainingError.exit_code if is_machine_error else NmtError.exit_code
        _fail(f"{error.filename or 'standard output'}: {error.strerror}", code)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _fail("out of memory; lower decoding.batch_tokens or --beam-size", TrainingError.exit_code)


def _fail(message: object, code: int) -> NoReturn:
    """Log a message and exit."""
    log.error(message)
    sys.exit(code)


def _end(number: int, frame: FrameType | None) -> None:
    """Handle a signal: exit at once, running every `finally`."""
    sys.exit(128 + number)
