"""The Hugging Face model card: huggingface_hub reads back what the run scored."""

from pathlib import Path

import pytest
from conftest import Cli
from huggingface_hub import ModelCard

from nmt.evaluation.metrics import Score
from nmt.interop.model_card import CardFacts, CardScores, model_card


def facts(**changed: object) -> CardFacts:
    values: dict[str, object] = {
        "name": "m", "source": "text", "src_lang": "en", "tgt_lang": "de", "scores": [], "description": "d",
        "usage": "u",
        "training": "t", "limits": "l", **changed,
    }  # fmt: skip
    return CardFacts(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--license", "My Licence"], "--license 'My Licence': give Hugging Face's identifier"),
        (["--license", ""], "--license ''"),
        (["--dataset", "a/b/c"], "--dataset 'a/b/c': give its name on Hugging Face"),
        (["--dataset", "a: b\nc: d"], "--dataset "),
    ],
)
def test_what_cannot_be_an_identifier_is_refused(in_solved: Path, cli: Cli, options: list[str], message: str) -> None:
    code, stdout, stderr = cli("report", "--model", "copy", *options)
    assert (code, stdout) == (2, "")
    assert stderr.startswith(f"nmt: {message}")


def loaded(card: str) -> ModelCard:
    Path("card.md").write_text(card, encoding="utf-8")
    return ModelCard.load("card.md")


def test_a_card_claims_no_licence_and_no_scores_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    card = loaded(model_card(facts()))
    assert card.data.license == "unknown"
    assert card.data.eval_results is None
    assert card.data.datasets is None
    assert "None recorded." in card.text


def test_names_and_languages_of_any_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scores = [CardScores("test: 2016 [a]", "test", {"bleu": Score("BLEU", 38.836, "a|b")})]
    card = loaded(model_card(facts(name="no", src_lang="pt-BR", tgt_lang="zh-Hant", scores=scores)))
    assert card.data.language == ["pt", "zh"]
    assert card.data.to_dict()["language_bcp47"] == ["pt-BR", "zh-Hant"]
    assert card.data.model_name == "no"
    (one,) = card.data.eval_results
    assert (one.dataset_name, one.dataset_type, one.metric_value) == ("test: 2016 [a]", "test-2016-a-", 38.84)


def test_scores_of_training_text_are_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    learned = CardScores("training text", "validation", {"bleu": Score("BLEU", 100.0, "s")})
    card = loaded(model_card(facts(scores=[learned], validates_on_training_text=True)))
    assert (card.data.eval_results, card.data.metrics) == (None, None)
    assert "| training text (validation) | BLEU | 100.00 |" in card.text
    assert "and say nothing about other text." in card.text
    tested = CardScores("test", "test", {"chrf": Score("chrF2", 50.0, "s")})
    card = loaded(model_card(facts(scores=[tested, learned], validates_on_training_text=True)))
    assert [one.metric_type for one in card.data.eval_results] == card.data.metrics == ["chrf"]
