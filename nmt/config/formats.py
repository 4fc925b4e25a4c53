"""File formats by suffix: compression, and files that hold both sides of a corpus."""

from pathlib import PurePath
from typing import Literal, get_args

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
CLEANING_FILE = "cleaning.tsv"
"""Examples of dropped pairs, beside the cleaned corpora; not a corpus itself."""
PairsFormat = Literal["tsv", "csv", "jsonl", "tmx", "zip"]
PAIRS_FORMATS: tuple[PairsFormat, ...] = get_args(PairsFormat)


def without_compression(path: PurePath) -> PurePath:
    """The path without a suffix of a compression.

    >>> str(without_compression(PurePath("train.en.gz")))
    'train.en'
    """
    return path.with_suffix("") if path.suffix in COMPRESSIONS else path


def pairs_format(path: PurePath) -> PairsFormat | None:
    """The format of a file that holds both sides, by its suffix; None for any other.

    >>> pairs_format(PurePath("memory.TMX.gz")), pairs_format(PurePath("train.en"))
    ('tmx', None)
    """
    suffix = without_compression(path).suffix.lower().removeprefix(".")
    format = next((name for name in PAIRS_FORMATS if name == suffix), None)
    return None if format == "zip" and path.suffix in COMPRESSIONS else format
