"""docs/reference.md agrees with the code."""

import importlib.util
import re
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "make_reference.py"


def test_the_reference_is_not_stale() -> None:
    spec = importlib.util.spec_from_file_location("make_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == module.PAGE.read_text(encoding="utf-8"), "run scripts/make_reference.py"
    assert "#### training.max_steps" in module.page()
    assert "--length-penalty" in module.page()


def test_every_link_leads_to_one_heading() -> None:
    """GitHub makes a heading's anchor of its letters in lower case, digits, `_` and `-`; a second one gets a number."""
    page = (SCRIPT.parent.parent / "docs" / "reference.md").read_text(encoding="utf-8")
    headings = re.findall(r"(?m)^#+ (.+)$", page)
    anchors = [re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-")) for heading in headings]
    assert len(anchors) == len(set(anchors))
    links = re.findall(r"\]\(#([^)]+)\)", page)
    assert len(links) > 100
    assert set(links) <= set(anchors)
    for text in (
        "#### model.dropout\n\n*With `architecture: transformer`:*\n",
        "#### model.cell\n\n*With `architecture: rnn`:*",
    ):
        assert text in page
