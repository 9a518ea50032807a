"""The section on profiles: what ``rownorm profile --out FOLDER`` saved in the folder of a report's records."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from ..data.profile_tables import (
    counter_table,
    figure_table,
    kernel_tables,
    norm_table,
    scope_tables,
    source_table,
    tool_table,
)
from ..data.profiles import Profile, read_profile
from .chapter import Chapter
from .study import table_html

KERNELS = 12  # lines of a table of kernels


def chapter(folders: Sequence[Path]) -> Chapter | None:
    """The profiles in these folders; ValueError if one cannot be read."""
    found = {folder: read_profile(folder) for folder in folders}
    profiles = [one for one in found.values() if one is not None]
    if not profiles:
        return None
    return Chapter(
        "profiles",
        "Profiles",
        "".join(map(_one, profiles)),
        folders=[folder for folder, one in found.items() if one is not None],
        devices=[one.environment.device for one in profiles],
    )


def _one(profile: Profile) -> str:
    advice = "".join(f"<li>{escape(line)}</li>" for line in profile.advice)
    tables = [tool_table(profile), figure_table(profile), counter_table(profile)]
    tables.append(norm_table(profile))
    more = [
        *scope_tables(profile),
        *kernel_tables(profile, KERNELS),
        source_table(profile),
    ]
    kernels = "".join(table_html(table) for table in more if table.lines)
    parts = [
        f"<h3>{escape(profile.title)}</h3>",
        f'<p class="how">{escape(profile.environment.describe())}, {escape(profile.date)}.</p>',
        f"<p><strong>Primary bottleneck:</strong> {escape(profile.bottleneck)}.</p>",
        f"<p>What to try next:</p><ul>{advice}</ul>",
        *(table_html(table) for table in tables if table.lines),
    ]
    if kernels:
        parts.append(
            f"<details><summary>Time of each scope and kernel, and sources</summary>{kernels}</details>"
        )
    return "".join(parts)
