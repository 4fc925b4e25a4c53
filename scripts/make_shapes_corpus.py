"""Make a corpus of pictures: two coloured shapes, one above or beside the other, described in English and German.

    python scripts/make_shapes_corpus.py FOLDER    # images/*.png, {train,val,test,held_out_val,held_out}.{txt,en,de}

    a red circle above a blue square  /  ein roter Kreis über einem blauen Quadrat

NAME.txt lists the pictures, and line n of NAME.en and NAME.de describes picture n. The pictures are 32 x 32
pixels, drawn here: each shape is in its half of the picture, in a shade of its colour, on a background that is almost
white. The sentence names the upper or the left one first, so a picture has one description.

Combinations of a colour and a shape are held out of training: a sixth at each of the two places in the sentence, other
ones at each. They are two disjoint groups. Every picture of held_out_val has a combination of one group, every picture
of held_out one of the other; no picture of train, val and test has any of them at its place. So a model that describes
held_out has not memorised the pairs, but learned colours and shapes. Settings are chosen with held_out_val alone.

The same seed makes the same files, except for how the version of Pillow compresses them.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SEED = 20150206
SIZES = {"train": 6000, "val": 200, "test": 400, "held_out_val": 400, "held_out": 400}
SIDE = 32  # pixels
RADII = (5.4, 7.2)

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Colour:
    """A colour; `stem` is the German adjective without its ending."""

    en: str
    stem: str
    rgb: tuple[int, int, int]


@dataclass(frozen=True)
class Shape:
    """A shape; `gender` is that of the German noun, m or n."""

    en: str
    de: str
    gender: str


COLOURS = (
    Colour("red", "rot", (205, 30, 35)),
    Colour("blue", "blau", (35, 60, 200)),
    Colour("green", "grün", (30, 150, 50)),
    Colour("yellow", "gelb", (235, 205, 30)),
    Colour("black", "schwarz", (25, 25, 25)),
    Colour("brown", "braun", (125, 75, 35)),
)
SHAPES = (
    Shape("circle", "Kreis", "m"),
    Shape("square", "Quadrat", "n"),
    Shape("triangle", "Dreieck", "n"),
    Shape("cross", "Kreuz", "n"),
    Shape("ring", "Ring", "m"),
    Shape("star", "Stern", "m"),
)
# Relations of the first shape to the second: English, German (both with the dative), and the place of each.
RELATIONS = (("above", "über", ("top", "bottom")), ("left of", "links von", ("left", "right")))

Thing = tuple[int, int]
"""Indices of a colour and of a shape."""


def held_out_in(thing: Thing, place: int) -> str | None:
    """Return the split that holds out a coloured shape as the first (0) or second (1) of the sentence.

    Either split has each colour and each shape once: three combinations at one place, and three others at the other.
    No combination is held out at both places.
    """
    colour, shape = thing
    if (colour + shape) % len(SHAPES) != (0, 2)[place]:
        return None
    return "held_out" if colour % 2 == place else "held_out_val"


@dataclass(frozen=True)
class Scene:
    """The content of a picture; the first shape is the upper or the left one."""

    first: Thing
    second: Thing
    relation: int

    @property
    def held_out_in(self) -> set[str]:
        """Return the splits whose held-out combinations it has: none, one or both."""
        found = {held_out_in(self.first, 0), held_out_in(self.second, 1)}
        return {name for name in found if name}

    def english(self) -> str:
        """Return the sentence in English."""
        first, second = (f"a {COLOURS[colour].en} {SHAPES[shape].en}" for colour, shape in (self.first, self.second))
        return f"{first} {RELATIONS[self.relation][0]} {second}"

    def german(self) -> str:
        """Return the sentence in German: the first shape in the nominative, the second in the dative."""
        (colour, shape), (other_colour, other_shape) = self.first, self.second
        ending = {"m": "er", "n": "es"}[SHAPES[shape].gender]
        first = f"ein {COLOURS[colour].stem}{ending} {SHAPES[shape].de}"
        second = f"einem {COLOURS[other_colour].stem}en {SHAPES[other_shape].de}"
        return f"{first} {RELATIONS[self.relation][1]} {second}"


def mask_of(shape: str, x: float, y: float, radius: float) -> NDArray[np.bool_]:
    """Return the pixels of a shape around (x, y): (SIDE, SIDE), True where it is."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    across, down = columns - x, rows - y
    distance = np.hypot(across, down)
    if shape == "circle":
        return distance <= radius
    if shape == "ring":
        return (distance <= radius) & (distance >= 0.55 * radius)
    if shape == "square":
        return np.maximum(abs(across), abs(down)) <= 0.85 * radius
    if shape == "triangle":
        return (down <= 0.8 * radius) & (abs(across) <= 0.55 * (down + radius))
    if shape == "cross":
        narrow, wide = 0.3 * radius, radius
        upright = (abs(across) <= narrow) & (abs(down) <= wide)
        return upright | ((abs(down) <= narrow) & (abs(across) <= wide))
    angle = np.arctan2(across, -down)
    return distance <= radius * (0.65 + 0.45 * np.cos(5 * angle))  # a star with five points


