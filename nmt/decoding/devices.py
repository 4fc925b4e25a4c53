"""One text translated by several devices at once, in order: a process for each, which gets a block at a time."""

import dataclasses
import json
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future

from nmt.config import DecodingConfig
from nmt.decoding.translator import Translation, load
from nmt.processes import Answer, Workers, answer_requests, available_cores


class ParallelTranslator:
    """A `Translator` in a process on each of several devices; it is left by `with`.

    A device may be named more than once. CPU threads are shared out evenly.
    """

    def __init__(
        self, models: Sequence[str], devices: Sequence[str], decoding: DecodingConfig, alignments: bool, engine: str
    ) -> None:
        search = decoding.model_dump_json()
        settings = [[number, models, device, search, alignments, engine] for number, device in enumerate(devices)]
        threads = str(max(1, available_cores() // len(devices)))
        self._workers = Workers("nmt.decoding.devices", settings, {"OMP_NUM_THREADS": threads})

    def __enter__(self) -> "ParallelTranslator":
        return self

    def __exit__(self, *exception: object) -> None:
        self._workers.__exit__(*exception)

    def stream(self, blocks: Iterable[Sequence[str]], first: int = 1) -> Iterator[Translation]:
        """As `Translator.stream`; two blocks for each device are held at a time."""
        # As many requests at once as there are processes, so that each loads its model, or says why it cannot.
        for loaded in [self._workers.submit([b"[1, []]"], "loaded a model") for _ in range(len(self._workers))]:
            loaded.result()
        under_way: deque[Future[Sequence[bytes]]] = deque()
        for block in blocks:
            if len(under_way) == 2 * len(self._workers):
                yield from _translations(under_way.popleft())
            request = json.dumps([first, block]).encode()
            under_way.append(self._workers.submit([request], f"translated line {first:,} and those behind it"))
            first += len(block)
        for future in under_way:
            yield from _translations(future)


def _translations(future: Future[Sequence[bytes]]) -> Iterator[Translation]:
    return (Translation(*fields) for fields in json.loads(future.result()[0]))


def serve(settings: str) -> None:
    """What a process does: translate each block that it is sent."""
    number, models, device, decoding, alignments, engine = json.loads(settings)

    def prepare() -> Answer:
        logging.basicConfig(format="nmt: %(message)s", level=logging.WARNING)
        if number == 0:  # the others take the same engine, and need not say so again
            logging.getLogger("nmt").setLevel(logging.INFO)
        search = DecodingConfig.model_validate_json(decoding)
        translator = load(
            models, device=device, decoding=search, engine=engine, alignments=alignments, keep_freed_memory=True
        )

        def answer(request: Sequence[bytes]) -> Sequence[bytes]:
            first, block = json.loads(request[0])
            translations = [dataclasses.astuple(translation) for translation in translator.stream([block], first)]
            return [json.dumps(translations).encode()]

        return answer

    answer_requests(prepare)
