"""The section on profiles: what ``rownorm profile --out FOLDER`` saved in the folder of a report's records."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from ..data.profile_tables import main_tables, more_tables
from ..data.profiles import Profile, read_profile
from .chapter import Chapter, table_html

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
    kernels = "".join(map(table_html, more_tables(profile, KERNELS)))
    parts = [
        f"<h3>{escape(profile.title)}</h3>",
        f'<p class="how">{escape(profile.environment.describe())}, {escape(profile.date)}.</p>',
        f"<p><strong>Primary bottleneck:</strong> {escape(profile.bottleneck)}.</p>",
        f"<p>What to try next:</p><ul>{advice}</ul>",
        *map(table_html, main_tables(profile)),
    ]
    if kernels:
        parts.append(
            f"<details><summary>Time of each scope and kernel, and sources</summary>{kernels}</details>"
        )
    return "".join(parts)
