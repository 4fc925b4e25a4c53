"""Odd input: what is copied instead of translated, and real models on what people type."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nmt
from nmt.config.inference import Copied, DecodingConfig, TokenizerConfig
from nmt.decoding.alignment import WordAligner
from nmt.decoding.hypothesis import Hypothesis, Request
from nmt.decoding.sentences import Part, emoji_apart, is_copied
from nmt.decoding.translator import Translator, as_json
from nmt.errors import RunError
from nmt.runs.folder import open_run
from nmt.tokenizers.tokenizer import SentencePieceTokenizer, Tokenizer, Tokenizers

REPOSITORY = Path(__file__).parents[2]
SHARED_RUN = REPOSITORY.parent / "shared" / "runs" / "multi30k_en_de_6000"
ALL: tuple[Copied, ...] = ("symbols", "addresses", "numbers")


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("😀", {"symbols"}),
        ("👩‍🚀 ❤️ 🇩🇪", {"symbols"}),
        ("---", {"symbols"}),
        ("? ... „“", {"symbols"}),
        ("$ + €", {"symbols"}),
        ("1️⃣", {"numbers"}),
        ("1,234.56", {"numbers"}),
        ("$5 50% 12:30", {"numbers"}),
        ("٣٤ Ⅳ ½", {"numbers"}),
        ("https://example.com/a/b?c=1", {"addresses"}),
        ("(www.example.com).", {"addresses"}),
        ("ftp://x.net, mailto:a.b+c@d-e.co.uk!", {"addresses"}),
        ("https://de.wikipedia.org/wiki/Käse", {"addresses"}),
        ("😀 - https://x.de 5", {"symbols", "addresses", "numbers"}),
        ("a", None),
        ("5 km", None),
        ("(c) 2024", None),
        ("see www.example.com", None),
        ("https:", None),
        ("a@b", None),
        ("例", None),
        ("https://x.com请看", None),
    ],
)
def test_what_is_copied(text: str, kinds: set[Copied] | None) -> None:
    """With exactly these kinds, and not if one of them is missing."""
    assert is_copied(text, ALL) == (kinds is not None)
    for kind in kinds or ():
        assert not is_copied(text, set(ALL) - {kind})
    assert is_copied(text, kinds or ()) == (kinds is not None)


def test_nothing_is_no_copy() -> None:
    assert not is_copied("", ALL)
    assert not is_copied(" \t", ALL)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a dog", ["a dog"]),
        ("😀", ["😀"]),
        ("", [""]),
        ("😀 a dog 😀", ["😀", "a dog", "😀"]),
        ("a dog!👍🏽👍", ["a dog!", "👍🏽👍"]),
        ("✅ done", ["✅", "done"]),
        ("你好😀", ["你好", "😀"]),
        ("I am 👩‍🚀 ❤️", ["I am", "👩‍🚀 ❤️"]),
        ("1️⃣ one 2️⃣", ["1️⃣", "one", "2️⃣"]),
        ("a 😀 dog", ["a 😀 dog"]),
        ("a dog 😀.", ["a dog 😀."]),
        ("- a dog -", ["- a dog -"]),
        ("5 a 5", ["5 a 5"]),
        ("20 °C", ["20 °C"]),
    ],
)
def test_emoji_at_the_ends_are_parts_of_their_own(text: str, parts: list[str]) -> None:
    assert [part.text for part in emoji_apart(Part(text, " "))] == parts


@given(text=st.text(st.sampled_from("ab1.- \t#") | st.sampled_from("😀❤\ufe0f\u200d👩🚀\u20e3"), max_size=20))
def test_nothing_is_lost_where_emoji_are_apart(text: str) -> None:
    whole = Part(text.strip(), " ")
    parts = emoji_apart(whole)
    assert "".join(part.text + part.after for part in parts) == whole.text + " "
    assert all(part.text and part.text == part.text.strip() for part in parts) or parts == [whole]


# --- The translator ----------------------------------------------------------------------------------------


class ShoutingEngine:
    """An engine whose two hypotheses are its source in capitals, with "!"; it records its sources."""

    name = "shouting"
    batches_at_once = 1

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.read: list[str] = []

    def search(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        prefixes: Sequence[Sequence[int]] | None = None,
        *_: object,
    ) -> list[list[Hypothesis]]:
        texts = [self._tokenizer.decode(ids) for ids in sources]
        self.read += texts
        beginnings = [f"{self._tokenizer.decode(prefix)} ".lstrip() for prefix in prefixes or [()] * len(texts)]
        shouted = [
            tuple(self._tokenizer.encode(f"{beginning}{text.upper()}{end}"))
            for beginning, text in zip(beginnings, texts, strict=True)
            for end in ("!", "!!")
        ]
        return [
            [Hypothesis.scored(ids, -float(len(ids)), 1.0) for ids in shouted[index : index + 2]]
            for index in range(0, len(shouted), 2)
        ]

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[-1.0] * (len(ids) + 1) for ids in targets]


@pytest.fixture(scope="module")
def tokenizer() -> SentencePieceTokenizer:
    return SentencePieceTokenizer.train(["a dog runs", "A DOG RUNS!"] * 20, TokenizerConfig(vocab_size=290))


def translator(tokenizer: Tokenizer, max_length: int = 100, **settings: object) -> tuple[Translator, ShoutingEngine]:
    engine = ShoutingEngine(tokenizer)
    decoding = DecodingConfig.model_validate(settings)
    tokenizers = Tokenizers(tokenizer, tokenizer)
    return Translator(tokenizers, engine, decoding, max_length, languages=("en", "de")), engine


def test_copies_are_not_read_by_the_model(tokenizer: SentencePieceTokenizer) -> None:
    lines = ["---", "😀 a dog  😀", "12", "a dog", "https://x.de/a", "", "  ...  "]
    made, engine = translator(tokenizer)
    assert made.translate(lines) == ["---", "😀 A DOG! 😀", "12!", "A DOG!", "https://x.de/a", "", "..."]
    assert sorted(engine.read) == ["12", "a dog", "a dog"]
    made, engine = translator(tokenizer, copied=ALL)
    assert made.translate(["12", "12 a"]) == ["12", "12 A!"]
    made, engine = translator(tokenizer, copied=())
    assert made.translate(["---", "😀 a dog"]) == ["---!", "😀 A DOG!"]


def test_sentences_and_parts_of_a_long_line_are_copied(tokenizer: SentencePieceTokenizer) -> None:
    made, engine = translator(tokenizer)
    text_of_sentences = ["A dog. 😀\n---\n\nhttps://x.de\nA dog 👍 "]
    (text,) = made.translate(text_of_sentences, request=Request(by_sentence=True))
    assert text == "A DOG.! 😀\n---\n\nhttps://x.de\nA DOG! 👍 "
    assert engine.read == ["A dog.", "A dog"]
    dashes = "- " * 20_000
    made, engine = translator(tokenizer, max_length=10)
    assert made.translate([dashes]) == [dashes.strip()]
    assert engine.read == []
    (text,) = made.translate(["a dog runs. " * 4 + "😀"])
    assert text == "A DOG RUNS.! " * 4 + "😀"


def test_a_copy_has_no_score_and_its_words_are_aligned(tokenizer: SentencePieceTokenizer) -> None:
    made, _ = translator(tokenizer)
    copy, mixed = made.stream([["- -", "😀 a dog"]], request=Request(num_scored=2))
    found = json.loads(as_json(copy, 2, tokens=True))
    assert found == {"text": "- -", "score": None, "tokens": [], "log_probs": [], "status": ["copied"], "n_best": []}
    record = json.loads(as_json(mixed, 2))
    assert (record["text"], record["score"]) == ("😀 A DOG!", -1)
    assert [one["text"] for one in record["n_best"]] == ["😀 A DOG!", "😀 A DOG!!"]
    assert record["status"] == ["copied", "translated"]

    def aligned(text: str, src_lang: str, tgt_lang: str) -> tuple[str, int, int]:
        aligner = WordAligner(None, Tokenizers(tokenizer, tokenizer), src_lang, tgt_lang)  # type: ignore[arg-type]
        found = aligner.align_copy(text)
        return str(found), found.num_src_words, found.num_tgt_words

    assert aligned("-- :)", "en", "de") == ("0-0 1-1", 2, 2)
    assert aligned("-- :)", "en", "zh") == ("0-0 0-1 1-2 1-3", 2, 4)
    assert aligned("-- :)", "zh", "en") == ("0-0 2-1", 4, 2)
    assert aligned("", "zh", "en") == ("", 0, 0)


def test_a_prefix_begins_what_is_translated(tokenizer: SentencePieceTokenizer) -> None:
    made, _ = translator(tokenizer)
    found = made.stream([["---", "😀 a dog", "😀 a 👍"]], prefixes=["run", "run", ""])
    assert [one.text for one in found] == ["---", "😀 run A DOG!", "😀 A! 👍"]


# --- The script --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script() -> ModuleType:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(REPOSITORY / "scripts")
        spec = importlib.util.spec_from_file_location("odd_inputs", REPOSITORY / "scripts" / "odd_inputs.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "odd_inputs", module)
        spec.loader.exec_module(module)
    return module


def tiny_pairs() -> list[tuple[str, str]]:
    """The tiny corpus, each sentence with a point, as a corpus that copying translates."""
    lines = (REPOSITORY / "data" / "tiny" / "val.en").read_text(encoding="utf-8").splitlines()
    return [(f"{line}.", f"{line}.") for line in lines]


def cells(text: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows}


def test_a_copying_translator_keeps_everything(script: ModuleType) -> None:
    lines = script.measure(list, tiny_pairs())
    found = cells(script.tables(lines))
    for kind in ("emoji", "number", "URL", "e-mail"):
        assert found[kind] == ["100%"] * 5
    assert found["dashes, punctuation"] == ["10", "100%", "", "0", "0", "0", "0"]
    assert found["one word"] == ["10", "", "", "0", "0", "0", "0"]
    assert found["Title Case"][2] == found["2,000 words"][2] == "100%"
    assert "lines with a fault: 0\n" in script.tables(lines)
    (long,) = [line for line in lines if line.group == "2,000 words"]
    assert 2000 <= len(long.typed.split()) < 2050
    assert {line.typed.count("http://nmt.org/") for line in lines} == {0, 1}


@pytest.mark.parametrize(
    ("typed", "output", "faults"),
    [
        ("woman", "Eine Frau.", []),
        ("woman", "Eine Frau Frau.", ["a word twice"]),
        ("woman", " ", ["empty"]),
        ("a", "a b c a b c a b c", ["a 3-gram three times"]),
        ("ab", "x" * 24, []),
        ("ab", "x" * 25, ["run-away length"]),
        ("你好", "x" * 32, []),
        ("你好", "x" * 33, ["run-away length"]),
    ],
)
def test_each_fault_is_seen(script: ModuleType, typed: str, output: str, faults: list[str]) -> None:
    assert script.Line("a group", typed, output).faults == faults


@pytest.mark.parametrize(
    ("text", "output", "is_there"),
    [
        ("😀", "Ein Hund 😀.", True),
        ("😀", "Ein Hund.", False),
        ("😀", "😀你好", True),
        ("42", "42只狗", True),
        ("42", "Die Nummer 42.", True),
        ("42", "Die Nummer 421", False),
        ("42", "142", False),
        ("42", "3.42", False),
        ("www.x.de", "Siehe www.x.de!", True),
        ("www.x.de", "Siehe www.x.de/a", False),
        ("a@b.de", "xa@b.de", False),
        ("3.5", "3x5", False),
    ],
)
def test_what_comes_through(script: ModuleType, text: str, output: str, is_there: bool) -> None:
    assert script.comes_through(text, output) == is_there


# --- Real models -------------------------------------------------------------------------------------------

ODD = {
    "one word": ["woman", "Dog", "the", "I"],
    "capitals": ["A MAN IS SLEEPING ON A COUCH.", "STOP", "A Man Is Sleeping On A Couch."],
    "emoji": ["😀 a dog 😀", "😀", "A dog 😀 runs.", "👩‍🚀👩‍🚀👩‍🚀", "A dog runs. 😂😂😂😂😂😂😂😂"],
    "addresses": ["https://example.com/a/b?c=1", "Write to john@example.com or see www.example.com/faq.html."],
    "numbers": ["1234", "1,234.56", "3 men and 12 dogs.", "0 " * 50, "9" * 300],
    "dashes": ["---", "- " * 40, "?", "....................", "=" * 500, "*** A dog ***"],
    "another language": ["Un homme dort.", "Две собаки играют в снегу.", "一个女人在街上骑自行车。", "رجل يقرأ كتابا"],
    "no end": ["A man is sleeping on a couch", "Two men and"],
    "repeated": ["dog dog dog dog dog dog dog dog", "ha" * 60, "A dog runs. " * 5],
    "odd characters": ["\u200b", "a\u0000b", "\ufeffdog", "ﬁ ｄｏｇ", "a\tdog", "\ud7ff\ue000", "a" * 1000, "Z̷̡͇a̶l̵g̸o̵"],
    "long": [" ".join(f"A man number {n} is walking a dog, and a woman sees it." for n in range(170))],
}


def check(line: str, output: str) -> None:
    """Nothing empty, no loop that the input does not have, and no run-away length."""
    assert output.strip()
    words = re.findall(r"\w+", output.lower())
    # The sentences of the long line are alike, and so are their translations.
    if len(line.split()) < 200 and not re.search(r"(.{2,})\1\1", line):
        threes = list(zip(words, words[1:], words[2:], strict=False))
        assert all(threes.count(three) < 3 for three in threes), (line, output)
    assert len(output) <= 4 * len(line.encode()) + 60, (line, output)
    if len(line.split()) > 1000:
        assert len(output.encode()) > len(line.encode()) / 3


def convert(run: Path) -> None:
    """Delete the keys of a run of an earlier commit that are named as unknown, as docs/run-folder.md says."""
    file = run / "config.yaml"
    for _ in range(4):
        try:
            open_run(str(run)).config()
            return
        except RunError as error:
            unknown = {int(number) - 1 for number in re.findall(r"config.yaml:(\d+): unknown key", str(error))}
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        for number in sorted(unknown):
            unknown |= {below for below in (number + 1, number + 2) if lines[below].lstrip().startswith("- ")}
        file.write_text("".join(line for number, line in enumerate(lines) if number not in unknown), encoding="utf-8")
    raise AssertionError("keys that are not named with their lines")


@pytest.fixture(scope="module", params=["tiny", "multi30k"])
def real_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run with a CTranslate2 export."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, "-m", "nmt"]
    if request.param == "tiny":
        subprocess.run([*command, "train", str(REPOSITORY / "configs" / "tiny.yaml")], cwd=folder, check=True)
    elif SHARED_RUN.is_dir():
        shutil.copytree(SHARED_RUN, folder / "runs" / "tiny", copy_function=shutil.copyfile)
        convert(folder / "runs" / "tiny")
    else:
        pytest.skip(f"{SHARED_RUN} is not on this machine")
    run = folder / "runs" / "tiny"
    text = folder / "text"
    text.write_text("A dog runs.\n", encoding="utf-8")
    exporting = [*command, "export", "ctranslate2", "--model", str(run), "--quantization", "float32"]
    subprocess.run([*exporting, "--src", str(text), "--ref", str(text)], check=True)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_real_models_survive_odd_input(real_run: Path, engine: str) -> None:
    lines = [line for group in ODD.values() for line in group]
    decoding = (
        open_run(str(real_run)).inference_config().decoding.model_copy(update={"copied": ALL})
    )  # as in the recipes
    for request in (Request(), Request(by_sentence=True)):
        loaded = nmt.load(real_run, device="cpu", engine=engine, decoding=decoding)
        outputs = loaded.translate(lines, request=request)
        assert len(outputs) == len(lines)
        for line, output in zip(lines, outputs, strict=True):
            check(line, output)
            assert "\n" not in output
            if is_copied(line, ALL):
                assert output.split() == line.split()


@pytest.mark.slow
def test_odd_input_on_the_command_line(real_run: Path, tmp_path: Path) -> None:
    lines = [ODD[name][0] for name in ODD if name != "odd characters"]
    file = tmp_path / "odd.txt"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "nmt", "translate", "--model", str(real_run)]
    done = subprocess.run([*command, "--input", str(file)], check=True, capture_output=True)
    outputs = done.stdout.decode().split("\n")
    assert outputs.pop() == ""
    for line, output in zip(lines, outputs, strict=True):
        check(line, output)
    typed = subprocess.run([*command, "😀 a dog 😀"], check=True, capture_output=True).stdout.decode()
    assert re.fullmatch(r"😀 ?[^😀]*\w[^😀]*😀\n", typed)
