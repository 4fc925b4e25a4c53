"""`nmt config`: the YAML is the default configuration, a key is explained, the schema agrees with the reader."""

import ast
import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
import yaml
from conftest import Cli
from pydantic import BaseModel

from nmt.config import reading
from nmt.config.reading import load_config, to_yaml
from nmt.config.reference import places
from nmt.config.training import Config
from nmt.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parents[2]
SHIPPED = sorted((REPOSITORY / "configs").rglob("*.yaml"))
SCHEMA = REPOSITORY / "configs" / "schema.json"
MINIMAL = """\
data:
  train: {src: train.en, tgt: train.de}
  validation: {src: val.en, tgt: val.de}
training: {max_epochs: 30}
"""


def written(folder: Path, text: str) -> Config:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path)


def classes_of(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in classes_of(part)]


def switched_on(template: str, selector: str) -> str:
    """The template with a variant of a section in the place of the default one."""
    blocks = template.split("\n\n")
    (number,) = [number for number, block in enumerate(blocks) if f"with {selector}:" in block.split("\n")[0]]
    name = re.search(r"^#(\w+):$", blocks[number], re.M)
    assert name
    replaced = [block for block in blocks[:number] if not re.search(rf"^{name[1]}:$", block, re.M)]
    used = re.sub(r"^( *)#(?=\w)", r"\1", blocks[number], flags=re.M)
    return "\n\n".join([*replaced, used, *blocks[number + 1 :]])


def test_the_printed_configuration_is_the_default_one(tmp_path: Path, cli: Cli) -> None:
    code, out, err = cli("config")
    assert (code, err) == (0, "")
    assert written(tmp_path, out) == written(tmp_path, MINIMAL)
    own = {": train.en": ": a/t.cs", ": train.de": ": t.sr", ": val.en": ": v.txt", "30": "7"}
    minimal = MINIMAL
    for old, new in own.items():
        out, minimal = out.replace(old, new), minimal.replace(old, new)
    config = written(tmp_path, out)
    assert config == written(tmp_path, minimal)
    assert (config.data.src_lang, config.data.tgt_lang) == ("cs", "sr")


@pytest.mark.parametrize(
    ("selector", "same_as"),
    [
        ("architecture: rnn", "model: {architecture: rnn}"),
        ("type: vectors", "source: {type: vectors, features: 80}"),
        ("type: images", "source: {type: images}"),
    ],
)
def test_a_section_that_is_switched_off_becomes_its_variants_default(
    tmp_path: Path, cli: Cli, selector: str, same_as: str
) -> None:
    text, minimal = switched_on(cli("config")[1], selector), f"{MINIMAL}{same_as}"
    if selector == "type: images":  # which has more patches than the default length allows
        text = text.replace("  max_length: 128", "  max_length: 256")
        minimal = minimal.replace("data:\n", "data:\n  max_length: 256\n")
    assert written(tmp_path, text) == written(tmp_path, minimal)


def test_every_key_is_printed_below_its_docstring(cli: Cli) -> None:
    text = cli("config")[1]
    assert "None" not in re.findall(r"^ *#?\w+: (\w+)$", text, re.M), "no default and no example in manual.EXAMPLES"
    comments = " ".join(re.findall(r"^ *# (.*)$", text, re.M))
    for section, field in Config.model_fields.items():
        blocks = [block for block in text.split("\n\n") if re.search(rf"^#?{section}:$", block, re.M)]
        sections = classes_of(field.annotation)
        assert len(blocks) == len(sections)
        for one, block in zip(sections, blocks, strict=True):
            assert re.findall(r"^  #?(\w+):", block, re.M) == list(one.model_json_schema()["properties"])
    for name in ("inference", "source", "training"):
        tree = ast.parse((REPOSITORY / "nmt" / "config" / f"{name}.py").read_text(encoding="utf-8"))
        for definition in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            if ast.unparse(definition.bases[0]) == "NamedTuple":  # no section
                continue
            for field, below in zip(definition.body, definition.body[1:], strict=False):
                if not isinstance(field, ast.AnnAssign) or "SkipJsonSchema" in ast.unparse(field.annotation):
                    continue
                assert isinstance(below, ast.Expr)
                assert isinstance(below.value, ast.Constant)
                if (definition.name, ast.unparse(field.target)) != ("InferenceConfig", "data"):  # Config has its own
                    assert " ".join(str(below.value.value).split()) in comments, ast.unparse(field)


