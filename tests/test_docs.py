"""The pages: their links have targets, README is short, and the list of files is complete."""

import re
from collections import Counter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
README = REPOSITORY / "README.md"
PAGES = [
    README,
    *(REPOSITORY / name for name in ("CONTRIBUTING.md", "configs/README.md", "scripts/README.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
]
_LINK = re.compile(r"(?:\]\(|(?:src|srcset|href)=\")([^)\s\"]+)[)\"]")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[str]:
    """The files of this repository that it links to."""
    targets = _LINK.findall(re.sub(r"`[^`]*`", "", prose(page)))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


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
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_linked_from_readme() -> None:
    linked = {(REPOSITORY / link.partition("#")[0]).resolve() for link in links(README)}
    assert [page for page in PAGES if page != README and page not in linked] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_lines_are_short(page: Path) -> None:
    assert [line for line in page.read_text(encoding="utf-8").splitlines() if len(line) > 120] == []


def test_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 200


def test_the_list_of_files_is_the_package() -> None:
    text = (REPOSITORY / "docs" / "code.md").read_text(encoding="utf-8")
    block = re.search(r"^```\nnmt/\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    assert block is not None
    named = re.findall(r"^  (\S+\.py)  ", block[1], flags=re.MULTILINE)
    assert len(named) == len(block[1].splitlines())
    package = REPOSITORY / "nmt"
    there = [path for path in package.rglob("*.py") if path.name != "__init__.py" or path.parent == package]
    assert sorted(named) == sorted(path.relative_to(package).as_posix() for path in there)


def test_the_lists_of_files_are_in_the_order_of_imports() -> None:
    """The order that tests/test_layout.py checks."""
    layout = (REPOSITORY / "tests" / "test_layout.py").read_text(encoding="utf-8")
    order = re.search(r'_IN_ORDER = """(.*?)"""', layout, flags=re.DOTALL)
    assert order is not None
    named = re.findall(r"^  (\S+)\.py  ", (REPOSITORY / "docs" / "code.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [name.replace("/", ".") for name in named] == order[1].split()
    block = re.search(r"^```\n(nmt/ .*?)^```$", README.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert block is not None
    folder, named = "", []
    for word in block[1].split():
        if word.endswith("/"):
            folder = word.removeprefix("nmt/").replace("/", ".")
        else:
            named.append(f"{folder}{word}")
    assert named == order[1].split()
