"""Exact duplicates among millions of pairs or lines: a numpy hash table instead of a set of strings."""

import hashlib

import numpy as np
from numpy.typing import NDArray

HASH_BYTES = 16


def pair_hash(src: str, tgt: str) -> bytes:
    """128 bits of BLAKE2b. The line end between the sides makes ("a", "bc") and ("ab", "c") differ.

    The probability that any two of n different pairs collide is below n**2 / 2**129: 1.5e-25 for ten million pairs.
    """
    return hashlib.blake2b(f"{src}\n{tgt}".encode(), digest_size=HASH_BYTES).digest()


def line_hash(line: str) -> bytes:
    """`pair_hash` for one line."""
    return hashlib.blake2b(line.encode(), digest_size=HASH_BYTES).digest()


class PairTable:
    """The hashes of up to `num_pairs` pairs or lines, in 24 bytes each; in 30 with `counting`.

    Open addressing with linear probing; a third of the slots stay free. A slot is two 64-bit halves; the first half of
    a used slot is never 0.
    """

    def __init__(self, num_pairs: int, counting: bool = False) -> None:
        self._slots = np.zeros((num_pairs + num_pairs // 2, 2), dtype=np.uint64)
        self._counts = np.zeros(len(self._slots) if counting else 0, dtype=np.uint32)
        self._room = num_pairs

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the full table takes."""
        return self._slots.nbytes + self._counts.nbytes

    def add(self, hashes: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Add hashes of `HASH_BYTES` each; returns a mask of those neither in the table nor earlier in the array."""
        return self._add(hashes)[0]

    def count(self, hashes: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Add hashes as `add` does; returns how often each was added before, earlier in the array included."""
        slots = self._add(hashes)[1]
        order = np.argsort(slots, kind="stable")  # equal hashes side by side, in the array's order
        begins = np.flatnonzero(np.diff(slots[order], prepend=-1))
        sizes = np.diff(begins, append=len(slots))
        rank = np.empty(len(slots), dtype=np.int64)
        rank[order] = np.arange(len(slots)) - np.repeat(begins, sizes)
        before = self._counts[slots] + rank
        self._counts[slots[order[begins]]] += sizes.astype(np.uint32)
        return before

    def _add(self, hashes: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Which hashes are new, and the slot of each."""
        keys = hashes.view(np.uint64).reshape(-1, 2).copy()
        keys[keys[:, 0] == 0, 0] = 1
        self._room -= len(keys)
        assert self._room >= 0  # or probing would never terminate
        is_new = np.zeros(len(keys), dtype=np.bool_)
        slots = keys[:, 1] % np.uint64(len(self._slots)) if len(keys) else keys[:, 1]
        pending = np.arange(len(keys))
        while len(pending):
            at = slots[pending]
            free = np.flatnonzero(self._slots[at, 0] == 0)
            # Among hashes that reach the same free slot, the first takes it; `pending` keeps the array's order.
            winners = pending[free[np.unique(at[free], return_index=True)[1]]]
            self._slots[slots[winners]] = keys[winners]
            is_new[winners] = True
            is_settled = (self._slots[at] == keys[pending]).all(axis=1)
            pending = pending[~is_settled]
            slots[pending] = (slots[pending] + np.uint64(1)) % np.uint64(len(self._slots))
        return is_new, slots.astype(np.int64)
