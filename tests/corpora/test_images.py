"""Sources that are images against loops over their pixels, and bad images as one message each."""

import base64
import hashlib
import importlib.util
import io
import itertools
import json
import math
import re
import struct
import sys
import zlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from numpy.typing import NDArray
from PIL import Image

import nmt.insight.report_output
from nmt.batches.dataset import encode_corpus
from nmt.config.corpus import CorpusFiles
from nmt.config.inference import TransformerConfig
from nmt.config.reading import load_config
from nmt.config.source import ImageSource
from nmt.corpora.vectors import open_vectors, patches
from nmt.decoding.beam_search import Node, SearchTree
from nmt.decoding.torch_engine import load_torch_engine
from nmt.errors import ConfigError, DataError, MissingExtraError
from nmt.insight.attention import AttentionMaps, Picture
from nmt.insight.attention_output import write_page
from nmt.insight.explanation import Candidate, Explanation, Step
from nmt.models.embeddings import VectorLayer, sinusoidal_positions
from nmt.models.source import source_of
from nmt.models.transformer import Transformer
from nmt.runs.folder import open_run
from nmt.tokenizers.tokenizer import Tokenizers, WordTokenizer, load_tokenizers
from nmt.tokenizers.vocabulary import OWN_SPECIAL_IDS, SPECIAL_PIECES
from tests.browser import Browser
from tests.conftest import Cli, unread_tokenizer

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = ImageSource(type="images", image_size=8, patch_size=4)
Pixels = NDArray[np.uint8]


def pixels_of(seed: int, size: int = 8) -> Pixels:
    """A random picture (size, size, 3)."""
    return np.random.default_rng(seed).integers(256, size=(size, size, 3), dtype=np.uint8)


def write_list(folder: Path, *pictures: Pixels) -> Path:
    """Pictures in a folder of their own, and their list."""
    (folder / "pictures").mkdir(exist_ok=True)
    names = [f"pictures/{number}.png" for number in range(len(pictures))]
    for name, picture in zip(names, pictures, strict=True):
        Image.fromarray(picture).save(folder / name)
    path = folder / "images.txt"
    path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    return path


# --- Reading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "patch"), [(8, 4), (6, 2), (5, 5), (4, 1)])
def test_patches_are_the_pixels_row_by_row(size: int, patch: int) -> None:
    picture, grid = pixels_of(0, size), size // patch
    found = patches(picture, patch)
    assert found.shape == (grid * grid, patch * patch * 3)
    for row, column, colour in itertools.product(range(size), range(size), range(3)):
        number = row // patch * grid + column // patch
        place = (row % patch * patch + column % patch) * 3 + colour
        assert found[number, place] == picture[row, column, colour]


def test_a_list_is_read_relative_to_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_list(tmp_path, pixels_of(1), pixels_of(2))
    monkeypatch.chdir("/")
    for number, found in enumerate(open_vectors(path, SOURCE).read()):
        np.testing.assert_array_equal(found, patches(pixels_of(number + 1), 4))


