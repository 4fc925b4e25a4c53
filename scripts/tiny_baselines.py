"""What the tiny corpus asks of a model: the scores of translators that are not good enough, on its test set.

    python scripts/tiny_baselines.py                # sacreBLEU (tokenize=zh) of the word-by-word dictionary
    python scripts/tiny_baselines.py --mean         # and of a Transformer without cross-attention: minutes

The dictionary is an oracle: it reads the grammar's own lexicon, knows every sense of a word, and takes the
one found most often in the training pairs. What it lacks is the rest of the sentence: it cannot choose among
the senses, put in a measure word, or move anything. The corpus is meant to keep it under 50 BLEU.

The other one is the model of configs/tiny.yaml, trained as it is, but for one thing: its decoder is shown the
mean of the encoder states instead of attending to them. The corpus is meant to keep it under 60 BLEU.
"""

import argparse
import contextlib
import importlib.util
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import sacrebleu
import torch
from torch import Tensor

from nmt.checkpoint import load_weights
from nmt.config.file import load_config
from nmt.data.lines import read_lines
from nmt.decoding.torch_engine import TorchEngine
from nmt.decoding.translator import Translator
from nmt.models.attention import MultiHeadAttention
from nmt.models.transformer import Transformer
from nmt.runs import run_named
from nmt.training.monitor import Monitor
from nmt.training.preparation import prepare
from nmt.training.trainer import Trainer

REPOSITORY = Path(__file__).resolve().parent.parent

# Words that are in no table of the grammar, with their senses; an empty one leaves the word out.
FUNCTION_WORDS = {
    "a": "|一", "an": "|一", "the": "|那", "of": "", "to": "|给", "do": "", "does": "", "did": "|了",
    "am": "|很", "is": "|很|正在", "are": "|很|正在", "there": "|有", "not": "没|不", "will": "会",
    "must": "必须", "want": "想", "wants": "想", "with": "和", "for": "给|", "who": "谁|的",
    "that": "那|的", "which": "哪", "what": "什么", "whose": "谁的", "when": "什么时候", "where": "哪里",
    "why": "为什么", "how": "|几", "many": "几", "than": "比", "much": "得多|", "very": "很", "too": "太",
    "and": "和", "but": "但是", "because": "因为", "if": "如果", "before": "以前", "after": "以后",
    "said": "说", "heard": "听说", "asked": "请", "told": "让", "please": "请", "this": "这",
    "these": "这", "those": "那", "'s": "的", "every": "每", "day": "天", "week": "周", "year": "年",
    "morning": "早上", "last": "上", "next": "下", "in": "在|", "on": "上", "under": "下面",
    "behind": "后面", "beside": "旁边", "by": "在|", "at": "在|", "park": "公园里", "garden": "花园里",
    "city": "城里", "river": "河边", "school": "学校", "home": "家", "station": "车站", "market": "市场",
    "bed": "床", "box": "箱子", "bag": "包", "door": "门", "window": "窗户", "pair": "双|条",
    "pairs": "双|条", "?": "？", ".": "。", ",": "，", "!": "！", "little": "一点|",
}  # fmt: skip


def load_grammar() -> ModuleType:
    """The corpus script as a module; `scripts/` is no package, so it is loaded by its path."""
    name = "make_tiny_corpus"
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


def split_words(sentence: str) -> list[str]:
    """ "the boy's hat." -> the, boy, 's, hat, ."""
    return re.findall(r"'s|[a-z]+|[?.,!]", sentence)


