"""An explanation's JSON without a model, of any size."""

from typing import Any

import numpy as np

from nmt.insight.attention import KINDS


def made_up(length: int, layers: int, heads: int, src: str = "ein e kurz e zeil e", tgt: str = "") -> dict[str, Any]:
    """JSON of an explanation whose sentences have `length` pieces and the end, two pieces a word."""
    random = np.random.default_rng(0)
    pieces = {side: (text.split() * length)[:length] for side, text in (("src", src), ("tgt", tgt or src))}
    marked = {side: [f"▁{p}" if i % 2 == 0 else p for i, p in enumerate(pieces[side])] for side in pieces}
    size = length + 1

    def weights(is_causal: bool) -> list[Any]:
        peaks = random.exponential(size=(layers, heads, size, size)) ** 3
        kept = np.tril(peaks) if is_causal else peaks
        return (kept / kept.sum(axis=-1, keepdims=True)).tolist()

    def candidate(number: int, log_prob: float) -> dict[str, Any]:
        return {"token": [*marked["tgt"], "</s>"][number % size], "id": number, "log_prob": log_prob}

    steps = [
        {**candidate(t, -0.1), "entropy": 0.5 + t % 3, "candidates": [candidate(t + i, -0.1 - i) for i in range(10)]}
        for t in range(size)
    ]
    nodes = [{"id": 0, "parent": None, "step": 0, "token": "<s>", "log_prob": 0.0, "score": 0.0, "state": "kept"}]
    for t in range(size):
        for i, state in enumerate(["kept"] * 5 + ["pruned"] * 5):
            ends = t == size - 1 and i < 5
            nodes.append(
                {"id": len(nodes), "parent": max(0, 10 * (t - 1)) + (1 + i % 5 if t else 0), "step": t + 1,
                 "token": candidate(t + i, 0)["token"], "log_prob": -0.1 * t - i, "score": -0.1 - i,
                 "state": "finished" if ends else "pruned" if t == size - 1 else state}
            )  # fmt: skip
    what_if = [
        {"position": t, "token": candidate(t + i, 0)["token"], "log_prob": -1.0 - i, "score": -1.0,
         "word": f"{pieces['tgt'][(t + i) % length] if length else ''}{i}", "tokens": marked["tgt"],
         "text": " ".join([*pieces["tgt"][t:], *pieces["tgt"][:t], f"({t}, {i})"])}
        for t in range(size) for i in range(2)
    ]  # fmt: skip
    words = [i // 2 for i in range(length)]
    return {
        "format": 1, "model": "made up", "src": " ".join(pieces["src"]), "tgt": " ".join(pieces["tgt"]),
        "is_own": True, "src_lang": "en", "tgt_lang": "de",
        "src_tokens": [*marked["src"], "</s>"], "tgt_tokens": ["<s>", *marked["tgt"]],
        "out_tokens": [*marked["tgt"], "</s>"], "src_words": [*words, length], "out_words": [*words, length],
        "tgt_words": [0, *(word + 1 for word in words)],
        "attention": {kind: weights(kind == "decoder") for kind in KINDS},
        "gradients": np.full((size, size), 1 / size).tolist(), "steps": steps,
        "search": {"beam_size": 5, "length_penalty": 1.0, "best": nodes[-10]["id"], "nodes": nodes},
        "what_if": what_if,
    }  # fmt: skip
