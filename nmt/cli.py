"""The command line: parse, call one function, print, exit code.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 a bug of ours
(with its traceback), 2 the user's mistake, 3 the run could not go on, 130 and 143 interrupted or terminated.
Each command imports what it needs, so that `--help` and small commands do not load torch.
"""

import errno
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

import nmt
from nmt.config import MOST_BEAMS, MOST_LENGTH_PENALTY, BleuTokenizer, Config, DecodingConfig
from nmt.config_file import load_config
from nmt.distributed import is_launched, joined
from nmt.errors import ConfigError, DataError, NmtError, TrainingError, is_out_of_memory, missing_package
from nmt.languages import language_suffix
from nmt.printing import print_average, print_evaluation, print_export, print_vocabulary
from nmt.processes import python_command
from nmt.runs import RunFolder, open_run, open_runs, run_named
from nmt.waiting import bound_waiting

# What is wrong with the machine, not with what was asked.
_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


class ReaderGoneError(Exception):
    """Nobody reads standard output any more: typer, which sees to broken pipes too, would call it an error."""


class _Commands(TyperGroup):
    """All commands."""

    def invoke(self, ctx: Any) -> Any:
        """Run one, to the last byte of its output."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderGoneError from None
        return result


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train a translator from two text files, translate with it, and score it.",
)

ConfigArgument = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="The run's configuration, YAML.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The same, as an option.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Replace one value; may be repeated."),
]
NameOption = Annotated[str | None, typer.Option(help="The run's name; default: the file's name.")]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="RUN", help="A run's folder or name, or several; default: the newest run."),
]
RunOption = Annotated[
    str | None, typer.Option("--model", metavar="RUN", help="A run's folder or name; default: the newest run.")
]
PrecisionOption = Annotated[
    Literal["fp32", "bf16", "fp16"] | None, typer.Option(help="PyTorch's; fp16 is for GPUs. Default: the run's.")
]
DeviceOption = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps. Default: auto.")]
EngineOption = Annotated[
    str | None,
    typer.Option(help="auto, torch or ctranslate2; auto, the default, takes a fresh export for CTranslate2 on a CPU."),
]
BeamOption = Annotated[
    int | None, typer.Option(min=1, max=MOST_BEAMS, help="Beam size; 1 is greedy. Default: the run's.")
]
PenaltyOption = Annotated[
    float | None, typer.Option(min=0, max=MOST_LENGTH_PENALTY, help="Length penalty. Default: the run's.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")]


exports = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Write a run's model for another engine.")
app.add_typer(exports, name="export")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"nmt {nmt.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What stands before a command."""


@app.command()
def train(
    file: ConfigArgument = None,
    config: ConfigOption = None,
    overrides: SetOption = None,
    name: NameOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run; it must exist.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; an existing run is set aside.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Try all of it, and stop before the first step.")] = False,
) -> None:
    """Train a model, or go on with a training that was stopped."""
    with joined() as ranks:
        if resume and fresh:
            raise ConfigError("--resume and --fresh exclude each other")
        if dry_run and fresh:
            raise ConfigError("--dry-run changes nothing, and --fresh sets a run aside; try it with another --name")
        settings, run = _configured_run(file, config, overrides, name)
        from nmt.training.launching import launch
        from nmt.training.train import num_processes
        from nmt.training.train import train as run_training

        if is_launched():
            if settings.training.processes != "auto":
                raise ConfigError("training.processes: torchrun says how many there are; leave it out")
        elif (count := num_processes(settings, run, fresh)) > 1:
            own = ["--set", "training.processes=auto"]  # each is one of them, and starts no others
            command = python_command("from nmt.cli import main; main()", *sys.argv[1:], *own)
            raise typer.Exit(launch(count, command, settings.training.threads))
        run_training(settings, run, "resume" if resume else "fresh" if fresh else "auto", ranks, dry_run)


