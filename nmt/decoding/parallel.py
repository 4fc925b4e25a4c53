"""One text translated by several devices at once, in order: a process for each, which gets a block at a time."""

import contextlib
import functools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Protocol

from nmt.config.inference import DecodingConfig
from nmt.decoding.translator import Translation, load
from nmt.processes import Workers, available_cores


class LineTranslator(Protocol):
    """A `Translator`, or several of them on as many devices."""

    @property
    def engine_name(self) -> str:
        """As `Translator.engine_name`."""

    def stream(self, blocks: Iterable[Sequence[str]], first: int = 1) -> Iterator[Translation]:
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
) -> Iterator[LineTranslator]:
    """The models' translator for the length of the block: on a device, or on several, `cuda:0,cuda:1`."""
    if devices is not None:
        with ParallelTranslator(models, devices.split(","), decoding, alignments, engine, precision) as translator:
            yield translator
    else:
        yield load(
            models,
            device=device or "auto",
            decoding=decoding,
            engine=engine,
            alignments=alignments,
            precision=precision,
            own_process=True,
        )


class ParallelTranslator:
    """A `Translator` in a process on each of several devices; it is left by `with`.

    A device may be named more than once. CPU threads are shared out evenly.
    """

    def __init__(
        self,
        models: Sequence[str],
        devices: Sequence[str],
        decoding: DecodingConfig,
        alignments: bool,
        engine: str,
        precision: str | None,
    ) -> None:
        prepare = [
            functools.partial(_translator_on, device, models, decoding, alignments, engine, precision, number == 0)
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
        """That of the `Translator` in each process, or several; known once all have loaded their models."""
        # As many requests at once as there are processes, so that each loads its model, or says why it cannot.
        loading = [self._workers.submit((1, []), "loaded a model") for _ in range(len(self._workers))]
        return " and ".join(sorted({loaded.result()[0] for loaded in loading}))

    def stream(self, blocks: Iterable[Sequence[str]], first: int = 1) -> Iterator[Translation]:
        """As `Translator.stream`; two blocks for each device are held at a time."""
        under_way: deque[Future[tuple[str, list[Translation]]]] = deque()
        for block in blocks:
            if len(under_way) == 2 * len(self._workers):
                yield from under_way.popleft().result()[1]
            under_way.append(self._workers.submit((first, block), f"translated line {first:,} and those behind it"))
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
    tells_engine: bool,
) -> Callable[[tuple[int, Sequence[str]]], tuple[str, list[Translation]]]:
    """What a process does with the number of a block's first line, and the block: its engine's name, and translations.

    One tells which engine it takes; the others take the same.
    """
    logging.basicConfig(format="nmt: %(message)s", level=logging.WARNING)
    if tells_engine:
        logging.getLogger("nmt").setLevel(logging.INFO)
    translator = load(
        models,
        device=device,
        decoding=decoding,
        engine=engine,
        alignments=alignments,
        precision=precision,
        own_process=True,
    )
    return lambda request: (translator.engine_name, list(translator.stream([request[1]], request[0])))
