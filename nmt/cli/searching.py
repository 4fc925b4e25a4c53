"""The options of `nmt translate` and `nmt eval` for the search, and for what is printed of it."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nmt.cli import options
from nmt.config.inference import DecodingConfig
from nmt.config.section import MAX_BEAMS, MAX_LENGTH_PENALTY
from nmt.console import log
from nmt.errors import ConfigError

if TYPE_CHECKING:  # imported when the command runs
    from nmt.decoding.request import Request, Sampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options that `nmt translate` and `nmt eval` share, as given; None or False: not given."""

    beam_size: Annotated[
        int | None, typer.Option(min=1, max=MAX_BEAMS, help="Beam size; 1 is greedy. Default: the run's.")
    ] = None
    length_penalty: Annotated[
        float | None, typer.Option(min=0, max=MAX_LENGTH_PENALTY, help="Length penalty. Default: the run's.")
    ] = None
    min_length: Annotated[int | None, typer.Option(help="Minimum length in pieces. Default: the run's.")] = None
    max_length: Annotated[int | None, typer.Option(help="Maximum length in pieces. Default: the run's.")] = None
    max_length_ratio: Annotated[
        float | None, typer.Option(help="Maximum length in source pieces, plus ten. Default: the run's.")
    ] = None
    forbid: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="A word that no translation may contain; may be repeated.")
    ] = None
    sample: Annotated[bool, typer.Option("--sample", help="Draw translations at random; PyTorch only.")] = False
    mbr: Annotated[
        int | None,
        typer.Option(min=2, max=MAX_BEAMS, help="Draw N translations and take the most typical by chrF; PyTorch only."),
    ] = None
    temperature: Annotated[
        float | None, typer.Option(help="Of sampling: below 1, probable words become more so. Default: 1.")
    ] = None
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw among the K most probable pieces.")] = None
    top_p: Annotated[
        float | None, typer.Option(help="Draw among the most probable pieces that together have this probability.")
    ] = None
    seed: Annotated[
        int | None, typer.Option(help="Of sampling; a line's draws depend on it and the line. Default: 1.")
    ] = None
    precision: options.PrecisionOption = None
    device: options.DeviceOption = None
    engine: options.EngineOption = None

    def given(self) -> dict[str, Any]:
        """The values of those that were given."""
        return {name: value for name, value in vars(self).items() if not (value is None or value is False)}

    def settings(self, decoding: DecodingConfig) -> DecodingConfig:
        """The run's search settings, where the command line does not replace them, with forbidden words added.

        Raises `ConfigError` if they are invalid.
        """
        from pydantic import ValidationError

        given = {name: value for name, value in self.given().items() if name in DecodingConfig.model_fields}
        words = [*decoding.forbidden_words, *(self.forbid or ())]
        try:
            return DecodingConfig.model_validate({**decoding.model_dump(), **given, "forbidden_words": words})
        except ValidationError as error:
            (first, *_) = error.errors()
            key = ".".join(["decoding", *(str(part) for part in first["loc"][:1])])
            what = first["msg"].removeprefix("Value error, ")
            raise ConfigError(what if what.startswith("decoding.") else f"{key}: {what} ({first['input']!r})") from None

    def engine_to_load(self) -> str:
        """The engine; PyTorch, where samples are drawn, which a message says."""
        if not (self.sample or self.mbr):
            return self.engine or "auto"
        if self.engine is None:
            log.info("samples are drawn with PyTorch")
        return "torch"

    def sampling(self, count: int = 1) -> "Sampling | None":
        """How `count` translations are drawn, or those of --mbr; None for a search.

        Raises `ConfigError` if options contradict each other.
        """
        from nmt.decoding.request import Sampling

        if self.sample and self.mbr:
            raise ConfigError("--mbr draws samples by itself; leave out --sample")
        names = ("temperature", "top_k", "top_p", "seed")
        given = {name: value for name, value in self.given().items() if name in names}
        if not (self.sample or self.mbr):
            if given:
                raise ConfigError(f"{' and '.join(map(spelled, given))}: for sampling; add --sample or --mbr N")
            return None
        if self.engine == "ctranslate2":
            raise ConfigError("CTranslate2 cannot seed its samples a sentence; --sample and --mbr need --engine torch")
        if self.beam_size is not None:
            drawing = "--mbr" if self.mbr else "--sample"
            raise ConfigError(f"--beam-size is for a search; {drawing} draws; leave out one")
        return Sampling(**given, count=self.mbr or count, by_risk=self.mbr is not None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationOptions(SearchOptions):
    """The options of `nmt translate` for what it makes of a line."""

    split_sentences: Annotated[
        bool | None,
        typer.Option(
            help="Translate each sentence by itself and keep the white space. Default: of what is typed, not of files."
        ),
    ] = None
    tgt_tag: Annotated[
        str | None,
        typer.Option(
            metavar="TAG", help="The target language of an imported model of several: deu. Default: the run's."
        ),
    ] = None
    as_json: options.JsonOption = False
    n_best: Annotated[
        int | None, typer.Option(min=1, max=MAX_BEAMS, help="With --json: this number of translations of each line.")
    ] = None
    align: Annotated[bool, typer.Option("--align", help="With --json: the word alignment of each line.")] = False
    tokens: Annotated[
        bool, typer.Option("--tokens", help="With --json: the log-probability of each piece of each translation.")
    ] = False

    def request(self, decoding: DecodingConfig, by_sentence: bool, alignment: bool) -> "Request":
        """What a translator is to return; `ConfigError` if options contradict each other."""
        from nmt.decoding.request import Request

        given = [spelled(name) for name in ("n_best", "align", "tokens") if name in self.given()]
        if given and not self.as_json:
            raise ConfigError(f"{given[0]} needs --json: without it, a line of input gives a line")
        count = self.n_best or 1
        sampling = self.sampling(count)
        if sampling is None and count > decoding.beam_size:
            raise ConfigError(
                f"--n-best {count}: the search keeps {decoding.beam_size} hypotheses; add --beam-size {count}"
            )
        if sampling and count > sampling.count:
            drawn = sampling.count
            raise ConfigError(f"--n-best {count}: --mbr {drawn} draws {drawn} translations; draw at least {count}")
        return Request(count, count if self.tokens else 0, sampling, by_sentence, alignment or self.align)


def spelled(name: str) -> str:
    """The option of a field, as it is typed."""
    return f"--{name.replace('_', '-')}"
