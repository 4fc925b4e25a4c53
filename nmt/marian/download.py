"""Downloading a model from the Hugging Face Hub, into the folder where huggingface_hub keeps what it has downloaded."""

from pathlib import Path

from nmt.errors import RunError, import_extra
from nmt.marian.folder import BIN, SAFETENSORS

PREFIX = "hf:"
_FILES = ("*.json", "*.spm", "README.md")


def download(name: str) -> Path:
    """The folder of the model `name` (`Helsinki-NLP/opus-mt-en-de`); what is there already is not downloaded again.

    Raises `MissingExtraError` if huggingface_hub is not installed, and `RunError` if there is no such model or no
    network.
    """
    hub = import_extra("huggingface_hub", "hf")
    try:
        folder = Path(hub.snapshot_download(name, allow_patterns=[*_FILES, SAFETENSORS]))
        if not (folder / SAFETENSORS).is_file():
            folder = Path(hub.snapshot_download(name, allow_patterns=[*_FILES, BIN]))
    except (OSError, ValueError, RuntimeError, hub.errors.HfHubHTTPError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise RunError(f"{PREFIX}{name}: cannot be downloaded: {first[0][:300]}") from None
    return folder