def test_a_key_is_explained(cli: Cli) -> None:
    code, rate, err = cli("config", "training.learning_rate")
    assert (code, err) == (0, "")
    assert rate.startswith("training.learning_rate\n  type: number, above 0\n  default: 0.001\n  Peak ")
    schedule = cli("config", "training.schedule")[1]
    assert "\n  type: inverse_sqrt, cosine, linear or constant\n  default: inverse_sqrt\n" in schedule
    rates = cli("config", "model.dropout")[1]
    assert re.findall(r"^model\.dropout \(with architecture: (\w+)\)$", rates, re.M) == ["transformer", "rnn"]
    assert re.findall(r"^  default: (.*)$", rates, re.M) == ["0.1", "0.2"]
    assert cli("config", "model.tie_embeddings")[1].startswith("model.tie_embeddings\n  type: all, decoder or none\n")
    assert "\n  default: depends on other keys\n" in cli("config", "data.src_lang")[1]
    files = cli("config", "data.train")[1]
    first, *inside = re.findall(r"^data\S+$", files, re.M)
    assert first == "data.train"
    assert {"data.train.src", "data.train.tgt", "data.train.weight"} <= set(inside)
    defaults = re.findall(r"^  default: (.*)$", files, re.M)
    assert defaults[0] == "none; it is required"
    assert defaults[inside.index("data.train.weight") + 1] == "1.0"
    assert cli("config", "data.test.NAME.tgt")[1].startswith("data.test.NAME.tgt\n  type: a file's path or null\n")


def test_a_section_is_explained(cli: Cli) -> None:
    code, out, _ = cli("config", "evaluation")
    assert code == 0
    assert out.startswith("evaluation\n  Scoring of translations.\n\nevaluation.metrics\n")
    assert "  type: null or list; each item: bleu, chrf, chrf++ or ter\n" in out  # the list may be null, no item
    keys = ["metrics", "bleu_tokenizer", "validation_beam_size", "report"]
    assert re.findall(r"^evaluation\S*$", out, re.M) == ["evaluation", *(f"evaluation.{key}" for key in keys)]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("training.learning_rat", "did you mean training.learning_rate"),
        ("learning_rate", "did you mean training.learning_rate?"),
        ("decoding.learning_rate", "did you mean training.learning_rate?"),
        ("model.nheads", "did you mean model.num_heads"),
        ("batch_tokens", "did you mean decoding.batch_tokens or training.batch_tokens?"),
        ("training.batch_token", "did you mean training.batch_tokens, training.update_tokens"),
        ("traning", "did you mean training"),
        (
            "qqqq",
            "did you mean data, source, tokenizer, model, decoding, augmentation, training, evaluation or export?",
        ),
    ],
)
def test_an_unknown_key_gets_the_nearest_names(cli: Cli, key: str, meant: str) -> None:
    code, out, err = cli("config", key)
    assert (code, out) == (2, "")
    assert err.startswith(f"nmt: {key}: there is no such key; {meant}"), err
    assert err.count("\n") == 1


# ------------------------------------------------------------------------------------------- the schema