def lexicon_senses(grammar: ModuleType) -> dict[str, list[str]]:
    """Every English word with every Chinese word that the grammar's tables give it."""
    senses = {word: options.split("|") for word, options in FUNCTION_WORDS.items()}

    def add(en: str, zh: str) -> None:
        for word in en.split():  # "look for", "the piano": the function word keeps its own entry
            if word not in FUNCTION_WORDS and zh not in senses.setdefault(word, []):
                senses[word].append(zh)

    for noun in grammar.NOUNS.values():
        add(noun.one, noun.zh)
        add(noun.many, noun.zh)
        for unit in noun.unit or ():
            add(unit, noun.measure)
    for verb in (*grammar.VERBS, *grammar.MOVES):
        for zh, _ in verb.senses:
            add(verb.base, zh)
            add(verb.third, zh)
            add(verb.past, zh)
            add(verb.ing, zh)
    tables = [grammar.ONE, grammar.NUMBERS, grammar.ORDINALS, *grammar.ADJECTIVES.values()]
    tables += [grammar.SUBJECTS, grammar.OBJECTS, grammar.OWNERS, grammar.GREETED]
    tables += [grammar.MOODS, grammar.QUALITIES, grammar.TALLER, grammar.CHEAPER]
    tables += [grammar.PAST_TIMES, grammar.HABIT_TIMES, grammar.FUTURE_TIMES]
    greetings = {en: zh.format("") for en, zh in grammar.GREETINGS.items()}
    for table in [*tables, greetings, {"now": "现在"}]:
        for en, zh in table.items():
            add(en, zh)
    return senses


def best_dictionary(pairs: Iterable[tuple[str, str]], senses: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """For each English word, the one of its senses that is found in the most translations of its sentences.

    A word that may be left untranslated is, unless some sense is found in most of them.
    """
    found: Counter[tuple[str, str]] = Counter()
    seen: Counter[str] = Counter()
    for en, zh in pairs:
        for word in dict.fromkeys(split_words(en)):
            seen[word] += 1
            for sense in senses[word]:
                found[word, sense] += sense in zh if sense else 0
    best = {}
    for word, options in senses.items():
        silent = seen[word] / 2 if "" in options else 0
        hits = [found[word, sense] if sense else silent for sense in options]
        best[word] = options[hits.index(max(hits))]
    return best


def dictionary_translation(sentence: str, dictionary: Mapping[str, str]) -> str:
    """Each word's one translation, in the order of the English words; an unknown word is left out."""
    return "".join(dictionary.get(word, "") for word in split_words(sentence))


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    return float(sacrebleu.corpus_bleu(list(hypotheses), [list(references)], tokenize="zh").score)


def read_split(folder: Path, split: str) -> list[tuple[str, str]]:
    en, zh = ((folder / f"{split}.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "zh"))
    return list(zip(en, zh, strict=True))


class MeanAttention(MultiHeadAttention):
    """Attention whose queries are all zero, so that every position that may be seen weighs the same."""

    def queries(self, x: Tensor) -> Tensor:
        """(B, Q, D) -> (B, H, Q, d), zeros"""
        return torch.zeros_like(super().queries(x))


def mean_attention_bleu(config_file: Path) -> float:
    """Train the configuration's model with `MeanAttention` in a temporary folder; its score on the test set."""
    config = load_config(config_file)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        run = run_named("mean")
        prepared = prepare(config, run, resuming=False, say=print)
        torch.manual_seed(config.training.seed)
        size = prepared.tokenizers.src.vocab_size
        model = Transformer(config.model, size, size)
        for layer in model.decoder:
            mean = MeanAttention(config.model.d_model, config.model.num_heads)
            mean.load_state_dict(layer.cross_attention.state_dict())
            layer.cross_attention = mean
        Trainer(config, run, prepared, Monitor(run.metrics_file), model).run()
        load_weights(model, run.model_file)
        translator = Translator(
            prepared.tokenizers, TorchEngine(model.eval(), prepared.tokenizers), config.decoding, config.data.max_length
        )
        files = config.data.test["test"]
        return bleu(translator.translate(read_lines(files.src)), list(read_lines(files.tgt)))


def main() -> int:
    parser = argparse.ArgumentParser(description="Score translators that the tiny corpus is too hard for.")
    parser.add_argument("--mean", action="store_true", help="train and score the one without cross-attention too")
    args = parser.parse_args()
    data = REPOSITORY / "data" / "tiny"
    test = read_split(data, "test")
    dictionary = best_dictionary(read_split(data, "train"), lexicon_senses(load_grammar()))
    hypotheses = [dictionary_translation(en, dictionary) for en, _ in test]
    print(f"dictionary {bleu(hypotheses, [zh for _, zh in test]):.1f}")
    if args.mean:
        print(f"mean of the source {mean_attention_bleu(REPOSITORY / 'configs' / 'tiny.yaml'):.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
