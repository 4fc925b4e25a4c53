"""The pages: each link has a target, and README links to each page."""

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
