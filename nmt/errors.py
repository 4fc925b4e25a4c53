"""The exception hierarchy of every command.

    NmtError                      the user's mistake: one plain message, exit code 2
    ├── ConfigError               a configuration file, a key in it, or a command-line value
    ├── DataError                 a corpus: missing, empty, sides that do not match, not UTF-8
    ├── VocabularyError           a vocabulary that cannot be built from the corpus, or cannot be read
    ├── RunError                  a folder that is not a run, or a run that cannot do what was asked
    ├── MissingExtraError         a package that is not installed
    ├── ExportError               an export whose translations differ from its run's: exit code 3
    ├── TrainingError             the run could not continue (disk, memory, divergence): exit code 3
    │   └── WorkerError           processes that prepare batches die repeatedly
    └── InterruptedTrainingError  stopped by a signal, after saving: exit code 130 or 143

A message names the file, line or key, the value found there, and what would be valid.
Any other exception that reaches the command line is a bug and keeps its traceback (exit code 1).
"""

import importlib
import re
from typing import Any


class NmtError(Exception):
    """Base of all errors that are reported to the user as one plain message."""

    exit_code = 2


class ConfigError(NmtError):
    """A configuration that cannot be used."""


class DataError(NmtError):
    """A corpus or text file that cannot be used."""


class VocabularyError(NmtError):
    """A vocabulary that cannot be built from the corpus, or cannot be loaded."""


class RunError(NmtError):
    """A folder that is not a run, or a run that cannot do what was asked."""


class MissingExtraError(NmtError):
    """A needed package that is not installed."""


PACKAGES = ("torch", "numpy", "sentencepiece", "sentencex", "sacrebleu", "safetensors", "pydantic", "typer", "pyyaml",
            "langcodes", "regex", "filelock", "tqdm", "jinja2", "ctranslate2", "matplotlib")  # fmt: skip
"""The required packages, by the names that install them; some may be missing on a machine that only uses an export."""


def missing_package(error: ModuleNotFoundError) -> MissingExtraError | None:
    """The error for a required package that is not installed; None for any other module, whose absence is a bug."""
    if error.name not in PACKAGES:
        return None
    return MissingExtraError(f"{error.name} is needed for this and not installed: pip install {error.name}")


class ExportError(NmtError):
    """An export whose translations differ from those of its run."""

    exit_code = 3


class TrainingError(NmtError):
    """A training that could not continue, for a reason other than a user's mistake."""

    exit_code = 3


class WorkerError(TrainingError):
    """Processes that prepare batches die repeatedly; the training itself may be sound."""


class InterruptedTrainingError(NmtError):
    """A training that was stopped by a signal; its state is saved."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


# Messages of allocators that raise no exception class of their own.
_OUT_OF_MEMORY = (
    "out of memory",  # MPS ("MPS backend out of memory"), the CUDA runtime, CTranslate2
    "Invalid buffer size",  # MPS, for a tensor above its size limit
    "CUBLAS_STATUS_ALLOC_FAILED",
    "can't allocate memory",  # torch on a CPU
    "not enough memory: you tried to allocate",  # the same under Windows
    "std::bad_alloc",
)


def is_out_of_memory(error: BaseException) -> bool:
    """True if an allocation failed, on a GPU or the CPU. Does not import torch, which may not be installed."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return True
    return any(text in str(error) for text in _OUT_OF_MEMORY)


def how_to_install(extra: str) -> str:
    """The commands that install an extra; nmt is installed from a clone, not from the package index."""
    return f"in your clone of nmt, scripts/install {extra}, or pip install '.[{extra}]'"


def import_extra(package: str, extra: str) -> Any:
    """Import an optional package; `MissingExtraError` with the commands that install it if it is missing."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise MissingExtraError(f"{package} is not installed: {how_to_install(extra)}") from None


# Control characters, line separators, characters that reverse the text after them, and lone surrogates.
_UNSAFE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Replace the characters that would move a terminal's cursor or disorder its lines, for text of unknown origin.

    >>> printable("a\x1b[2Jb")
    'a\ufffd[2Jb'
    """
    return _UNSAFE.sub("\ufffd", text)
