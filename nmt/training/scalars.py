"""The figures of a training for TensorBoard."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt.errors import MissingExtraError, how_to_install


def require_tensorboard() -> None:
    """`MissingExtraError` if TensorBoard is not installed."""
    try:
        importlib.import_module("tensorboard")
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"training.monitor: TensorBoard is not installed: {how_to_install('tensorboard')}"
        ) from None


class Scalars:
    """Writes the records of metrics.jsonl as TensorBoard's event files, the key `loss` of a validation as
    `validation/loss`, from `start` on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def start(self, step: int) -> None:
        """Begin after `step`; TensorBoard ignores what an earlier training wrote about later steps."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1)

    def add(self, record: Mapping[str, Any]) -> None:
        """Write the figures of a record."""
        for key, value in record.items():
            if isinstance(value, int | float) and key != "step":
                self._writer.add_scalar(f"{record['kind']}/{key}", value, record["step"])

    def flush(self) -> None:
        """Write everything to the disk."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """End the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
