"""A shortlist: the target pieces that each source piece may be translated with.

With one, CTranslate2 computes the output's columns for the candidates of a batch alone, instead of the whole vocabulary
(Mi et al. 2016, "Vocabulary Manipulation for Neural Machine Translation"; Marian has them, too). It is a file of the
export: a line for each source piece, with its candidates after a tab. The line of the empty piece has those of every
batch. CTranslate2 itself adds `</s>`, and the pieces of a forced prefix.
"""

from itertools import groupby

import numpy as np

from nmt.batches.lexicon import MAX_PAIRS, links_of, model_1, sample
from nmt.config.corpus import CorpusFiles
from nmt.corpora.pairs import count_pairs, is_empty, read_pairs
from nmt.tokenizers.tokenizer import Tokenizer, Tokenizers

FILE = "vmap.txt"
"""CTranslate2's name for it; without this file it computes all columns."""
CANDIDATES = 50
"""The most probable target pieces of a source piece, at most. The piece itself is one more, for names."""
MIN_CHANCE = 0.001
"""Less probable ones are left out."""
FREQUENT = 100
"""The most frequent target pieces, which are candidates of every batch."""


def learn_shortlist(files: CorpusFiles, tokenizers: Tokenizers) -> str:
    """The content of the file, from translations: IBM Model 1 of the pieces of a sample (`nmt.batches.lexicon`).

    The targets may be people's, or a model's own. Raises `DataError` as `read_pairs` does, and if there are none.
    """
    count = count_pairs([files])
    read = np.zeros(count, dtype=np.uint8)
    read[np.linspace(0, count - 1, min(count, MAX_PAIRS)).astype(np.int64)] = 1
    encoded = [(tokenizers.src.encode(src), tokenizers.tgt.encode(tgt)) for src, tgt in read_pairs(files, bytes(read))]
    lengths = [np.array([len(pair[side]) for pair in encoded]) for side in (0, 1)]
    if not lengths[0] @ lengths[1]:
        raise is_empty(files)
    pairs = sample(lengths[0], lengths[1])
    src, tgt = (np.array([index for pair in pairs for index in encoded[pair][side]]) for side in (0, 1))
    src_places, tgt_places = links_of(lengths[0][pairs], lengths[1][pairs])
    size = tokenizers.tgt.vocab_size
    entries, of_links = np.unique(src[src_places] * size + tgt[tgt_places], return_inverse=True)
    given, generated = np.divmod(entries, size)
    chances, _ = model_1(of_links.astype(np.int32), given, tgt_places, tgt)
    ranked = np.lexsort((generated, -chances, given))
    by_piece = groupby(ranked[chances[ranked] >= MIN_CHANCE], key=given.__getitem__)
    likely = {int(piece): generated[[*of_piece][:CANDIDATES]].tolist() for piece, of_piece in by_piece}
    frequent = np.argsort(-np.bincount(tgt, minlength=size), kind="stable")[:FREQUENT].tolist()

    special = tokenizers.tgt.special
    src_pieces = _writable(tokenizers.src)
    tgt_pieces = {index: piece for index, piece in _writable(tokenizers.tgt).items() if index not in special}
    known = set(tgt_pieces.values())
    lines = [("", [tgt_pieces[index] for index in frequent if index in tgt_pieces])]
    for index, piece in src_pieces.items():
        candidates = [tgt_pieces[one] for one in likely.get(index, []) if one in tgt_pieces]
        lines.append((piece, [*dict.fromkeys([piece, *candidates] if piece in known else candidates)]))
    return "".join(f"{piece}\t{' '.join(candidates)}\n" for piece, candidates in lines if candidates)


def _writable(tokenizer: Tokenizer) -> dict[int, str]:
    """The pieces that a line can hold: not those with a space, a tab or the end of a line."""
    pieces = enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))
    return {index: piece for index, piece in pieces if piece and not set(piece) & set(" \t\r\n")}