def centre_of(place: str, radius: float, along: float, random: Random) -> tuple[float, float]:
    """Return x and y of a shape's centre in its half; `along` is the place of both shapes along the line between."""
    near = random.uniform(radius + 0.5, SIDE / 2 - 0.5 - radius)  # from the edge of the picture
    along += random.uniform(-2, 2)
    far = SIDE - 1 - near
    return {"top": (along, near), "bottom": (along, far), "left": (near, along), "right": (far, along)}[place]


def draw(scene: Scene, random: Random) -> tuple[Pixels, list[NDArray[np.bool_]]]:
    """Return a picture of the scene, (SIDE, SIDE, 3), and the pixels of its two shapes."""
    background = random.uniform(225, 250)
    noise = np.random.default_rng(random.randrange(2**32))
    pixels = np.full((SIDE, SIDE, 3), background)
    along = random.uniform(9.5, SIDE - 10.5)
    masks = []
    for (colour, shape), place in zip((scene.first, scene.second), RELATIONS[scene.relation][2], strict=True):
        radius = random.uniform(*RADII)
        mask = mask_of(SHAPES[shape].en, *centre_of(place, radius, along, random), radius)
        pixels[mask] = np.array(COLOURS[colour].rgb) * random.uniform(0.85, 1.1)
        masks.append(mask)
    pixels += noise.normal(0, 6, pixels.shape)
    return pixels.clip(0, 255).astype(np.uint8), masks


def scenes(name: str) -> list[tuple[Scene, Random]]:
    """Return the scenes of a split, each with the random numbers of its picture."""
    random = Random(f"{SEED} {name}")
    found: list[tuple[Scene, Random]] = []
    while len(found) < SIZES[name]:
        things = [(random.randrange(len(COLOURS)), random.randrange(len(SHAPES))) for _ in range(2)]
        scene = Scene(things[0], things[1], random.randrange(len(RELATIONS)))
        if scene.first != scene.second and scene.held_out_in == ({name} if name.startswith("held_out") else set()):
            found.append((scene, Random(random.random())))
    return found


def write(folder: Path) -> None:
    """Draw all pictures and write the lists and sentences."""
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    for name in SIZES:
        lines: dict[str, list[str]] = {"txt": [], "en": [], "de": []}
        for number, (scene, random) in enumerate(scenes(name), start=1):
            file = f"images/{name}-{number:04}.png"
            Image.fromarray(draw(scene, random)[0]).save(folder / file)
            lines["txt"].append(file)
            lines["en"].append(scene.english())
            lines["de"].append(scene.german())
        for suffix, texts in lines.items():
            (folder / f"{name}.{suffix}").write_bytes("".join(f"{text}\n" for text in texts).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to write; 30 MB on most disks")
    arguments = parser.parse_args()
    write(arguments.folder)
    print(f"{arguments.folder}: {sum(SIZES.values()):,} pictures", file=sys.stderr)


if __name__ == "__main__":
    main()
