"""The pages: each link has a target, README links to each page, and to the answers of five questions."""

import re
from collections import Counter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
README = REPOSITORY / "README.md"
PAGES = [
    README,
    *(REPOSITORY / name for name in ("CONTRIBUTING.md", "configs/README.md", "scripts/README.md")),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
_LINK = re.compile(r"(?:\]\(|(?:src|srcset|href)=\")([^)\s\"]+)[)\"]")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[str]:
    """The files of this repository that it links to."""
    targets = _LINK.findall(re.sub(r"`[^`]*`", "", prose(page)))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def target(page: Path, link: str) -> Path:
    """The file that a link on a page leads to."""
    path = link.partition("#")[0]
    return (page.parent / path).resolve() if path else page


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    seen: Counter[str] = Counter()
    result = set()
    for heading in re.findall(r"^#+ +(.*)$", prose(page), flags=re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", plain).strip().lower().replace(" ", "-")
        result.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return result


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_has_a_target(page: Path) -> None:
    broken = []
    for link in links(page):
        file, anchor = target(page, link), link.partition("#")[2]
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(link)
    assert broken == []


def test_every_page_is_linked_from_readme_and_every_notebook_from_a_page() -> None:
    notebooks = {page for page in PAGES if page.parent.name == "lab"}
    linked = {target(README, link) for link in links(README)}
    assert [page for page in PAGES if page not in linked | notebooks | {README}] == []
    assert notebooks - {target(page, link) for page in PAGES if page not in notebooks for link in links(page)} == set()


@pytest.mark.parametrize(
    ("page", "file", "answer"),
    [
        ("docs/code.md", "training/loss.py", "class Objective"),  # how does a batch become a loss?
        ("docs/data.md", "cleaning/normalize.py", "def clean"),  # where does an empty line go?
        ("CONTRIBUTING.md", "training/optimization.py", "def learning_rate"),  # how do I add a schedule?
        ("docs/translating.md", "decoding/engines.py", "def load_engine"),  # which engine translated?
        ("docs/reference.md", "config/training.py", "class TrainingConfig"),  # what does a key mean?
    ],
)
def test_a_question_is_two_links_from_its_answer(page: str, file: str, answer: str) -> None:
    code = REPOSITORY / "nmt" / file
    assert REPOSITORY / page in {target(README, link) for link in links(README)}
    assert code in {target(REPOSITORY / page, link) for link in links(REPOSITORY / page)}
    assert re.search(rf"^{answer}\b", code.read_text(encoding="utf-8"), flags=re.MULTILINE)
