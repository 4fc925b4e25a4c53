"""What the end of a file's name says: its compression, and the format of a file that holds both sides of a corpus."""

from pathlib import PurePath
from typing import Literal, get_args

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
CLEANING_FILE = "cleaning.tsv"
"""Examples of what cleaning dropped, beside what it left: no corpus."""
PairsFormat = Literal["tsv", "csv", "jsonl", "tmx", "zip"]
PAIRS_FORMATS: tuple[PairsFormat, ...] = get_args(PairsFormat)


def without_compression(path: PurePath) -> PurePath:
    """The path without an ending that names a compression.

    >>> str(without_compression(PurePath("train.en.gz")))
    'train.en'
    """
    return path.with_suffix("") if path.suffix in COMPRESSIONS else path


def pairs_format(path: PurePath) -> PairsFormat | None:
    """The format of a file that holds both sides; None if its name ends in none of them.

    >>> pairs_format(PurePath("memory.TMX.gz")), pairs_format(PurePath("train.en"))
    ('tmx', None)
    """
    suffix = without_compression(path).suffix.lower().removeprefix(".")
    found = next((name for name in PAIRS_FORMATS if name == suffix), None)
    return None if found == "zip" and path.suffix in COMPRESSIONS else found
