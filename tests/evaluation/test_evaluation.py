"""Scores: the same as those of sacreBLEU's command, with its tokenizers, signatures and refusals."""

import json
import random
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.tokenizers import tokenizer_ja_mecab, tokenizer_ko_mecab, tokenizer_spm
from test_training import trained

from nmt.config.inference import TokenizerConfig
from nmt.config.reading import load_config
from nmt.config.training import EvaluationConfig, Metric
from nmt.corpora.pairs import Side
from nmt.errors import ConfigError, DataError, MissingExtraError, RunError
from nmt.evaluation.evaluate import evaluate_file, read_test_set, reference_language
from nmt.evaluation.metrics import make_metrics, metric_names, score
from nmt.runs.folder import run_named
from nmt.runs.history import HIGHER_IS_BETTER
from nmt.tokenizers.tokenizer import SentencePieceTokenizer
from nmt.training.preparation import prepare

WriteLines = Callable[[str, list[str]], Path]
ALL: tuple[Metric, ...] = ("bleu", "chrf", "ter")

SENTENCES = {
    "de": [
        "Ein kleiner Hund läuft über die grüne Wiese, und niemand sieht ihm zu.",
        "»Wie spät ist es?«, fragte sie; er wusste es nicht.",
        "Zwei Männer in blauen Jacken reparieren 3.500 Räder für 12,50 €.",
        "Das Mädchen hält den Ball fest.",
    ],
    "zh": [
        "一只小狗跑过绿色的草地，没有人看着它。",
        "“现在几点了？”她问；他不知道。",
        "两个穿蓝色夹克的男人用12.50欧元修理了3500辆自行车。",
        "那个女孩紧紧地抓住了BBC的球。",
    ],
    "ja": [
        "小さな犬が緑の草原を走り、誰もそれを見ていません。",
        "「今何時ですか」と彼女は尋ねたが、彼は知らなかった。",
        "青いジャケットを着た二人の男性が自転車を修理しています。",
        "その女の子はボールをしっかり持っている。",
    ],
    "ko": [
        "작은 개가 푸른 풀밭을 달리고 아무도 그것을 보지 않는다.",
        "그녀는 지금 몇 시냐고 물었지만 그는 몰랐다.",
        "파란 재킷을 입은 두 남자가 자전거를 수리하고 있습니다.",
        "그 소녀는 공을 꽉 잡고 있다.",
    ],
}
TOKENIZERS = {"de": "13a", "zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}


def corrupted(lines: list[str], seed: int) -> list[str]:
    """The lines as a bad translator might produce them, with some words or characters dropped, doubled or moved."""
    chance = random.Random(seed)
    result = []
    for line in lines:
        separator = " " if " " in line else ""
        units = line.split(" ") if separator else list(line)
        for _ in range(chance.randint(0, 3)):
            place = chance.randrange(len(units))
            unit = units.pop(place)
            kept = chance.choice([[], [unit, unit]])
            units[place:place] = kept
            units.insert(chance.randrange(len(units) + 1), unit)
        result.append(separator.join(units))
    return result


def sides(paths: list[Path]) -> list[Side]:
    return [Side(path) for path in paths]


def sacrebleu_command(hypotheses: Path, references: list[Path], *options: str) -> dict[str, dict[str, Any]]:
    """The output of sacreBLEU's command, by the metric's name."""
    command = [sys.executable, "-m", "sacrebleu", *map(str, references), "-i", str(hypotheses), *options]
    shown = subprocess.run(
        [*command, "-m", "bleu", "chrf", "ter", "--format", "json", "-w", "6"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {result["name"]: result for result in json.loads(shown.stdout)}


@pytest.mark.parametrize("language", ["de", "zh", "ja", "ko"])
@pytest.mark.parametrize("num_references", [1, 2])
def test_scores_and_signatures_agree_with_sacrebleus_command(
    write_lines: WriteLines, language: str, num_references: int
) -> None:
    truth = SENTENCES[language] * 5
    hypotheses = write_lines(f"hyp.{language}", corrupted(truth, seed=1))
    references = [
        write_lines(f"ref{number}.{language}", corrupted(truth, seed=10 + number)) for number in range(num_references)
    ]
    # sacreBLEU's TER expects words separated by spaces, which Chinese and Japanese do not have.
    by_character = ["--ter-normalized", "--ter-asian-support"] if language in ("zh", "ja") else []
    shown = sacrebleu_command(hypotheses, references, "-l", f"en-{language}", *by_character)

    scores = evaluate_file(hypotheses, sides(references), make_metrics(ALL, language)).scores
    assert list(scores) == list(ALL)
    for ours, name in ((scores["bleu"], "BLEU"), (scores["chrf"], "chrF2"), (scores["ter"], "TER")):
        assert ours.name == name
        assert 5 < ours.value < 95  # not an extreme, where every way of counting agrees
        assert round(ours.value, 6) == shown[name]["score"]
        assert ours.signature == shown[name]["signature"]
    assert f"tok:{TOKENIZERS[language]}" in scores["bleu"].signature
    assert f"nrefs:{num_references}" in scores["bleu"].signature


def test_the_tokenizer_of_the_language_makes_a_difference() -> None:
    truth, guess = SENTENCES["zh"], corrupted(SENTENCES["zh"], seed=2)
    values = {
        language: score(make_metrics(["bleu"], language), guess, [truth])["bleu"].value for language in ("zh", "de")
    }
    assert values["zh"] > values["de"] + 10


@pytest.mark.parametrize("language", ["en", "fr", "xx", ""])
def test_a_language_without_a_tokenizer_of_its_own_is_cut_by_13a(language: str) -> None:
    scores = score(make_metrics(["bleu"], language), ["a b c d e"], [["a b c d e"]])
    assert "|tok:13a|" in scores["bleu"].signature
    assert scores["bleu"].value == pytest.approx(100)


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        *((code, "zh") for code in ("zh", "zho", "cmn", "zh-Hant", "zh-CN", "cmn-Hans")),
        *((code, "char") for code in ("th", "tha", "lo", "km", "khm", "my", "mya", "bo", "yue", "zh-yue", "yue-Hant")),
        *((code, "ja-mecab") for code in ("ja", "jpn", "ja-JP")),
        *((code, "ko-mecab") for code in ("ko", "kor", "ko-KR")),
        *((code, "13a") for code in ("hsb", "pt-BR", "sr-Latn", "vi", "hi", "zh-Latn", "ja-Latn", "th-Latn", "kau")),
    ],
)
def test_bleus_tokenizer_follows_language_and_script(language: str, tokenizer: str) -> None:
    scores = score(make_metrics(["bleu"], language), ["a b c d e"], [["a b c d e"]])
    assert f"|tok:{tokenizer}" in scores["bleu"].signature


def test_bleu_of_thai_sees_that_a_word_is_wrong(write_lines: WriteLines) -> None:
    """By characters, as sacreBLEU's command counts; with 13a, a line with one wrong word scores 0."""
    truth = ["แมวดำนอนอยู่บนเสื่อสีแดง", "วันนี้อากาศดีมาก"]
    hypotheses = write_lines("hyp.th", [truth[0].replace("ดำ", "ขาว"), truth[1]])
    references = [write_lines("ref.th", truth)]
    ours = evaluate_file(hypotheses, sides(references), make_metrics(["bleu"], "th")).scores["bleu"]
    shown = sacrebleu_command(hypotheses, references, "-tok", "char")["BLEU"]
    assert (round(ours.value, 6), ours.signature) == (shown["score"], shown["signature"])
    assert 60 < ours.value < 99
    assert evaluate_file(hypotheses, sides(references), make_metrics(["bleu"], "th", "13a")).scores["bleu"].value == 0


@pytest.mark.parametrize(
    ("language", "has_ter"),
    [
        *((code, False) for code in ("th", "lo", "km", "my", "bo")),
        *((code, True) for code in ("de", "zh", "ja", "yue", "ko", "th-Latn")),
    ],
)
def test_ter_is_no_default_where_it_counts_a_sentence_as_a_word(
    write_lines: WriteLines, cli: Cli, language: str, has_ter: bool
) -> None:
    assert ("ter" in metric_names(EvaluationConfig(), language)) == has_ter
    if language != "th":
        return
    hyp, ref = write_lines("hyp.th", ["แมวดำนอน"]), write_lines("ref.th", ["แมวขาวนอน"])
    command = ["eval", "--hyp", str(hyp), "--ref", str(ref), "--tgt-lang", "th", "--json"]
    assert list(json.loads(cli(*command)[1])["scores"]) == ["bleu", "chrf"]
    (asked,) = json.loads(cli(*command, "--metric", "ter")[1])["scores"].values()
    assert asked["value"] == 100  # one word, and it is wrong


def test_training_and_eval_use_the_chosen_tokenizer(
    copy_task: Path, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    char = "evaluation.bleu_tokenizer=char"
    for settings, tokenizer in (([], "13a"), (["data.tgt_lang=th"], "char"), ([char], "char")):
        config = load_config(copy_task, settings)
        prepared = prepare(config, run_named("none"), resuming=False)
        assert f"|tok:{tokenizer}|" in score(prepared.metrics, ["a b c d"], [["a b c d"]])["bleu"].signature
    trained(copy_task, "run", char, "training.max_steps=1")
    assert "BLEU's tokenizer is char, for de" in capsys.readouterr().err
    for options, tokenizer in (([], "char"), (["--bleu-tokenizer", "13a"], "13a")):
        assert f"|tok:{tokenizer}|" in cli("eval", "--model", "run", *options)[1]
        scored = cli("eval", "--hyp", "test.en", "--ref", "test.de", "--tgt-lang", "km", *options)[1]
        assert f"|tok:{tokenizer}|" in scored
    with pytest.raises(RunError, match=r"evaluation\.bleu_tokenizer"):  # the best so far was chosen with another
        trained(copy_task, "run", "training.max_steps=2")


def test_flores200_is_only_on_request_and_says_plainly_that_it_cannot_be_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*arguments: Any, **options: Any) -> Any:
        raise urllib.error.URLError("Temporary failure in name resolution")

    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", offline)
    with pytest.raises(ConfigError, match=r"(?s)flores200 needs a model that .*name resolution.*use `char`"):
        make_metrics(["bleu"], "th", "flores200")

    # Once it is installed: the pieces are BLEU's words.
    lines = SENTENCES["de"] * 5
    tokenizer = SentencePieceTokenizer.train(lines, TokenizerConfig(vocab_size=400))
    (tmp_path / "models" / "flores200sacrebleuspm").write_bytes(tokenizer.model or b"")
    guess = corrupted(lines, seed=3)
    ours = score(make_metrics(["bleu"], "de", "flores200"), guess, [lines])["bleu"]
    in_pieces = [[" ".join(tokenizer.pieces(tokenizer.encode(line))) for line in side] for side in (guess, lines)]
    expected = BLEU(tokenize="none", force=True).corpus_score(in_pieces[0], [in_pieces[1]])
    assert ours.value == pytest.approx(expected.score)
    assert "|tok:flores200|" in ours.signature


def test_a_second_reference_can_only_help(write_lines: WriteLines) -> None:
    hypotheses = write_lines("hyp.de", SENTENCES["de"])
    far = write_lines("far.de", corrupted(SENTENCES["de"], seed=5))
    near = write_lines("near.de", SENTENCES["de"])
    alone = evaluate_file(hypotheses, sides([far]), make_metrics(ALL, "de")).scores
    together = evaluate_file(hypotheses, sides([far, near]), make_metrics(ALL, "de")).scores
    assert alone["bleu"].value < together["bleu"].value == pytest.approx(100)
    assert alone["chrf"].value < together["chrf"].value == pytest.approx(100)
    assert alone["ter"].value > together["ter"].value == 0
    assert HIGHER_IS_BETTER == {"bleu": True, "chrf": True, "chrf++": True, "ter": False, "loss": False}


def test_a_hypothesis_may_be_empty_and_hold_what_is_no_line_end(write_lines: WriteLines) -> None:
    hypotheses = write_lines("hyp.de", ["", "eins zwei drei\u2028vier fünf"])
    references = write_lines("ref.de", ["gar nichts", "eins zwei drei\u2028vier fünf"])
    result = evaluate_file(hypotheses, sides([references]), make_metrics(ALL, "de"))
    assert result.hypotheses == ["", "eins zwei drei\u2028vier fünf"]
    assert 0 < result.scores["bleu"].value < 100


@pytest.mark.parametrize(("hypothesis_count", "reference_count"), [(3, 2), (2, 3), (1, 1500), (2, 0)])
def test_files_that_differ_in_length_are_refused_by_name_and_count(
    write_lines: WriteLines, hypothesis_count: int, reference_count: int
) -> None:
    hypotheses = write_lines("hyp.de", ["a"] * hypothesis_count)
    good = write_lines("good.de", ["a"] * hypothesis_count)
    bad = write_lines("bad.de", ["a"] * reference_count)
    with pytest.raises(DataError) as caught:
        evaluate_file(hypotheses, sides([good, bad]), make_metrics(["chrf"], "de"))
    assert f"{hypotheses} has {hypothesis_count:,} lines, {bad} has {reference_count:,};" in str(caught.value)


def test_an_empty_test_set_is_refused(write_lines: WriteLines) -> None:
    empty = write_lines("hyp.de", [])
    with pytest.raises(DataError) as caught:
        read_test_set(Side(empty), [Side(empty)])
    assert str(caught.value) == f"{empty} is empty"


@pytest.mark.parametrize(("language", "module"), [("ja", tokenizer_ja_mecab), ("ko", tokenizer_ko_mecab)])
def test_a_language_whose_package_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, language: str, module: object
) -> None:
    monkeypatch.setattr(module, "MeCab", None)
    with pytest.raises(MissingExtraError) as caught:
        make_metrics(ALL, language)
    assert f"scripts/install {language}, or pip install '.[{language}]'" in str(caught.value)
    assert list(make_metrics(["chrf", "ter"], language)) == ["chrf", "ter"]  # these two need no package


def test_the_language_is_the_given_one_or_the_runs() -> None:
    assert reference_language("zh", "de") == "zh"
    assert reference_language(None, "de") == "de"
    with pytest.raises(ConfigError, match=r"is not known; add --tgt-lang"):
        reference_language(None, "")
    assert reference_language("zh-hant", "de") == "zh-Hant"
    with pytest.raises(ConfigError, match=r"did you mean zh"):
        reference_language("cn", "de")
