"""Parallel translation of a text on several devices, in order: a process per device, which gets a block at a time."""

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeAlias

from nmt.decoding.hypothesis import BEST, Request
from nmt.decoding.source_text import Item
from nmt.decoding.translator import Translation, Translator, with_prefixes
from nmt.system.console import show_messages
from nmt.system.processes import Workers, cores_to_use

_Pending: TypeAlias = "Future[tuple[str, list[Translation]]]"
_Block: TypeAlias = tuple[int, Sequence[Item], list[str] | None, Request]
"""Number of the first line, lines, their prefixes, and the request."""


class ParallelTranslator:
    """A process with a `Translator` for each of `devices`, made by `load_on(device=...)`; used in a `with` statement.

    A device may be named more than once. CPU threads are divided evenly.
    """

    def __init__(self, load_on: "functools.partial[Translator]", devices: Sequence[str]) -> None:
        prepare = [
            functools.partial(_translator_on, device, load_on, number == 0) for number, device in enumerate(devices)
        ]
        threads = str(max(1, cores_to_use() // len(devices)))
        self._workers = Workers(prepare, {"OMP_NUM_THREADS": threads})

    def __enter__(self) -> "ParallelTranslator":
        return self

    def __exit__(self, *exception: object) -> None:
        self._workers.__exit__(*exception)

    @functools.cached_property
    def engine_name(self) -> str:
        """As `Translator.engine_name`, joined if the processes differ. Waits until all have loaded their models."""
        # An empty block for each process, so that each loads its model or reports why it cannot.
        loading = [self._workers.submit((1, [], None, BEST), "loaded a model") for _ in range(len(self._workers))]
        return " and ".join(sorted({loaded.result()[0] for loaded in loading}))

    def stream(
        self,
        blocks: Iterable[Sequence[Item]],
        first: int = 1,
        prefixes: Iterable[str] | str | None = None,
        request: Request = BEST,
    ) -> Iterator[Translation]:
        """As `Translator.stream`; two blocks for each device are held at a time.

        A thread reads the blocks: a program may wait for the translation of a line before it writes the next.
        """
        pending: SimpleQueue[_Pending | None] = SimpleQueue()
        room, has_ended = threading.Semaphore(2 * len(self._workers)), threading.Event()

        def submit_all(first: int) -> None:
            try:
                for block, beginnings in with_prefixes(blocks, prefixes, first):
                    room.acquire()
                    if has_ended.is_set():
                        return
                    task = f"translated the lines from {first:,} on"
                    pending.put(self._workers.submit((first, block, beginnings, request), task))
                    first += len(block)
                pending.put(None)
            except BaseException as error:  # raised after the translations of earlier blocks
                failed: _Pending = Future()
                failed.set_exception(error)
                pending.put(failed)

        reader = threading.Thread(target=submit_all, args=(first,), daemon=True)
        reader.start()
        try:
            while future := pending.get():
                translations = future.result()[1]
                room.release()
                yield from translations
        finally:
            has_ended.set()
            room.release()
            reader.join(0.2)  # it may wait for a line forever


LineTranslator: TypeAlias = Translator | ParallelTranslator


def _translator_on(
    device: str, load_on: "functools.partial[Translator]", logs_engine: bool
) -> Callable[[_Block], tuple[str, list[Translation]]]:
    """Return a worker's function: block -> name of the engine and translations.

    One worker logs the choice of the engine; the others choose the same.
    """
    show_messages(logging.INFO if logs_engine else logging.WARNING)
    translator = load_on(device=device)

    def translated(block: _Block) -> tuple[str, list[Translation]]:
        first, lines, prefixes, request = block
        return translator.engine_name, list(translator.stream([lines], first, prefixes, request))

    return translated
