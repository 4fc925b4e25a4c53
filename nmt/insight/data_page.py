"""What a corpus is made of, as one page that opens anywhere."""

from pathlib import Path

from nmt.atomic import write_text
from nmt.data.profile import Profile
from nmt.errors import printable
from nmt.insight.data_text import bin_label, lengths_line, percent, trimmed
from nmt.insight.pages import render


def write_page(profile: Profile, path: Path) -> None:
    """Write the profile as HTML, with no request to anywhere."""
    names = [one.name for one in profile.corpora]
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    page = render(
        "data.html",
        f"{names[0]}{more}",
        profile=profile,
        bin_label=bin_label,
        lengths_line=lengths_line,
        percent=percent,
        printable=printable,
        trimmed=trimmed,
    )
    write_text(path, page)
