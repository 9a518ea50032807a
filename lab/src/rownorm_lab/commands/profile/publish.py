"""A profile as a Markdown page: ``summary.md``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...data.files import write_whole
from ...data.profile_tables import (
    counter_table,
    figure_table,
    kernel_tables,
    norm_table,
    scope_tables,
    source_table,
    tool_table,
)
from ...data.profiles import Profile
from ...data.study_tables import Table
from ...data.tables import escaped, markdown, markdown_page

FILE = "summary.md"
KERNELS = 12  # lines of a table of kernels


def publish(profile: Profile, folder: Path) -> Path:
    """Write the page, replacing an old one."""
    return write_whole(folder / FILE, page(profile))


def page(profile: Profile) -> str:
    """The page as text."""
    paragraphs = [
        f"{profile.environment.describe()}, {profile.date}.",
        f"**Primary bottleneck:** {escaped(profile.bottleneck)}.",
        "\n".join(["What to try next:", "", *(f"- {escaped(line)}" for line in profile.advice)]),
    ]
    tables = [tool_table(profile), figure_table(profile), counter_table(profile)]
    tables += [norm_table(profile), *scope_tables(profile), *kernel_tables(profile, KERNELS)]
    tables.append(source_table(profile))
    paragraphs += _written(tables)
    return markdown_page(f"Profile of {escaped(profile.title)}", "rownorm profile", *paragraphs)


def _written(tables: Sequence[Table]) -> list[str]:
    return [
        part
        for table in tables
        if table.lines
        for part in (f"## {escaped(table.title)}", markdown(table.header, table.lines))
    ]
