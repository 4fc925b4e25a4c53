"""Downloading a model from the Hugging Face Hub, into the folder where huggingface_hub keeps what it has downloaded."""

import importlib
from pathlib import Path

from nmt.errors import MissingExtraError, RunError, how_to_install
from nmt.marian.folder import BIN, SAFETENSORS

PREFIX = "hf:"
_FILES = ("*.json", "*.spm", "README.md")


def download(name: str) -> Path:
    """The folder of the model `name` (`Helsinki-NLP/opus-mt-en-de`); what is there already is not downloaded again.

    Raises `MissingExtraError` if huggingface_hub is not installed, and `RunError` if there is no such model or no
    network.
    """
    try:
        hub = importlib.import_module("huggingface_hub")
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"{PREFIX}{name} is downloaded with huggingface_hub, which is not installed: {how_to_install('hf')}; or "
            f"download the model's folder in a browser, and name it"
        ) from None
    try:
        folder = Path(hub.snapshot_download(name, allow_patterns=[*_FILES, SAFETENSORS]))
        if not (folder / SAFETENSORS).is_file():
            folder = Path(hub.snapshot_download(name, allow_patterns=[*_FILES, BIN]))
    except (OSError, ValueError, RuntimeError, hub.errors.HfHubHTTPError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise RunError(f"{PREFIX}{name}: cannot be downloaded: {first[0][:300]}") from None
    return folder
