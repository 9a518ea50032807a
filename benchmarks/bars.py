"""Every figure that must hold on an H200: measure what it takes, then judge it.

    python benchmarks/bars.py measure --out results/first --workers 16
    python benchmarks/bars.py measure --out results/second
    python benchmarks/bars.py judge results/first results/second

``measure`` goes on where it ended when it is given the same folder again; with ``--limit-s`` it exits with 3 where
something is left. ``judge`` exits with 0 only where every bar holds in every folder and nothing is missing.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch
from figures import ANY, Must, Part
from judge import FirstCallBar, findings_of, plain_of, read_run, summary, tables
from measure import Absent, Job, check_folder, count_first_calls, measure

from rownorm.lab.records import CEILING, EAGER, OURS

FORWARD, BACKWARD, STEP = ("forward",), ("backward",), ("both",)
EVERYONE = (EAGER, "torch.compile", "liger", "quack", "fla", CEILING)
PROVIDERS = (OURS, *EVERYONE)

MEMORY = Must("of the memory allowed", "<=", 1)
SPEED = (
    Must("of the fastest peer", ">=", 0.97, FORWARD),
    Must("of the ceiling", ">=", 0.92, FORWARD, cols=range(1024, ANY.stop)),
    Must("of the fastest peer", ">=", 1.00, BACKWARD),
    Must("of the ceiling", ">=", 0.80, BACKWARD, cols=range(1024, 16385)),
    Must("of the ceiling", ">=", 0.70, BACKWARD, cols=range(16385, ANY.stop)),
    MEMORY,
)
ADD = (Must("of the fastest peer", ">=", 1.00), MEMORY)
VARIANTS = (
    Must("of the plain norm", ">=", 0.97),
    Must("of torch.compile's speed", ">", 1.00),
    MEMORY,
)
SEED = (Must("of torch's speed", ">", 1.00),)
FEW_ROWS = (
    Must("of the fastest peer", ">=", 0.97),
    Must("microseconds", "<", 10, rows=range(1, 2)),
    Must("microseconds", "<", 20, rows=range(2, 33)),
    Must("microseconds", "<", 50, rows=range(33, 129)),
    Must("microseconds", "<", 150, rows=range(129, 513)),
)
WIDE = (Must("of torch's speed", ">=", 3),)
HOST = (
    Must("of torch's host cost", "<=", 1.1, FORWARD),
    Must("of torch's host cost", "<=", 1.2, STEP),
)
COMPILED = (EAGER, "torch.compile", CEILING)
# In the order of measurement: what takes longest comes last, where time may end. Two must come after others: few-rows
# after speed-fp16, because fla settles its kernel for 4096 columns on the first case it meets, which has to be a large
# one; variants after speed-bf16, which measures the plain norms with everyone.
PARTS = (
    Part("host", "The price of a call", ("host",), (EAGER,), "host µs", HOST),
    Part("seed", "LayerNorm in fp32", ("seed", "fused-bias"), (EAGER, CEILING), "µs", SEED),
    Part("wide", "A few wide rows", ("speed-wide",), (EAGER, CEILING), "µs", WIDE),
    Part("speed-bf16", "bf16", ("speed",), EVERYONE, "GB/s", SPEED),
    Part("add", "Residual add and norm", ("speed-add",), EVERYONE, "GB/s", ADD),
    Part("speed-fp16", "fp16", ("speed-fp16",), EVERYONE, "GB/s", SPEED),
    Part("few-rows", "A few rows", ("flashinfer",), EVERYONE, "µs", FEW_ROWS),
    Part("variants", "Variants", ("speed-variants",), COMPILED, "GB/s", VARIANTS),
    Part("speed-fp32", "fp32", ("speed-fp32",), EVERYONE, "GB/s", SPEED),
)
# A call, of either pass, compiles two kernels at most for a new width, and none for a new number of rows.
FIRST_CALL = FirstCallBar(
    name="first-call",
    operations=("rms_norm", "layer_norm"),
    cols=(1000, 4096, 32768, 65536),
    most={"forward": 2, "training forward": 2, "backward": 2, "other rows": 0},
)
NAMES = (*(part.name for part in PARTS), FIRST_CALL.name)


def jobs_of(parts: Sequence[Part], chosen: Collection[str] = PROVIDERS) -> list[Job]:
    """Every case once, with who of the chosen runs it; with variants go the plain norms that they are compared with."""
    jobs: dict[str, Job] = {}
    for part in parts:
        for case in part.cases:
            jobs.setdefault(case.key, (case, (OURS, *part.providers)))
        for case in map(plain_of, part.cases if part.musts is VARIANTS else ()):
            jobs.setdefault(case.key, (case, (OURS, CEILING)))
    taking_part = (
        (case, tuple(name for name in names if name in chosen)) for case, names in jobs.values()
    )
    return [(case, names) for case, names in taking_part if names]


def run_measure(options: argparse.Namespace) -> int:
    chosen = options.part or NAMES
    check_folder(options.out)
    until, status = time.monotonic() + options.limit_s, 0
    if FIRST_CALL.name in chosen:
        try:
            if not torch.cuda.is_available():
                raise RuntimeError("it needs a GPU")
            count_first_calls(options.out, FIRST_CALL.calls)
        except RuntimeError as error:
            status = 1
            print(f"{FIRST_CALL.name} was not measured: {error}", file=sys.stderr)
    named = options.provider or ()
    jobs = jobs_of([part for part in PARTS if part.name in chosen], named or PROVIDERS)
    try:
        left = measure(options.out, jobs, options.rounds, options.workers, until, required=named)
    except Absent as error:
        print(f"Stopped: {error}", file=sys.stderr)
        return 1
    if left:
        print(
            f"Stopped after {options.limit_s} s, {left} cases are left; the same command goes on."
        )
        return 3
    print(f"Next: python benchmarks/bars.py judge {options.out}")
    return status


def run_judge(options: argparse.Namespace) -> int:
    runs = [read_run(folder) for folder in options.folders]
    for run in runs:
        for number, reason in run.damaged:
            print(f"{run.name}: line {number} cannot be used: {reason}", file=sys.stderr)
        print("\n".join(tables(run, PARTS, FIRST_CALL, options.markdown)))
    found = [findings_of(run, PARTS, FIRST_CALL) for run in runs]
    print("\n".join(summary(found, options.markdown)))
    return int(not all(one.holds for of_run in found for one in of_run))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="measure | judge")
    one = commands.add_parser("measure", help="measure into a folder, or go on with it")
    one.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    one.add_argument(
        *("--part", "--parts"),
        nargs="+",
        action="extend",
        choices=NAMES,
        metavar="NAME",
        help=f"{', '.join(NAMES)}; default: all",
    )
    one.add_argument(
        *("--provider", "--providers"),
        nargs="+",
        action="extend",
        choices=PROVIDERS,
        metavar="NAME",
        help=f"{', '.join(PROVIDERS)}; those named must be installed; default: all of a part that are",
    )
    one.add_argument("--rounds", type=at_least(1), default=10, help="default: %(default)s")
    one.add_argument(
        "--workers", type=at_least(0), default=0, help="processes that fill the caches first"
    )
    one.add_argument(
        "--limit-s",
        type=at_least(1),
        default=math.inf,
        metavar="SECONDS",
        help="begin no further case after so long; exit status 3 where some are left",
    )
    one.set_defaults(command=run_measure)
    one = commands.add_parser("judge", help="hold one or more runs against the bars")
    one.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    one.add_argument("--markdown", action="store_true", help="tables as in docs/performance.md")
    one.set_defaults(command=run_judge)
    options = parser.parse_args(arguments)
    try:
        return int(options.command(options))
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted. What was measured is kept; the same command goes on.", file=sys.stderr)
        return 130


def at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}; got {text}")
        return int(text)

    return number


if __name__ == "__main__":
    sys.exit(main())
