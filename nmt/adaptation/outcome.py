"""The outcome of an adaptation: its model, and whether general text lost more than it may."""

import shutil
from collections.abc import Collection, Sequence

from nmt.errors import RunError
from nmt.runs.exports import ModelFile
from nmt.runs.folder import RunFolder
from nmt.runs.weights import mean_of_weights, write_weights
from nmt.system.files import replacing
from nmt.training.fine_tuning import Forgetting
from nmt.training.record import read_record


def average_with_base(base: RunFolder, run: RunFolder) -> bool:
    """Make the mean of the base's and the fine-tuned weights the model of a finished training, unless it is already.

    Returns whether it was not. Wortsman et al. 2022 (WiSE-FT) recommend the middle where nothing says what is lost. The
    fine-tuned weights stay in a file of their own, so that after a kill at any time the same call gives the same model.
    """
    with run.locked():
        if not run.fine_tuned_file.exists():
            with replacing(run.fine_tuned_file) as temporary:
                shutil.copyfile(run.model_file, temporary)
        if not ModelFile.of(run.fine_tuned_file).is_still(run.model_file):
            return False
        record = read_record(run)
        assert record is not None and record.init_from is not None, "it was fine-tuned"
        if record.init_from.model.sha256 != ModelFile.of(base.model_file).sha256:
            raise RunError(
                f"{base.path}: its model has changed since {run.path} started from it; restore it, or --fresh"
            )
        run.report_page.unlink(missing_ok=True)  # it is about the fine-tuned weights
        write_weights(mean_of_weights([base.model_file, run.fine_tuned_file]), run.model_file)
    return True


def verdict(changes: Sequence[Forgetting], general: Collection[str], max_drop: float) -> tuple[str, bool]:
    """The first line of the result, and whether it is a warning that general text may have lost more than `max_drop`.

    The upper end of the drop's interval counts: what may be lost, as far as the test set can tell.
    """
    if not general:
        return (
            "There was no general text to measure with (--keep FILE), so the model is the mean of the old weights and "
            "the fine-tuned ones."
        ), False
    found = {one.name: one.change("bleu") for one in changes if one.name in general and "bleu" in one.before}
    if missing := [name for name in general if name not in found]:
        return f"warning: --max-drop is not checked: {', '.join(missing)} could not be scored before and after", True
    drops = ", ".join(f"{name} {row.change:+.2f} ({row.low:+.2f} to {row.high:+.2f})" for name, row in found.items())
    if any(-row.low > max_drop for row in found.values()):
        return f"warning: general text may have lost more than {max_drop:g} BLEU (--max-drop): {drops}", True
    return f"General text has kept within {max_drop:g} BLEU (--max-drop): {drops}", False