def values_in(text: str) -> Any:
    """What an editor sees in a file."""
    return yaml.load(text, Loader=reading._Loader)


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_is_printed_and_not_stale(cli: Cli) -> None:
    code, out, err = cli("config", "--json-schema")
    assert (code, err) == (0, "")
    assert out == SCHEMA.read_text(encoding="utf-8"), "run scripts/make_reference.py"
    assert cli("config", "training", "--json-schema")[0] == 2


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_configuration_is_valid_and_its_first_line_points_to_the_schema(
    validator: jsonschema.Draft202012Validator, path: Path
) -> None:
    text = path.read_text(encoding="utf-8")
    validator.validate(values_in(text))
    first = text.split("\n")[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (path.parent / first.partition("$schema=")[2]).resolve() == SCHEMA


def described(schema: Any) -> Iterator[tuple[str, Any]]:
    """Every property in a schema, by name."""
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from described(part)
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        yield from schema["properties"].items()


def test_an_editor_gets_a_description_of_every_key_and_no_noise() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    properties = list(described(schema))
    assert len(properties) > 100
    assert [name for name, part in properties if not part.get("description")] == []
    definitions = schema["$defs"].values()
    assert all(one["additionalProperties"] is False for one in (schema, *definitions))
    assert not re.search(r'"(discriminator|format)"', json.dumps(schema))
    assert json.dumps(schema).count('"title"') == 1
    rate = schema["$defs"]["TrainingConfig"]["properties"]["learning_rate"]
    assert (rate["type"], rate["exclusiveMinimum"], rate["default"]) == ("number", 0, 0.001)
    assert schema["$defs"]["TokenizerConfig"]["properties"]["type"]["enum"][:4] == ["bpe", "unigram", "char", "word"]


# Each is a change of MINIMAL; what the schema says of it must be what `nmt train` says.
CHANGES = [
    ("training", {"max_steps": 10, "schedule": "cosine", "warmup_steps": 5}, True),
    ("training", {"max_steps": None, "max_epochs": 1}, True),
    ("training", {"max_epochs": 1, "batch_tokens": "auto", "update_tokens": 5000}, True),
    ("training", {"max_epochs": 0}, False),
    ("training", {"max_epochs": 1, "batch_tokens": "all"}, False),
    ("training", {"max_epochs": 1, "schedule": "cosinus"}, False),
    ("training", {"max_epochs": 1, "device": "cuda:1"}, True),
    ("training", {"max_epochs": 1, "device": "tpu"}, False),
    ("training", {"max_epochs": 1, "epochs": 1}, False),
    ("training", None, False),
    ("modle", {}, False),
    ("model", {}, True),
    ("model", {"d_model": 128, "norm": "post"}, True),
    ("model", {"architecture": "transformer", "d_ff": 64}, True),
    ("model", {"architecture": "rnn", "cell": "lstm"}, True),
    ("model", {"cell": "lstm"}, False),
    ("model", {"architecture": "rnn", "d_ff": 64}, False),
    ("model", {"architecture": "cnn"}, False),
    ("model", {"dropout": 1.0}, False),
    ("source", {"type": "vectors", "features": 80}, True),
    ("source", {"type": "vectors"}, False),
    ("source", {"features": 80}, False),
    ("source", {"type": "text"}, True),
    ("source", {}, True),
    ("evaluation", {"metrics": ["bleu"]}, True),
    ("evaluation", {"metrics": []}, False),
    ("evaluation", {"metrics": ["comet"]}, False),
    ("decoding", {"beam_size": 0}, False),
    ("data.src_lang", "de", True),
    ("data.train", [{"src": "a.en", "tgt": "a.de"}, {"src": "b.en", "tgt": "b.de", "weight": 2}], True),
    ("data.train", [{"src": "a.en", "tgt": "a.de"}, {"src": "b.en", "tgt": "b.de", "replayed": True}], True),
    ("data.train", [], False),
    ("data.train", {"src": "a.en"}, False),
    ("data.train", {"src": "a.en", "tgt": "a.de", "wieght": 2}, False),
    ("data.test", {"src": "a.en", "tgt": "a.de"}, True),
    ("data.test", {"one": {"src": "a.en", "tgt": "a.de"}, "two": {"src": "b.en", "tgt": "b.de"}}, True),
    ("data.test", {"one": {"src": "a.en"}}, False),
    ("data.validation", None, False),
]


@pytest.mark.parametrize(("path", "value", "is_valid"), CHANGES, ids=lambda value: str(value)[:50])
def test_the_schema_agrees_with_the_parser(
    tmp_path: Path, validator: jsonschema.Draft202012Validator, path: str, value: object, is_valid: bool
) -> None:
    values = copy.deepcopy(values_in(MINIMAL))
    *above, key = path.split(".")
    place = values[above[0]] if above else values
    place[key] = value
    assert validator.is_valid(values) is is_valid
    try:
        written(tmp_path, yaml.safe_dump(values))
    except ConfigError:
        assert not is_valid
    else:
        assert is_valid


def test_what_nmt_writes_itself_is_read_and_not_shown(tmp_path: Path) -> None:
    """The layout of an imported model, and which corpora are replayed: in config.yaml where they matter."""
    text = "data: {{train: {{src: a.en, tgt: a.de{}}}}}\nmodel: {{d_model: 32{}}}\ntraining: {{max_steps: 1}}\n"
    path = tmp_path / "run.yaml"
    path.write_text(text.format(", replayed: true", ", layout: marian"))
    config = load_config(path)
    assert (config.data.train[0].replayed, config.model.model_dump()["layout"]) == (True, "marian")
    path.write_text(to_yaml(config))
    assert load_config(path) == config
    path.write_text(text.format("", ""))
    assert not {"replayed", "layout"} & {word.strip(" :") for word in re.findall(r"\w+:", to_yaml(load_config(path)))}
    paths = {place.path for place in places()}
    assert "model.positions" in paths
    assert not paths & {"model.layout", "data.train.replayed"}
    assert "layout" not in SCHEMA.read_text(encoding="utf-8")
    path.write_text(text.format("", ", laout: marian"))
    with pytest.raises(ConfigError, match=r"unknown key model\.laout(?!.*layout)"):
        load_config(path)