@app.command()
def vocab(
    file: ConfigArgument = None,
    config: ConfigOption = None,
    overrides: SetOption = None,
    name: NameOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build the vocabulary of a run, and say how well it covers the validation set."""
    settings, run = _configured_run(file, config, overrides, name)
    from nmt.data.statistics import vocabulary_report

    report = vocabulary_report(settings, run)
    print_vocabulary(settings.tokenizer, run, report, as_json)


@app.command()
def translate(
    text: Annotated[list[str] | None, typer.Argument(help="What to translate; default: standard input.")] = None,
    models: ModelsOption = None,
    input_file: Annotated[Path | None, typer.Option("--input", metavar="FILE", help="Read lines from here.")] = None,
    output_file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write here instead of standard output.")
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--continue", help="Go on with an --output that was broken off, or begin it.")
    ] = False,
    alignments: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write here which words come from which, as 0-0 2-1: source-target."),
    ] = None,
    beam_size: BeamOption = None,
    length_penalty: PenaltyOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = None,
    devices: Annotated[
        str | None, typer.Option(metavar="D,D,...", help="Share the lines among devices: cuda:0,cuda:1.")
    ] = None,
    engine: EngineOption = None,
) -> None:
    """Translate an argument, a file, or standard input line by line. Files whose names end in .gz are compressed.

    With several models, each --model RUN, their probabilities are averaged.
    """
    from nmt.decoding.files import Files, made_from, translate_files

    if text and (input_file or output_file or alignments):
        raise ConfigError("give a text, or files (--input, --output, --alignments), not both")
    if go_on and not (input_file and output_file):
        raise ConfigError("--continue needs --input FILE and --output FILE")
    if devices is not None and device is not None:
        raise ConfigError("--device names one device, --devices several; give one of the two")
    if devices is not None and (text or (not input_file and sys.stdin.isatty())):
        raise ConfigError("--devices shares the lines of a file or a pipe: give --input FILE")
    files = Files(input_file, output_file, alignments)
    if go_on and files.are_finished():
        print(f"nmt: {output_file} is finished: it is there, and no part of it", file=sys.stderr)
        return
    runs = open_runs(models)
    decoding = _search(runs[0].config().decoding, beam_size, length_penalty, precision)
    paths = [str(run.path) for run in runs]
    aligned, engine = alignments is not None, engine or "auto"
    if devices is not None:
        from nmt.decoding.devices import ParallelTranslator

        with ParallelTranslator(paths, devices.split(","), decoding, aligned, engine, precision) as workers:
            totals = translate_files(workers, files, made_from(files, runs, decoding, workers.engine_name), go_on)
    else:
        translator = nmt.load(
            paths,
            device=device or "auto",
            decoding=decoding,
            engine=engine,
            alignments=aligned,
            precision=precision,
            own_process=True,
        )
        if text:
            sys.stdout.buffer.write(f"{translator.translate([_utf8(' '.join(text))])[0]}\n".encode())
            return
        if not (input_file or output_file or alignments) and sys.stdin.isatty():
            _converse(translator)
            return
        totals = translate_files(translator, files, made_from(files, runs, decoding, translator.engine_name), go_on)
    if input_file:
        print(totals, file=sys.stderr)


@app.command(name="eval")
def evaluate(
    models: ModelsOption = None,
    src: Annotated[Path | None, typer.Option(metavar="FILE", help="Sources; default: the run's test sets.")] = None,
    ref: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="References; may be repeated.")] = None,
    hyp: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Score these translations instead of making them.")
    ] = None,
    tgt_lang: Annotated[str | None, typer.Option(help="The references' language, where it is not known.")] = None,
    bleu_tokenizer: Annotated[
        BleuTokenizer | None, typer.Option(help="Of BLEU; auto follows the language. Default: the run's, or auto.")
    ] = None,
    beam_size: BeamOption = None,
    length_penalty: PenaltyOption = None,
    precision: PrecisionOption = None,
    device: DeviceOption = None,
    engine: EngineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score a model on its test sets or on other files, or score translations that exist.

    With several models, each --model RUN, their probabilities are averaged; the test sets are the first one's.
    """
    from nmt.evaluation.evaluate import evaluate_file, evaluate_runs, reference_language
    from nmt.evaluation.metrics import make_metrics

    if hyp is not None:
        if not ref or src or models:
            raise ConfigError("--hyp FILE is scored against --ref FILE, without --src and --model")
        searching = {
            "--beam-size": beam_size,
            "--length-penalty": length_penalty,
            "--precision": precision,
            "--device": device,
            "--engine": engine,
        }
        if given := [option for option, value in searching.items() if value is not None]:
            raise ConfigError(f"--hyp FILE is scored as it is, and nothing is translated: leave out {', '.join(given)}")
        language = reference_language(tgt_lang, language_suffix(ref[0]))
        metrics = make_metrics(("bleu", "chrf", "ter"), language, bleu_tokenizer or "auto")
        print_evaluation(hyp.name, evaluate_file(hyp, ref, metrics), as_json)
        return
    if bool(src) != bool(ref):
        raise ConfigError("--src and --ref go together; with neither, the run's test sets are scored")
    runs = open_runs(models)
    config = runs[0].config()
    if src and ref:
        test_sets = {src.name: (src, ref)}
    else:
        test_sets = {name: (files.src, [files.tgt]) for name, files in config.data.test.items()}
    if not test_sets:
        raise ConfigError(f"{runs[0].config_file}: data.test names no test set; add one, or give --src and --ref")
    language = reference_language(tgt_lang, config.data.tgt_lang)
    metrics = make_metrics(config.evaluation.metrics, language, bleu_tokenizer or config.evaluation.bleu_tokenizer)
    decoding = _search(config.decoding, beam_size, length_penalty, precision)
    for name, evaluation in evaluate_runs(
        runs, test_sets, metrics, decoding, device or "auto", engine or "auto", precision
    ):
        print_evaluation(name, evaluation, as_json)


@app.command()
def average(
    model: RunOption = None,
    last: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="The newest checkpoints. Default: training.keep_checkpoints.")
    ] = None,
    best: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Those whose validations were best, of the ones kept.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The new run's name; default: RUN-average.")] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a run of the mean of a run's checkpoints, and score both on the validation set."""
    from nmt.evaluation.averaged_run import average_run

    print_average(average_run(open_run(model), last, best, name, device or "auto"), as_json)


@exports.command(name="ctranslate2")
def export_ctranslate2(
    model: RunOption = None,
    quantization: Annotated[
        str, typer.Option(metavar="TYPE", help="Of the weights: float32, int8, float16, ...")
    ] = "int8",
    src: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare on these; default: the validation set.")
    ] = None,
    ref: Annotated[Path | None, typer.Option(metavar="FILE", help="And their references.")] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run's model for CTranslate2 into its folder, and prove that it translates there as it does here.

    The export's folder can be copied anywhere, and translates there without PyTorch.
    """
    if bool(src) != bool(ref):
        raise ConfigError("--src and --ref go together; with neither, the run's validation set is translated")
    from nmt.export.ctranslate2 import export_ctranslate2 as export

    print_export(export(open_run(model), quantization, src, ref, device or "auto"), as_json)


