"""Vectors and images as sources. Source n belongs to line n of the target.

    features.npy                     (N, S, F): N sources of S vectors
    folder/values.npy, offsets.npy   (sum of all S, F) and (N + 1): source n is values[offsets[n]:offsets[n + 1]]
    images.txt                       a path a line, relative to the list: source n is image n, as patches

Arrays are memory-mapped, and nothing is ever unpickled. The format is chosen by the `source` section.

Shapes: N sources, S source length, F features, G patches in a row or column, P pixels in a row or column of a patch.
"""

import hashlib
import math
import struct
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt.config.source import ImageSource, VectorSource
from nmt.corpora.lines import BLOCK_PAIRS, listed_images, read_lines
from nmt.errors import DataError, MissingExtraError, how_to_install

Vectors = NDArray[Any]
"""(S, F): fp16 or fp32; or uint8, the pixels of images"""

BLOCK_BYTES = 1 << 23  # of vectors to read at once
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # not EPS, for which Pillow starts a program


class _Arrays:
    """Arrays of sources: all in one (sum of their lengths, F) with offsets, or (N, S, F)."""

    def __init__(self, path: Path, features: int) -> None:
        if path.is_dir():
            self._path = path / "values.npy"
            self._values = _numbers(self._path, "(sum of the lengths, F)", features)
            self._offsets: NDArray[np.int64] | None = _read_offsets(path / "offsets.npy", len(self._values))
        else:
            self._path = path
            self._values = _numbers(path, "(N, S, F)", features)
            self._offsets = None
        self.dtype, self.nbytes = self._values.dtype, self._values.nbytes

    def __len__(self) -> int:
        return len(self._values) if self._offsets is None else len(self._offsets) - 1

    def read(self, begin: int = 0, end: int | None = None) -> list[Vectors]:
        if self._offsets is None:
            sources = list(self._values[begin:end])
        else:
            offsets = self._offsets[begin : len(self) + 1 if end is None else end + 1].tolist()
            sources = [self._values[start:stop] for start, stop in pairwise(offsets)]
        for row, vectors in enumerate(sources, start=begin):
            if not np.isfinite(vectors).all():
                raise DataError(
                    f"{self._path}: row {row} (counted from 0; line {row + 1} of the other side) holds a feature that "
                    "is NaN or infinite; repair it, or remove the row and its line"
                )
        return sources


def _read_offsets(path: Path, num_vectors: int) -> NDArray[np.int64]:
    offsets = _mapped(path)
    if offsets.dtype != np.int64 or offsets.ndim != 1 or not len(offsets):
        raise DataError(
            f"{path}: is {offsets.dtype} {offsets.shape}; it should be int64 (N + 1): where each source begins, and "
            "the end of the last"
        )
    if offsets[0] != 0 or offsets[-1] != num_vectors or (np.diff(offsets) < 0).any():
        raise DataError(f"{path}: should rise from 0 to {num_vectors:,}, the number of vectors in values.npy")
    return offsets


def _numbers(path: Path, shape: str, features: int) -> NDArray[Any]:
    """A file's array, with its type and shape checked."""
    array = _mapped(path)
    if array.dtype not in (np.dtype(np.float16), np.dtype(np.float32)):
        raise DataError(f"{path}: holds {array.dtype}; features should be float16 or float32: array.astype('float16')")
    if array.ndim != shape.count(",") + 1:
        raise DataError(f"{path}: has the shape {array.shape}; it should be {shape}")
    if array.shape[-1] != features:
        raise DataError(f"{path}: has {array.shape[-1]:,} features a vector, and source.features is {features:,}")
    return array


