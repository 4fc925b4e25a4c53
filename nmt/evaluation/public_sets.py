"""Public test sets by sacreBLEU's names, which downloads each once into its folder (SACREBLEU, or ~/.sacrebleu)."""

import contextlib
import difflib
import io
from collections.abc import Sequence
from pathlib import Path

from nmt.errors import ConfigError, DataError


def public_test_set(name: str, language_pair: str) -> tuple[Path, Sequence[Path]]:
    """The files of a test set, `wmt14/full` and `en-de`: sources, and one or several references.

    Raises `ConfigError` if sacreBLEU does not know it, `DataError` if it is not there and cannot be downloaded.
    """
    from sacrebleu.dataset import DATASETS  # a large table
    from sacrebleu.utils import get_reference_files, get_source_file

    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `sacrebleu --list` names all"
        raise ConfigError(f"--test-set {name}: sacreBLEU knows no such test set{hint}")
    dataset = DATASETS[name]
    if language_pair not in dataset.langpairs:
        known = ", ".join(sorted(dataset.langpairs))
        raise ConfigError(f"--language-pair {language_pair}: {name} has {known}")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            src, references = get_source_file(name, language_pair), get_reference_files(name, language_pair)
    # sacreBLEU exits where a download is damaged.
    except (OSError, EOFError, SystemExit) as error:
        why = "the download is damaged" if isinstance(error, SystemExit) else error
        folder = Path(dataset._outdir)
        raise DataError(
            f"--test-set {name}: is not in {folder} and cannot be downloaded ({why}); try again with a connection, or "
            f"copy that folder from another machine"
        ) from None
    return Path(src), [Path(path) for path in references]
