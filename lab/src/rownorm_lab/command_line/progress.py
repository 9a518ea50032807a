"""Progress while cases are measured: a bar with the time left in a terminal, one line per case elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from ..data.records import Record
from ..data.statistics import summarize
from ..data.texts import duration

if TYPE_CHECKING:
    from ..measure.bench import Step


class Display:
    """Shows every step and every finished case; ``total`` is the number of cases to measure."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.total = total
        self.start = time.monotonic()
        self.done = 0
        whole = Column(no_wrap=True)
        rest = Column(ratio=1, no_wrap=True)  # the case; it is truncated if the line is too long
        self.bar = Progress(
            BarColumn(bar_width=12, table_column=whole),
            MofNCompleteColumn(table_column=whole),
            TimeRemainingColumn(table_column=whole),
            TextColumn("left", table_column=whole),
            TextColumn("{task.description}", table_column=rest),
            expand=True,
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
            auto_refresh=False,  # a refreshing thread would disturb the timing
        )
        self.task = self.bar.add_task("", total=total)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def step(self, step: Step) -> None:
        """Show that a provider is checked, prepared or timed."""
        what = f"{step.doing} {step.provider}".rstrip()
        self.show(f"{what}: {step.case.title}")

    def show(self, text: str) -> None:
        """Show what is being done, in a terminal."""
        self.bar.update(self.task, description=text, refresh=True)

    def case_done(self, records: list[Record]) -> None:
        """Show the times of a case; records: all of that case."""
        self.advance()
        times = ", ".join(
            f"{one.provider} {duration(summarize(one.seconds or one.host_seconds).median)}"
            for one in records
            if one.status == "ok" and one.is_timed
        )
        self.say(f"{records[0].case.title}: {times or 'nothing could be measured'}")

    def advance(self) -> None:
        """One more is done."""
        self.done += 1
        self.bar.update(self.task, completed=self.done, refresh=True)

    def say(self, text: str) -> None:
        """Print a line above the bar; elsewhere it begins with how many are done and the time left."""
        if self.console.is_terminal:
            self.console.print(text, markup=False, overflow="ellipsis", no_wrap=True)
        else:
            counted = f"[{self.done}/{self.total}, {self.time_left()} left]"
            self.console.print(f"{counted} {text}", markup=False, soft_wrap=True)

    def time_left(self) -> str:
        """An estimate from the cases so far, as minutes:seconds."""
        each = (time.monotonic() - self.start) / max(1, self.done)
        seconds = round(each * (self.total - self.done))
        return f"{seconds // 60}:{seconds % 60:02}"
