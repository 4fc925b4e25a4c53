"""The options that several commands share."""

import dataclasses
import functools
import inspect
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from nmt.cli.completion import complete_run, complete_setting
from nmt.config.evaluation import BleuTokenizer, EvaluationConfig, Metric
from nmt.config.training import Config
from nmt.errors import ConfigError, DataError
from nmt.inheritance import load_run_config
from nmt.runs import RunFolder, run_named

if TYPE_CHECKING:  # imported when the command runs
    from sacrebleu.metrics.base import Metric as SacreMetric

ConfigArgument = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="The run's configuration, YAML. Default: the only one here.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Replace one value; may be repeated.",
        autocompletion=complete_setting,
    ),
]
NameOption = Annotated[str | None, typer.Option(help="The run's name; default: the file's name.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Start over; an existing run is set aside.")]
CorporaArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="CORPUS",
        help="Files with both sides (.tsv .csv .jsonl .tmx .zip), two texts, or folders of such files.",
    ),
]
SrcLangOption = Annotated[
    str | None, typer.Option(metavar="CODE", help="The source language; default: what the files say.")
]
TgtLangOption = Annotated[
    str | None, typer.Option(metavar="CODE", help="The target language; default: what the files say.")
]
run_option = functools.partial(typer.Option, metavar="RUN", autocompletion=complete_run)
ModelsOption = Annotated[
    list[str] | None, run_option("--model", help="A run's folder or name; may be repeated. Default: the newest run.")
]
RunOption = Annotated[str | None, run_option("--model", help="A run's folder or name; default: the newest run.")]
PrecisionOption = Annotated[
    Literal["fp32", "bf16", "fp16"] | None, typer.Option(help="PyTorch's; fp16 needs a GPU. Default: the run's.")
]
DeviceOption = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps. Default: auto.")]
EngineOption = Annotated[
    str | None, typer.Option(help="auto, torch or ctranslate2. Default: auto, a fresh export on a CPU, else PyTorch.")
]
TestOption = Annotated[
    Path | None,
    typer.Option(
        "--src",
        metavar="FILE",
        help="Sources, or alone a file with both sides (.tsv .csv .jsonl .tmx .zip). Default: the run's test sets.",
    ),
]
ReferencesOption = Annotated[
    list[Path] | None, typer.Option("--ref", metavar="FILE", help="References; may be repeated.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for a program.")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """The options of scoring; None or empty: as the run's configuration says, or by default."""

    tgt_lang: Annotated[str | None, typer.Option(help="The references' language, if it is not known.")] = None
    bleu_tokenizer: Annotated[
        BleuTokenizer | None, typer.Option(help="BLEU's tokenizer; auto: by language. Default: the run's, or auto.")
    ] = None
    metric: Annotated[
        list[str] | None, typer.Option(help="bleu, chrf, chrf++ or ter; may be repeated. Default: the run's.")
    ] = None
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore the case of letters in BLEU and chrF.")] = False

    def __post_init__(self) -> None:
        if unknown := [name for name in self.metric or () if name not in get_args(Metric)]:
            raise ConfigError(f"--metric {unknown[0]}: should be one of {', '.join(get_args(Metric))}")

    def settings(self, configured: EvaluationConfig) -> EvaluationConfig:
        """The configured settings, where the command line does not replace them."""
        given = {"metrics": self.metric and tuple(self.metric), "bleu_tokenizer": self.bleu_tokenizer}
        return configured.model_copy(update={name: value for name, value in given.items() if value})

    def metrics(self, configured: EvaluationConfig, known_language: str) -> "dict[Metric, SacreMetric]":
        """The metrics for references in a language, '' if it is not known."""
        from nmt.evaluation.evaluate import reference_language
        from nmt.evaluation.metrics import configured_metrics

        settings = self.settings(configured)
        return configured_metrics(settings, reference_language(self.tgt_lang, known_language), self.lowercase)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of dataclasses as options, in place of the parameters that get the built objects."""
    own = inspect.signature(command).parameters
    groups: dict[str, Any] = {
        name: one.annotation for name, one in own.items() if dataclasses.is_dataclass(one.annotation)
    }
    fields = {name: inspect.signature(group).parameters for name, group in groups.items()}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        built = {name: group(**{field: given.pop(field) for field in fields[name]}) for name, group in groups.items()}
        command(**given, **built)

    found = [option for name, one in own.items() for option in fields.get(name, {name: one}).values()]
    vars(run)["__signature__"] = inspect.Signature(found)  # where typer looks for the options
    return run


def configured_run(
    command: str,
    file: Path | None,
    overrides: list[str] | None,
    name: str | None,
    init_from: str | None = None,
    is_fresh: bool = False,
) -> tuple[Config, RunFolder]:
    """The configuration that the command line names, or the only one in this folder, and the folder of its run.

    `init_from` replaces `training.init_from`; with `is_fresh`, what is in the folder does not matter. Raises
    `ConfigError` if no file or several could be meant; `command` is for its remedy.
    """
    path = file or _only_config(command)
    run = run_named(path.stem if name is None else name)
    quoted = [] if init_from is None else [f"training.init_from={json.dumps(init_from)}"]
    return load_run_config(path, [*(overrides or ()), *quoted], run, is_fresh), run


def _only_config(command: str) -> Path:
    """The one *.yaml or *.yml of the current folder; hidden files are other programs'."""
    found = sorted(
        path for path in Path().iterdir()
        if path.suffix in (".yaml", ".yml") and not path.name.startswith(".") and path.is_file()
    )  # fmt: skip
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(
            f"there is no configuration (*.yaml) in this folder; name one: nmt {command} FILE\n"
            f"nmt config > FILE.yaml writes one with every key explained"
        )
    commands = "\n".join(f"  nmt {command} {shlex.quote(str(path))}" for path in found)
    raise ConfigError(f"there are {len(found)} configurations in this folder; name one:\n{commands}")


def utf8(text: str) -> str:
    """The text unchanged; `DataError` if the shell passed bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError("the text is not UTF-8; convert it") from None
    return text


def check_output(output: Path, *suffixes: str) -> None:
    """`ConfigError` if `output` is not a file to write whose name ends in one of these."""
    if output.suffix.lower() not in suffixes:
        raise ConfigError(f"--output {output}: its name should end in {' or '.join(suffixes)}")
    if output.is_dir() or not output.parent.is_dir():
        raise ConfigError(f"--output {output}: is not a file in a folder that exists")
