"""A study as a Markdown page: ``study-<task>.md``."""

from __future__ import annotations

from pathlib import Path

from ...data.files import write_whole
from ...data.studies import StageRecord, Study
from ...data.study_tables import Table, comparison_table, failures, kernel_table, notes, step_tables
from ...data.tables import markdown, markdown_page, shortened
from ...data.texts import count

KERNELS = 8  # lines of a table of kernels
NAME_WIDTH = 100  # of a kernel's name: those of templates are several lines long


def publish(study: Study, folder: Path) -> Path:
    """Write the page, replacing an old one of the same model."""
    return write_whole(folder / f"study-{study.task}.md", page(study))


def page(study: Study) -> str:
    """The page: comparisons, the tables of the settings, and kernels."""
    where = (
        f"{study.environment.describe()}, {study.date}; {count(study.steps, 'step')} of each stage"
    )
    compared = comparison_table(study)
    return markdown_page(
        study.title,
        "rownorm study",
        f"{where}.",
        " ".join(notes(study)),
        "\n".join(f"- {line}" for line in failures(study)),
        *([_section(compared)] if compared.lines else []),
        *(_section(table) for table in step_tables(study)),
        *(_section(_kernels(study, one)) for one in study.records if one.kernels),
    )


def _kernels(study: Study, record: StageRecord) -> Table:
    table = kernel_table(study, record, KERNELS)
    return table._replace(
        lines=[[shortened(cell, NAME_WIDTH) for cell in line] for line in table.lines]
    )


def _section(table: Table) -> str:
    return f"## {table.title}\n\n{markdown(table.header, table.lines)}"
