"""How a model is scored and in which formats it leaves: the sections `evaluation` and `export` of a configuration."""

from typing import Annotated, Literal

from pydantic import Field

from nmt.config.section import BeamSize, Section

Metric = Literal["bleu", "chrf", "chrf++", "ter"]
BleuTokenizer = Literal[
    "auto", "13a", "char", "intl", "none", "zh", "ja-mecab", "ko-mecab", "spm", "flores101", "flores200", "spBLEU-1K"
]


class EvaluationConfig(Section):
    """How translations are scored, always on plain text and by sacreBLEU."""

    metrics: Annotated[tuple[Metric, ...] | None, Field(min_length=1)] = None
    """Metrics that `nmt eval` prints and writes. `null`: `[bleu, chrf, ter]`, without `ter` for languages written
    without spaces other than Chinese and Japanese, such as Thai: it would count a sentence as one word. `chrf++` also
    counts words and pairs of words (Popović 2017)."""
    bleu_tokenizer: BleuTokenizer = "auto"
    """sacreBLEU's tokenizer for BLEU. `auto` follows `data.tgt_lang`: `zh`, `ja-mecab` and `ko-mecab` for Chinese,
    Japanese and Korean; `char` (characters) for other languages written without spaces, such as Thai, Khmer and
    Cantonese; otherwise `13a`. The others are by sacreBLEU's names; `spm`, `flores101`, `flores200` (spBLEU) and
    `spBLEU-1K` download a SentencePiece model once."""
    validation_beam_size: BeamSize = 1
    """Beam size of the validations during training; 1, greedy search, is the fastest."""
    report: bool = True
    """Whether `nmt train` writes a report and a model card into the run's folder when a training has ended."""


ExportFormat = Literal["ctranslate2", "argos", "huggingface", "onnx"]


class ExportConfig(Section):
    """The model in other programs' formats."""

    after_training: tuple[ExportFormat, ...] = ("ctranslate2",)
    """The exports that `nmt train` makes when a training has ended, as `nmt export` does, each compared with PyTorch on
    at most 300 lines of the validation set; `[]`: none. With `ctranslate2`, which keeps the weights as they are
    (float32), `nmt translate` starts sooner, and is faster on a CPU. An export that is refused, or whose package is not
    installed, is a line; the training has succeeded."""
