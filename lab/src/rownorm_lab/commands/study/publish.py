"""A study as a Markdown page: ``study-<task>.md``."""

from __future__ import annotations

from pathlib import Path

from ...data.files import write_whole
from ...data.studies import Study
from ...data.study_tables import comparison_table, failures, kernel_tables, notes, step_tables
from ...data.tables import markdown_page, sections
from ...data.texts import count

KERNELS = 8  # lines of a table of kernels


def publish(study: Study, folder: Path) -> Path:
    """Write the page, replacing an old one of the same model."""
    return write_whole(folder / f"study-{study.task}.md", page(study))


def page(study: Study) -> str:
    """The page: comparisons, the tables of the settings, and kernels."""
    where = (
        f"{study.environment.describe()}, {study.date}; {count(study.steps, 'step')} of each stage"
    )
    return markdown_page(
        study.title,
        "rownorm study",
        f"{where}.",
        " ".join(notes(study)),
        "\n".join(f"- {line}" for line in failures(study)),
        *sections([comparison_table(study), *step_tables(study), *kernel_tables(study, KERNELS)]),
    )
