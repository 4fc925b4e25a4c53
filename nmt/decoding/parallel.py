"""Translating one text on several devices at once, in order: each has a process, which gets a block at a time."""

import contextlib
import functools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Protocol

from nmt.config.inference import DecodingConfig
from nmt.decoding.source_text import Item
from nmt.decoding.translator import Translation, load
from nmt.processes import Workers, available_cores


class LineTranslator(Protocol):
    """A `Translator`, or several of them on as many devices."""

    @property
    def engine_name(self) -> str:
        """As `Translator.engine_name`."""

    def stream(self, blocks: Iterable[Sequence[Item]], first: int = 1) -> Iterator[Translation]:
        """As `Translator.stream`."""


@contextlib.contextmanager
def line_translator(
    models: Sequence[str],
    decoding: DecodingConfig,
    device: str | None = None,
    devices: str | None = None,
    alignments: bool = False,
    engine: str = "auto",
    precision: str | None = None,
    split_sentences: bool = False,
) -> Iterator[LineTranslator]:
    """The models' translator within the `with` block: on one device, or on several, `cuda:0,cuda:1`."""
    if devices is not None:
        names = devices.split(",")
        with ParallelTranslator(models, names, decoding, alignments, engine, precision, split_sentences) as translator:
            yield translator
    else:
        yield load(
            models,
            device=device or "auto",
            decoding=decoding,
            engine=engine,
            alignments=alignments,
            precision=precision,
            split_sentences=split_sentences,
            own_process=True,
        )


class ParallelTranslator:
    """A `Translator` in a process for each of `devices`; to be used in a `with` statement.

    A device may be named more than once. CPU threads are divided evenly.
    """

    def __init__(
        self,
        models: Sequence[str],
        devices: Sequence[str],
        decoding: DecodingConfig,
        alignments: bool,
        engine: str,
        precision: str | None,
        split_sentences: bool = False,
    ) -> None:
        settings = (models, decoding, alignments, engine, precision, split_sentences)
        prepare = [
            functools.partial(_translator_on, device, *settings, logs_engine=number == 0)
            for number, device in enumerate(devices)
        ]
        threads = str(max(1, available_cores() // len(devices)))
        self._workers = Workers(prepare, {"OMP_NUM_THREADS": threads})

    def __enter__(self) -> "ParallelTranslator":
        return self

    def __exit__(self, *exception: object) -> None:
        self._workers.__exit__(*exception)

    @functools.cached_property
    def engine_name(self) -> str:
        """As `Translator.engine_name`, joined if the processes differ. Waits until all have loaded their models."""
        # One request for each process, so that each loads its model, or reports why it cannot.
        loading = [self._workers.submit((1, []), "loaded a model") for _ in range(len(self._workers))]
        return " and ".join(sorted({loaded.result()[0] for loaded in loading}))

    def stream(self, blocks: Iterable[Sequence[Item]], first: int = 1) -> Iterator[Translation]:
        """As `Translator.stream`; two blocks for each device are held at a time."""
        under_way: deque[Future[tuple[str, list[Translation]]]] = deque()
        for block in blocks:
            if len(under_way) == 2 * len(self._workers):
                yield from under_way.popleft().result()[1]
            under_way.append(self._workers.submit((first, block), f"translated the lines from {first:,} on"))
            first += len(block)
        for future in under_way:
            yield from future.result()[1]


def _translator_on(
    device: str,
    models: Sequence[str],
    decoding: DecodingConfig,
    alignments: bool,
    engine: str,
    precision: str | None,
    split_sentences: bool,
    logs_engine: bool,
) -> Callable[[tuple[int, Sequence[Item]]], tuple[str, list[Translation]]]:
    """A worker's function: from a block's first line number and its lines to the engine's name and the translations.

    One worker logs the choice of its engine; the others choose the same.
    """
    logging.basicConfig(format="nmt: %(message)s", level=logging.WARNING)
    if logs_engine:
        logging.getLogger("nmt").setLevel(logging.INFO)
    translator = load(
        models,
        device=device,
        decoding=decoding,
        engine=engine,
        alignments=alignments,
        precision=precision,
        split_sentences=split_sentences,
        own_process=True,
    )
    return lambda request: (translator.engine_name, list(translator.stream([request[1]], request[0])))