def test_an_image_of_any_kind_is_scaled_turned_upright_and_made_rgb(tmp_path: Path) -> None:
    grey = np.full((20, 30), 77, dtype=np.uint8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(pixels_of(0)).convert("P").save(tmp_path / "palette.gif")
    lying = np.zeros((40, 20, 3), dtype=np.uint8)
    lying[:20] = 200  # bright above; EXIF says that it is turned by a half, so bright below
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.fromarray(lying).save(tmp_path / "lying.jpg", exif=exif, quality=100)
    path = tmp_path / "images.txt"
    path.write_text("grey.png\npalette.gif\nlying.jpg\n", encoding="utf-8")
    grey_one, palette, upright = open_vectors(path, SOURCE).read()
    assert (grey_one == 77).all()
    assert palette.shape == (4, 48)
    assert upright[:2].mean() < 20
    assert upright[2:].mean() > 180


def test_a_model_reads_numbers_from_minus_one_to_one(tmp_path: Path) -> None:
    path = write_list(tmp_path, pixels_of(3))
    (found,) = open_vectors(path, SOURCE).read()
    source = source_of([found], OWN_SPECIAL_IDS)
    np.testing.assert_allclose(source.values[0].numpy(), patches(pixels_of(3), 4) / 127.5 - 1, atol=1e-6)


def test_a_corpus_holds_the_patches_and_depends_on_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    unread_tokenizer(Path("tokenizer"))
    words = Tokenizers(*[WordTokenizer([*SPECIAL_PIECES, "a"])] * 2)
    files = CorpusFiles(src=write_list(tmp_path, pixels_of(1), pixels_of(2)), tgt=tmp_path / "tgt.de")
    files.tgt.write_text("a\na a\n", encoding="utf-8")
    first = encode_corpus([files], words, Path("tokenizer"), 10, source=SOURCE)
    values, lengths = first.src.gather(np.array([1, 0]))
    assert values.dtype == np.uint8
    np.testing.assert_array_equal(values, np.concatenate([patches(pixels_of(2), 4), patches(pixels_of(1), 4)]))
    assert lengths.tolist() == [4, 4]
    write_list(tmp_path, pixels_of(1), pixels_of(9))
    second = encode_corpus([files], words, Path("tokenizer"), 10, source=SOURCE)
    np.testing.assert_array_equal(second.src[1], patches(pixels_of(9), 4))
    smaller = SOURCE.model_copy(update={"patch_size": 2})
    assert encode_corpus([files], words, Path("tokenizer"), 20, source=smaller).src.lengths.tolist() == [16, 16]


def bomb() -> bytes:
    """A PNG file of a hundred bytes that says it has ten billion pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def broken() -> bytes:
    picture = Path(REPOSITORY / "tests" / "conftest.py").read_bytes()[:5000]
    return b"\xff\xd8\xff\xe0" + picture


BAD_IMAGES = {
    "text": (b"a red circle\n", "is not an image"),
    "nothing": (b"", "is not an image"),
    "a drawing program": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "is not an image"),
    "half an image": (b"half", "cannot be read as an image"),
    "a bomb": (bomb(), "has more than 89,478,485 pixels"),
    "broken": (broken(), "is not an image|cannot be read as an image"),
}


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_a_bad_image_is_a_message_with_the_lists_line(tmp_path: Path, name: str) -> None:
    path = write_list(tmp_path, pixels_of(1), pixels_of(2, 64), pixels_of(3))
    content, message = BAD_IMAGES[name]
    bad = tmp_path / "pictures" / "1.png"
    bad.write_bytes(bad.read_bytes()[:5000] if name == "half an image" else content)
    with pytest.raises(DataError, match=rf"images.txt:2: .*1.png: .*({message})"):
        open_vectors(path, SOURCE).read()


def test_a_missing_image_an_empty_line_and_a_folder_are_one_message(tmp_path: Path) -> None:
    path = write_list(tmp_path, pixels_of(1), pixels_of(2))
    (tmp_path / "pictures" / "1.png").unlink()
    with pytest.raises(DataError, match=r"images.txt:2: .*1.png: no such file"):
        open_vectors(path, SOURCE).read()
    path.write_text("pictures/0.png\n\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"images.txt:2: is empty"):
        open_vectors(path, SOURCE)
    with pytest.raises(DataError, match="is a folder; name a list of images"):
        open_vectors(tmp_path, SOURCE)
    with pytest.raises(DataError, match="no such file"):
        open_vectors(tmp_path / "none.txt", SOURCE)


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_list(tmp_path, pixels_of(1))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"needs Pillow: .*image"):
        open_vectors(path, SOURCE).read()


# --- The first layer -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("grid", "d_model"), [(1, 4), (3, 8), (7, 20)])
def test_positions_in_two_dimensions_are_those_of_the_row_and_of_the_column(grid: int, d_model: int) -> None:
    found = sinusoidal_positions(grid**2, d_model, "sinusoidal_2d")
    half = d_model // 2
    for row, column, i in itertools.product(range(grid), range(grid), range(0, half, 2)):
        for place, start in ((row, 0), (column, half)):
            angle = place / 10000 ** (i / half)
            at = found[row * grid + column, start + i : start + i + 2]
            assert at.tolist() == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)


def test_the_first_layer_adds_a_patchs_position_in_the_picture() -> None:
    layer = VectorLayer(SOURCE, d_model=8, max_positions=20, dropout=0.0).eval()
    values = torch.randn(1, 4, 48)
    expected = layer.norm(layer.linear(values)) + sinusoidal_positions(4, 8, "sinusoidal_2d")
    source = source_of([values[0].numpy()], OWN_SPECIAL_IDS)
    torch.testing.assert_close(layer(source).values, expected)
    learned = VectorLayer(SOURCE.model_copy(update={"positions": "learned"}), 8, 20, 0.0)
    assert learned.positions.table.shape == (4, 8)
    assert isinstance(learned.positions.table, torch.nn.Parameter)


def test_the_convolutions_read_the_picture_that_the_patches_are_of() -> None:
    source = ImageSource(type="images", image_size=16, patch_size=4, convolution=True)
    stem = VectorLayer(source, d_model=8, max_positions=20, dropout=0.0).stem
    assert stem is not None
    picture = pixels_of(4, 16)
    image = torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 127.5 - 1  # (1, 3, 16, 16)
    first, second = stem.convolutions  # 4 pixels: two halvings
    expected = second(torch.nn.functional.gelu(first(image)))  # (1, 8, 4, 4)
    given = source_of([patches(picture, 4)], OWN_SPECIAL_IDS)
    values, mask = stem(*given[:2])
    assert mask.all()
    for row, column in itertools.product(range(4), range(4)):
        torch.testing.assert_close(values[0, 4 * row + column], expected[0, :, row, column])


@pytest.mark.parametrize("convolution", [True, False])
def test_images_in_a_batch_give_what_they_give_alone(small_config: TransformerConfig, convolution: bool) -> None:
    source = SOURCE.model_copy(update={"convolution": convolution})
    model = Transformer(small_config, 14, 14, source).eval()
    rows, tgt_in = [patches(pixels_of(seed), 4) for seed in range(3)], torch.tensor([[1, 4, 5]] * 3)
    together = model(source_of(rows, OWN_SPECIAL_IDS), tgt_in)
    for number, row in enumerate(rows):
        alone = model(source_of([row], OWN_SPECIAL_IDS), tgt_in[:1])
        torch.testing.assert_close(together[number], alone[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together[0], together[1], atol=1e-3)


# --- The configuration and the command line --------------------------------------------------------------

IMAGE_TASK = """\
data:
  train: {src: images.txt, tgt: train.de}
  validation: {src: images.txt, tgt: train.de}
source: {type: images, image_size: 8, patch_size: 4}
tokenizer: {type: word, vocab_size: 14}
model: {d_model: 16, num_heads: 2, d_ff: 16, num_encoder_layers: 0, num_decoder_layers: 1}
training: {max_steps: 1, batch_tokens: 400, device: cpu, threads: 1, processes: 1}
evaluation: {report: false}
export: {after_training: []}
"""


def write_image_task(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six pictures, each with its number twice, in a folder that becomes the current one."""
    monkeypatch.chdir(folder)
    write_list(folder, *(pixels_of(seed) for seed in range(6)))
    Path("train.de").write_text("".join(f"{number} {number}\n" for number in range(6)), encoding="utf-8")
    Path("images.yaml").write_text(IMAGE_TASK, encoding="utf-8")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("source.patch_size=3", r"image_size \(8\) must be a multiple of source.patch_size \(3\)"),
        ("source={type: images, patch_size: 1, image_size: 8, convolution: true}", "patch_size of 2, 4, 8"),
        ("data.max_length=3", r"4 patches of source.patch_size 4, more than data.max_length \(3\)"),
        ("model.d_model=18", r"d_model \(18\) must be a multiple of 4 for source.positions"),
        ("source.features=4", "unknown key source.features"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(tmp_path: Path, setting: str, message: str) -> None:
    path = tmp_path / "images.yaml"
    text = IMAGE_TASK
    if setting.startswith("source={"):
        text = text.replace("{type: images, image_size: 8, patch_size: 4}", setting.removeprefix("source="))
        setting = "data.src_lang=zxx"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_config(path, [setting])


@pytest.mark.slow
def test_images_through_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    write_image_task(tmp_path, monkeypatch)
    code, _, err = cli("train", "images.yaml")
    assert code == 0, err
    assert "the sources are images of 8 pixels in patches of 4" in err
    code, _, err = cli("translate", "--input", "images.txt", "--output", "out.de")
    assert code == 0, err
    assert len(Path("out.de").read_text(encoding="utf-8").splitlines()) == 6
    code, _, err = cli("attention", "pictures/2.png", "--output", "a.json")
    assert code == 0, err
    explained = json.loads(Path("a.json").read_text(encoding="utf-8"))
    assert explained["src"] == "2.png"
    assert explained["src_tokens"] == ["1,1", "1,2", "2,1", "2,2"]
    assert base64.b64decode(explained["picture"]["rgb"]) == pixels_of(2).tobytes()
    run = open_run(None)
    tokenizers = load_tokenizers(run.tokenizer)
    engine = load_torch_engine([run], tokenizers, "cpu")
    tgt = tokenizers.tgt.encode(explained["tgt"])
    (expected,) = engine.attention([patches(pixels_of(2), 4)], [tgt])
    found = np.mean(explained["attention"]["cross"], axis=(0, 1))[: len(tgt)]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.shape(explained["gradients"]) == (len(tgt) + 1, 4)
    (tmp_path / "pictures" / "4.png").write_bytes(b"no image")
    code, _, err = cli("translate", "--input", "images.txt", "--output", "out.de")
    assert (code, "images.txt:5: " in err, err.count("\n")) == (2, True, 1)
    code, _, err = cli("translate", "pictures/1.png")
    assert (code, "reads images, not text" in err) == (2, True)


def test_a_training_on_pictures_ends_with_a_report_that_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    write_image_task(tmp_path, monkeypatch)
    monkeypatch.setattr(nmt.insight.report_output, "_charts", lambda report: iter(()))  # they take a second
    code, _, err = cli("train", "images.yaml", "--set", "evaluation.report=true")
    assert (code, "report: runs/images/report/index.html" in err) == (0, True), err
    page = Path("runs/images/report/index.html").read_text(encoding="utf-8")
    shown = re.findall(
        r'<img class="picture small" src="data:image/png;base64,([^"]+)" alt=""><br>'
        r'<span class="mono">pictures/(\d)\.png</span></dd>.*?<span class="muted">line (\d)</span>',
        page, re.DOTALL,
    )  # fmt: skip
    assert sorted(number for _, number, _ in shown) == ["0", "1", "2", "3", "4", "5"]
    for png, number, line in shown:
        assert int(line) == int(number) + 1
        picture = Image.open(io.BytesIO(base64.b64decode(png)))
        np.testing.assert_array_equal(np.asarray(picture), pixels_of(int(number)))
    assert "BLEU by source length is left out: every source has 4 patches." in page
    assert "Attention is not shown here: nmt attention IMAGE lays it over the picture" in page
    assert "The validation set has changed" not in page
    card = ModelCard.load("runs/images/report/README.md")
    assert (card.data.language, card.data.pipeline_tag) == (["de"], "image-to-text")
    assert card.data.eval_results is None  # its scores are of the training text
    target = hashlib.sha256(Path("train.de").read_bytes()).hexdigest()
    assert re.search(rf">train\.de</td>.*>{target}</td>", page)

    code, out, err = cli(
        "compare", "images", "--hyp", "train.de", "--src", "images.txt", "--ref", "train.de", "--samples", "2", "--json"
    )
    assert code == 0, err
    (compared,) = json.loads(out)["test_sets"]
    assert compared["left_out"] == "BLEU by source length is left out: every source has 4 patches."
    sentences = compared["differences"][0]["sentences"]
    assert {(one["line"], one["src"]) for one in sentences} == {(n + 1, f"pictures/{n}.png") for n in range(6)}
    assert not any("source length" in table["by"] for table in compared["buckets"])


def test_the_page_lays_each_words_attention_over_the_picture(tmp_path: Path, browser: Browser) -> None:
    cross = np.random.default_rng(0).dirichlet(np.ones(4), size=(1, 2, 3)).astype(np.float32)  # (1, H, T, S)
    maps = AttentionMaps(
        ("1,1", "1,2", "2,1", "2,2"), ("<s>", "a", "b"), ("a", "b", "</s>"), (0, 1, 2, 3), (0, 1, 2), (0, 1, 2),
        np.zeros((0, 0, 0, 0), np.float32), np.full((1, 2, 3, 3), 1 / 3, np.float32), cross,
    )  # fmt: skip
    white = Picture(np.full((8, 8, 3), 255, dtype=np.uint8), 2)
    steps = (Step("a", 4, -0.1, 0.1, (Candidate("a", 4, -0.1),)),) * 3
    search = SearchTree(1, 1.0, (Node(0, None, 0, "<s>", 1, 0.0, 0.0, "kept"),), None)
    explanation = Explanation("run", "2.png", "a b", True, "zxx", "en", maps, cross[0, 0], steps, search, (), white)
    write_page(explanation, tmp_path / "page.html")
    browser.open_page(tmp_path / "page.html")
    browser.wait("document.documentElement.dataset.ready")
    browser.check_page(tmp_path / "page.html")
    tabs = browser.run("return [...document.querySelectorAll('[role=tab]')].map((tab) => tab.dataset.kind)")
    assert tabs == ["cross", "decoder"]  # there is no encoder
    brightness = browser.run(
        "return [...document.querySelectorAll('.picture canvas')].map((canvas) => [[0, 0], [1, 0], [0, 1], [1, 1]].map("
        "([x, y]) => canvas.getContext('2d').getImageData(10 + 112 * x, 10 + 112 * y, 1, 1).data[0]))"
    )
    mean = cross[0].mean(axis=0)  # of the layer's heads, which the page shows first
    expected = 255 * (1 - 0.8 * (1 - mean / mean.max(axis=1, keepdims=True)))
    np.testing.assert_allclose(brightness, expected, atol=3)


# --- The corpus of shapes --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shapes() -> ModuleType:
    """scripts/make_shapes_corpus.py as a module."""
    spec = importlib.util.spec_from_file_location(
        "make_shapes_corpus", REPOSITORY / "scripts" / "make_shapes_corpus.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_shapes_corpus"] = module
    spec.loader.exec_module(module)
    return module


def test_the_sentences_are_german(shapes: ModuleType) -> None:
    masculine, neuter = {"Kreis", "Ring", "Stern"}, {"Quadrat", "Dreieck", "Kreuz"}
    endings = set()
    for scene, _ in shapes.scenes("test"):
        words = scene.german().replace("links von", "links_von").split()
        article, adjective, noun, preposition, dative, other, second = words
        assert article == "ein"
        assert dative == "einem"
        assert preposition in {"über", "links_von"}
        assert noun in (masculine if adjective.endswith("er") else neuter)
        assert adjective.endswith("er" if noun in masculine else "es")
        assert other.endswith("en")
        assert second in masculine | neuter
        endings.add((adjective[:-2], other[:-2]))
    assert len({first for first, _ in endings}) == 6


def things_of(shapes: ModuleType, *names: str) -> list[set[tuple[int, str, str]]]:
    """(place, colour, shape) of each scene of some splits, read from the English sentences."""
    found = []
    for name in names:
        for scene, _ in shapes.scenes(name):
            words = scene.english().split()
            found.append({(0, words[1], words[2]), (1, words[-2], words[-1])})
    return found


def test_no_combination_that_is_held_out_is_in_training(shapes: ModuleType) -> None:
    seen = set().union(*things_of(shapes, "train", "val", "test"))
    new = {}
    for name in ("held_out_val", "held_out"):
        scenes = things_of(shapes, name)
        assert all(things - seen for things in scenes)
        new[name] = set().union(*scenes) - seen
        assert [len({thing[part] for thing in new[name]}) for part in range(3)] == [2, 6, 6]  # each colour, each shape
    assert not new["held_out_val"] & new["held_out"]
    assert not set().union(*things_of(shapes, "held_out_val")) & new["held_out"]
    assert not set().union(*things_of(shapes, "held_out")) & new["held_out_val"]
    assert len(seen) == 60
    assert {len(things) for things in new.values()} == {6}
    never = [(colour, shape) for _, colour, shape in set().union(*new.values())]
    assert len(set(never)) == 12  # at one of the two places only


def test_the_pictures_are_the_same_each_time_and_show_the_sentence(shapes: ModuleType) -> None:
    for scene, random in shapes.scenes("val")[:50]:
        state = random.getstate()
        pixels, (first, second) = shapes.draw(scene, random)
        random.setstate(state)
        np.testing.assert_array_equal(pixels, shapes.draw(scene, random)[0])
        assert not (first & second).any()
        assert min(first.sum(), second.sum()) > 40
        centres = [np.argwhere(mask).mean(axis=0) for mask in (first, second)]  # row, column
        down, right = centres[1] - centres[0]
        relation = shapes.RELATIONS[scene.relation][0]
        assert relation == ("above" if abs(down) > abs(right) else "left of")
        assert max(down, right, key=abs) > 0
        edges = np.concatenate([mask[[0, -1]].ravel() for mask in (first, second)])
        assert not edges.any()  # nothing is cut off
        colour = np.array(shapes.COLOURS[scene.first[0]].rgb)
        others = [np.array(other.rgb) for other in shapes.COLOURS]
        mean = pixels[first].mean(axis=0)
        assert min(others, key=lambda rgb: float(np.abs(rgb - mean).sum())).tolist() == colour.tolist()
