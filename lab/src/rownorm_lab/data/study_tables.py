"""The tables of a study, as a header and lines of text: for the terminal, for Markdown and for the page."""

from __future__ import annotations

from collections.abc import Sequence

from . import texts
from .statistics import summarize
from .studies import Comparison, KernelTime, StageRecord, Study, comparisons
from .tables import Table, shortened

NOT_MEASURED = "not measured"
NAME_WIDTH = 100  # of a kernel's name: those of C++ templates can have thousands of characters
NOTE = (
    "Stages take turns, step by step. Times are medians; spread is the distance from the 20th to the 80th percentile "
    "of the step, over its median. A step is forward with loss, backward, and update of the parameters. Intervals of "
    "ratios hold with 95% confidence."
)
ATTRIBUTIONS = {
    "ranges": "Norms are counted with their residual adds, forward and backward, in every stage.",
    "names": "In compiled code, kernels whose name or operator names a norm are counted whole, with what is fused into "
    "them; a norm that was written op by op has no such name, and its share is unknown.",
}
CPU_MEMORY = "Peak memory is what PyTorch's allocator of the CPU gave for it."


def notes(study: Study) -> list[str]:
    """What a reader must know about the figures."""
    kinds = {one.attribution for one in study.records if one.kernels}
    compiled = any(one.setting == "compiled" for one in study.records)
    found = [NOTE, ATTRIBUTIONS["ranges"] if "ranges" in kinds else ""]
    found += [ATTRIBUTIONS["names"] if compiled else ""]
    if study.environment.kind == "cpu":
        found += [CPU_MEMORY, "These are timings of the CPU path, not of the kernels."]
    return [note for note in found if note]


def step_tables(study: Study) -> list[Table]:
    """One table for each setting, with a line for each stage."""
    header = ["stage", "forward", "backward", "step", "spread", f"{study.unit}/s"]
    header += ["peak memory", "norms"]
    found = []
    for setting in study.settings:
        records = [one for one in study.records if one.setting == setting]
        precision = next((one.precision for one in records if one.precision), "")
        title = setting if precision.startswith(setting) else f"{setting}, {precision}"
        lines = [_step_line(study, one) for one in records]
        found.append(Table(title.rstrip(", "), header, lines))
    return found


def _step_line(study: Study, record: StageRecord) -> list[str]:
    if not record.step:
        return [record.stage, record.status, *[""] * 6]
    step = summarize(record.step)
    parts = (record.forward, record.backward, record.step)
    return [
        record.stage if record.status == "ok" else f"{record.stage} ({record.status})",
        *(texts.duration(summarize(seconds).median) for seconds in parts),
        texts.percent(step.spread),
        texts.significant(study.units / step.median),
        NOT_MEASURED if record.peak_bytes is None else texts.memory(record.peak_bytes),
        "unknown" if record.norm_share is None else texts.percent(record.norm_share),
    ]


def comparison_table(study: Study) -> Table:
    """rownorm beside the other stages: the speed of a step, and peak memory."""
    lines = [
        [
            one.setting,
            one.other,
            f"{texts.times(1 / one.time.ratio)} ({_interval(one)})",
            one.verdict,
            NOT_MEASURED if one.memory is None else f"{one.memory:.3f}",
        ]
        for one in comparisons(study)
    ]
    header = ["setting", "rownorm beside", "speed of a step", "verdict", "peak memory, ratio"]
    return Table("rownorm beside the other stages", header, lines)


def _interval(one: Comparison) -> str:
    return f"{texts.significant(1 / one.time.high)} to {texts.significant(1 / one.time.low)}"


def kernel_table(
    subject: str, kernels: Sequence[KernelTime], most: int, on_cpu: bool = False
) -> Table:
    """The kernels that take the most time in one step or call; on a CPU, the operators."""
    what, total = "operator" if on_cpu else "kernel", sum(one.seconds for one in kernels)
    lines = [
        [
            shortened(kernel.name, NAME_WIDTH),
            texts.number(kernel.calls),
            texts.duration(kernel.seconds),
            texts.percent(kernel.seconds / total),
            "norm" if kernel.is_norm else "",
        ]
        for kernel in kernels[:most]
    ]
    title = f"{subject}: {texts.duration(total)} in {what}s"
    return Table(title, [what, "calls", "time", "share", ""], lines)


def kernel_tables(study: Study, most: int) -> list[Table]:
    """The kernels of every stage that has some."""
    on_cpu = study.environment.kind == "cpu"
    return [
        kernel_table(f"{one.setting}, {one.stage}", one.kernels, most, on_cpu)
        for one in study.records
        if one.kernels
    ]


def failures(study: Study) -> list[str]:
    """A line for each stage that could not be measured, or is wrong."""
    return [
        f"{one.setting}, {one.stage} {one.status}: {one.why}"
        for one in study.records
        if one.status != "ok"
    ]
