"""A profile as a Markdown page: ``summary.md``."""

from __future__ import annotations

from ...data.profile_tables import main_tables, more_tables
from ...data.profiles import Profile
from ...data.tables import escaped, markdown_page, sections

FILE = "summary.md"
KERNELS = 12  # lines of a table of kernels


def page(profile: Profile) -> str:
    """The page as text."""
    paragraphs = [
        f"{profile.environment.describe()}, {profile.date}.",
        f"**Primary bottleneck:** {escaped(profile.bottleneck)}.",
        "\n".join(["What to try next:", "", *(f"- {escaped(line)}" for line in profile.advice)]),
    ]
    paragraphs += sections([*main_tables(profile), *more_tables(profile, KERNELS)])
    return markdown_page(f"Profile of {escaped(profile.title)}", "rownorm profile", *paragraphs)