def _mapped(path: Path) -> NDArray[Any]:
    """A file's array, memory-mapped; `DataError` if it cannot be read."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError, TypeError, EOFError, OverflowError, MemoryError) as error:
        reason = f"{error}".splitlines()[0] if f"{error}" else type(error).__name__
        raise DataError(
            f"{path}: cannot be read as an array of numbers ({reason}); write it with numpy.save, without objects"
        ) from None
    return np.asarray(array)  # a plain view: a memmap's methods are slower


class _ImageList:
    """List of images, each as (G * G, P * P * 3) uint8: patches row by row, with pixels row by row, in RGB."""

    dtype = np.dtype(np.uint8)

    def __init__(self, path: Path, source: ImageSource) -> None:
        self._path = path
        self._source = source
        self._images = listed_images(path)
        self.nbytes = len(self._images) * 3 * source.image_size**2

    def __len__(self) -> int:
        return len(self._images)

    def read(self, begin: int = 0, end: int | None = None) -> list[Vectors]:
        size, patch_size = self._source.image_size, self._source.patch_size
        return [
            patches(read_image(path, size, f"{self._path}:{number}"), patch_size)
            for number, path in enumerate(self._images[begin:end], start=begin + 1)
        ]


VectorFile = _Arrays | _ImageList
"""The N sources of a file, `nbytes` in all. `read` returns some of them; its `DataError` names the row of the file, or
the line of the list, that cannot be used."""


def open_vectors(path: Path, source: VectorSource | ImageSource) -> VectorFile:
    """Open the sources of a file; `DataError` if it cannot be read or contradicts the `source` section."""
    return _ImageList(path, source) if source.type == "images" else _Arrays(path, source.features)


def patches(pixels: NDArray[Any], size: int) -> NDArray[Any]:
    """Cut an image into square patches of `size` pixels, row by row: (G * P, G * P, 3) -> (G * G, P * P * 3)."""
    grid = len(pixels) // size
    tiles = pixels.reshape(grid, size, grid, size, 3).transpose(0, 2, 1, 3, 4)  # (G, G, P, P, 3)
    return tiles.reshape(grid * grid, size * size * 3)


def image_of(image_patches: NDArray[Any]) -> NDArray[Any]:
    """Put an image's patches together, the inverse of `patches`: (G * G, P * P * 3) -> (G * P, G * P, 3)."""
    grid, size = math.isqrt(len(image_patches)), math.isqrt(image_patches.shape[1] // 3)
    tiles = image_patches.reshape(grid, grid, size, size, 3).transpose(0, 2, 1, 3, 4)  # (G, P, G, P, 3)
    return tiles.reshape(grid * size, grid * size, 3)


def read_image(path: Path, size: int, place: str) -> NDArray[np.uint8]:
    """Read an image, turned upright by its EXIF data and scaled to a square: (size, size, 3), RGB.

    Raises `DataError` with the `place` that names the image if it is missing, not of `IMAGE_FORMATS`, or has more
    pixels than Pillow's limit: a file of kilobytes can hold an image of gigabytes.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise MissingExtraError(f"reading images needs Pillow: {how_to_install('image')}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=IMAGE_FORMATS) as image:
                upright = ImageOps.exif_transpose(image).convert("RGB")
                scaled = upright.resize((size, size), Image.Resampling.BICUBIC)
    except FileNotFoundError:
        raise DataError(f"{place}: {path}: no such file") from None
    except UnidentifiedImageError:
        raise DataError(f"{place}: {path}: is not an image; convert it to one of {', '.join(IMAGE_FORMATS)}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        limit = f"{Image.MAX_IMAGE_PIXELS:,}"
        raise DataError(f"{place}: {path}: has more than {limit} pixels; scale it down") from None
    except (OSError, ValueError, TypeError, SyntaxError, EOFError, struct.error, MemoryError) as error:
        raise DataError(f"{place}: {path}: cannot be read as an image: {error}") from None
    return np.asarray(scaled)


def source_names(path: Path, source: VectorSource | ImageSource) -> list[str]:
    """The names of a file's sources: images as in their list, vectors by their index, `test.npy[0]`."""
    if source.type == "images":
        return list(read_lines(path))
    return [f"{path.name}[{row}]" for row in range(len(open_vectors(path, source)))]


def fingerprint(vectors: Vectors) -> str:
    """A hash of a source's vectors."""
    return hashlib.blake2b(np.ascontiguousarray(vectors).data, digest_size=16).hexdigest()


def vector_blocks(path: Path, source: VectorSource | ImageSource, skip: int = 0) -> Iterator[list[Vectors]]:
    """Yield the sources of a file after the first `skip`, in blocks of about `BLOCK_BYTES`."""
    vectors = open_vectors(path, source)
    size = rows_at_once(vectors)
    for begin in range(skip, len(vectors), size):
        yield vectors.read(begin, begin + size)


def rows_at_once(vectors: VectorFile) -> int:
    """The number of sources to read at once."""
    return max(1, min(BLOCK_PAIRS, BLOCK_BYTES * len(vectors) // max(1, vectors.nbytes)))
