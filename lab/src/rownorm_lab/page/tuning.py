"""The sections on tuning: what ``rownorm tune`` and ``rownorm tune --study`` saved in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..data import texts
from ..data.tables import Table
from ..data.tuning_tables import FUSION_HEADER, fusion_findings, fusion_table
from ..data.tunings import STUDY, SUMMARY, FusionStudy, Tuning, read
from .chapter import Chapter, table_html


def chapter(folders: Sequence[Path]) -> Chapter | None:
    """The tunings in these folders; ValueError if one cannot be read."""
    found = {folder: read(folder, SUMMARY, Tuning) for folder in folders}
    tunings = [one for one in found.values() if one]
    if not tunings:
        return None
    return Chapter(
        "tuning",
        "Tuned plans",
        "".join(map(_tuning, tunings)),
        folders=[folder for folder, one in found.items() if one],
        devices=[one.environment.device for one in tunings],
    )


def study_chapter(folders: Sequence[Path]) -> Chapter | None:
    """The studies of fusion in these folders; ValueError if one cannot be read."""
    found = {folder: read(folder, STUDY, FusionStudy) for folder in folders}
    studies = [one for one in found.values() if one]
    if not studies:
        return None
    parts = []
    for fusion in (fusion for one in studies for fusion in one.fusions):
        said = "".join(f"<p>{escape(line)}</p>" for line in fusion_findings(fusion))
        title = f"{fusion.title} on {fusion.device}"
        parts.append(table_html(Table(title, FUSION_HEADER, fusion_table(fusion))) + said)
    return Chapter(
        "fusion",
        "Fusion",
        "".join(parts),
        folders=[folder for folder, one in found.items() if one],
        devices=[fusion.device for one in studies for fusion in one.fusions],
    )


def _tuning(tuning: Tuning) -> str:
    others = ", ".join(f"{n} {cause}" for cause, n in tuning.left_out.items())
    head = f"{tuning.environment.describe()}, {tuning.date}. {texts.count(tuning.timed, 'candidate')} timed"
    head += f"; left out: {others}." if others else "."
    parts = [f'<p class="how">{escape(head)}</p>']
    if tuning.studies_left:
        left = texts.count(tuning.studies_left, "row")
        parts.append(f'<p class="banner">Not finished: {left} left.</p>')
    if tuning.rows:
        header = ["problem", "columns", "GB/s", "of the ceiling", "settings"]
        header += ["next, GB/s", "reason"]
        lines = [_row(row) for row in tuning.rows]
        parts.append(table_html(Table("Rows that were found", header, lines)))
    if tuning.verified:
        lines = [
            [one.study, f"{one.ratio:.3f}", _settings(one.found), _settings(one.shipped)]
            for one in tuning.verified
        ]
        verified = ("row of the shipped table", "time found / shipped", "found", "shipped")
        title = "Rows of the shipped table, searched again"
        parts.append(table_html(Table(title, verified, lines)))
    return "".join(parts)


def _row(row: dict[str, Any]) -> list[str]:
    norm = "LayerNorm" if row["center"] else "RMSNorm"
    words = [f"{norm} {row['direction']}", f"{row['itemsize']}-byte elements"]
    words += [f"{row['residual']}-byte residual"] if row["residual"] else []
    words += [row["option"]] if row["option"] else []
    ceiling = row.get("ceiling_gb_per_s")
    runner_up = row.get("runner_up")
    return [
        ", ".join(words),
        str(row["max_cols"]),
        f"{row['gb_per_s']:,}",
        texts.percent(row["gb_per_s"] / ceiling) if ceiling else "",
        _settings(row["settings"]),
        f"{runner_up['gb_per_s']:,}" if runner_up else "",
        row.get("reason", ""),
    ]


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