def main() -> None:
    """Run the command line; the one place where errors become messages and exit codes."""
    bound_waiting()
    logging.basicConfig(format="nmt: %(message)s", level=logging.WARNING)
    logging.getLogger("nmt").setLevel(logging.INFO)
    if sys.stdin is None or sys.stdout is None:  # the next file that is opened would take its place
        print("nmt: standard input and output must be open; use < /dev/null or > /dev/null", file=sys.stderr)
        sys.exit(ConfigError.exit_code)
    for number in (signal.SIGINT, signal.SIGTERM):  # a training handles them itself while it runs
        signal.signal(number, _end)
    try:
        app()
    except NmtError as error:
        print(f"nmt: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        missing = missing_package(error)
        if missing is None:
            raise
        print(f"nmt: {missing}", file=sys.stderr)
        sys.exit(missing.exit_code)
    except ReaderGoneError:  # `nmt translate ... | head`, and that is all right
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        is_machine = error.errno in _MACHINE
        if error.filename is None and not is_machine:
            raise
        print(f"nmt: {error.filename or 'standard output'}: {error.strerror}", file=sys.stderr)
        sys.exit(TrainingError.exit_code if is_machine else NmtError.exit_code)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print("nmt: out of memory; lower decoding.batch_tokens or --beam-size", file=sys.stderr)
        sys.exit(TrainingError.exit_code)


def _end(number: int, frame: FrameType | None) -> None:
    """End at once, but by way of every `finally`."""
    sys.exit(128 + number)


def _configured_run(
    file: Path | None, option: Path | None, overrides: list[str] | None, name: str | None
) -> tuple[Config, RunFolder]:
    if (file is None) == (option is None):
        raise ConfigError("name one configuration file, for example: nmt train configs/tiny.yaml")
    path = file or option
    assert path is not None
    return load_config(path, overrides or ()), run_named(path.stem if name is None else name)


def _search(
    decoding: DecodingConfig, beam_size: int | None, length_penalty: float | None, precision: str | None
) -> DecodingConfig:
    given = {"beam_size": beam_size, "length_penalty": length_penalty, "precision": precision}
    return decoding.model_copy(update={key: value for key, value in given.items() if value is not None})


def _utf8(text: str) -> str:
    """The text itself; `DataError` if the shell was given bytes that are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError("the text to translate is not UTF-8; convert it") from None
    return text


def _converse(translator: nmt.Translator) -> None:
    """A line typed, a line answered, until end of file."""
    print("one sentence a line; end with Ctrl-D", file=sys.stderr)
    while True:
        try:
            line = input("> ")
        except EOFError:
            print(file=sys.stderr)
            return
        except UnicodeDecodeError:
            print("nmt: not UTF-8", file=sys.stderr)
            continue
        print(translator.translate([line])[0])
