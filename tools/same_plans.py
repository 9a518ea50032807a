"""Show that a change leaves every plan as it was.

    PYTHONPATH=old/src python tools/same_plans.py write old.json
    PYTHONPATH=new/src python tools/same_plans.py write new.json
    python tools/same_plans.py compare old.json new.json

``write`` plans millions of problems with the rownorm that Python imports and writes one digest per field of the plans,
problem kind and block of widths. ``compare`` names the kinds, widths and fields whose digests differ. A field that only
one of the two has is named and not compared. Plans depend on Triton's version: write both files with the same one. The
fields ``source``, ``reason`` and ``second`` of a plan are not compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import operator
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import click

WIDEST = 1 << 20
BLOCK = 1024  # widths in one digest
ACTIVATIONS = (None, "relu", "silu", "gelu", "gelu_tanh")
ROWS = (1, 8, 512, 4096, 32768)
NOT_COMPARED = ("source", "reason", "second")
N_SAMPLES = 4
# What has plans of its own beside the fields of a Kind: by its name, the fields of Problem.
MODULATIONS: dict[str, dict[str, Any]] = {
    "scale and shift": {"samples": N_SAMPLES, "sample_bytes": 4, "n_sample_sums": 2},
    "scale and shift of each row": {"samples": None, "sample_bytes": 4, "n_sample_sums": 2},
    "scale, shift and residual_gate": {
        "samples": N_SAMPLES,
        "sample_bytes": 6,
        "n_sample_sums": 3,
        "residual_gate": True,
    },
    "gate": {"gate_dtype": "bfloat16"},
    "gate_first": {"gate_dtype": "bfloat16", "gate_first": True},
    "rounding each": {"rounds_each": True},
}


class Kind(NamedTuple):
    """A problem without its width."""

    arch: str
    direction: str
    center: bool
    dtype: str
    residual: str | None = None
    activation: str | None = None
    pre_bias: bool = False
    n_column_sums: int = 0
    n_rows: int = 4096
    regime: str | None = None  # forced, or None
    modulation: str = ""  # of MODULATIONS

    def __str__(self) -> str:
        words = [self.arch, self.direction, "layer_norm" if self.center else "rms_norm", self.dtype]
        words += [f"residual {self.residual}"] if self.residual else []
        words += [self.activation] if self.activation else []
        words += ["pre_bias"] if self.pre_bias else []
        words += [self.modulation] if self.modulation else []
        words += [f"{self.n_column_sums} sums", f"{self.n_rows} rows"]
        return " ".join(words + ([f"forced {self.regime}"] if self.regime else []))


def every_width() -> Sequence[int]:
    return range(1, WIDEST + 1)


def dense_widths() -> list[int]:
    """Every width up to 20000, then every multiple of 512 and its neighbors."""
    wide = {n + d for n in range(20480, WIDEST + 1, 512) for d in (-1, 0, 1)}
    return sorted({*range(1, 20001), *wide, *sparse_widths()})


def sparse_widths() -> list[int]:
    """Powers of two, halves between them and their neighbors; some random widths."""
    edges = [(1 << k) * m // 2 for k in range(1, 21) for m in (2, 3)] + [5120, 7168, 10240]
    near = {edge + d for edge in edges for d in (-8, -1, 0, 1, 8)}
    draw = random.Random(1)
    drawn = {draw.randint(1, 1 << draw.randint(4, 20)) for _ in range(120)}
    return sorted(n for n in near | drawn if 1 <= n <= WIDEST + 8)


def kinds(archs: Sequence[str], quick: bool) -> Iterator[tuple[Kind, Sequence[int]]]:
    """The kinds of problems, each with its widths."""
    forced = regimes()
    sparse, dense = sparse_widths(), dense_widths()
    plain = list(itertools.product(("forward", "backward"), (False, True), ("bfloat16", "float32")))
    if not quick:
        for direction, center, dtype in plain:
            sums = 1 + center if direction == "backward" else 0
            yield Kind("sm_90", direction, center, dtype, n_column_sums=sums), every_width()
        for direction, center, dtype in plain:
            for residual, activation in itertools.product(
                (None, "bfloat16", "float32"), (None, "silu", "gelu")
            ):
                for options in _pre_bias(direction, center):
                    kind = Kind("sm_90", direction, center, dtype, residual, activation, *options)
                    yield kind, dense
        for kind in _modulated(("sm_90",), (4096,)):
            if kind.residual is None and kind.dtype == "bfloat16":
                yield kind, dense
    for kind in _modulated(archs, (8, 4096)):
        yield kind, sparse[::3]
    every_option = itertools.product(
        archs,
        ("forward", "backward"),
        (False, True),
        ("bfloat16", "float32", "float64"),
        (None, "bfloat16", "float32"),
        ACTIVATIONS,
    )
    for arch, direction, center, dtype, residual, activation in every_option:
        for options, n_rows in itertools.product(_pre_bias(direction, center, every=True), ROWS):
            # The activation and the number of rows interact little: not each with each.
            if activation in (None, "silu", "gelu") or n_rows == 4096:
                kind = Kind(arch, direction, center, dtype, residual, activation, *options, n_rows)
                yield kind, sparse
        if activation in (None, "silu"):
            sums = 1 + center if direction == "backward" else 0
            for regime, n_rows in itertools.product(forced, (8, 4096)):
                kind = Kind(arch, direction, center, dtype, residual, activation)
                kind = kind._replace(n_column_sums=sums, n_rows=n_rows, regime=regime)
                yield kind, sparse[::3]


def _modulated(archs: Sequence[str], rows: Sequence[int]) -> Iterator[Kind]:
    """Kinds with each of the modulations that the rownorm that Python imports has."""
    from rownorm.launch import Problem

    known = {field.name for field in dataclasses.fields(Problem)}
    of_norms = itertools.product(archs, ("forward", "backward"), (False, True))
    for arch, direction, center in of_norms:
        for dtype, residual, n_rows, name in itertools.product(
            ("bfloat16", "float32"), (None, "bfloat16"), rows, MODULATIONS
        ):
            modulation = MODULATIONS[name]
            if not known.issuperset(modulation):
                continue
            if modulation.get("residual_gate") and residual is None:
                continue
            kind = Kind(arch, direction, center, dtype, residual, n_rows=n_rows, modulation=name)
            if direction == "backward":
                sums = 1 + center + modulation.get("n_sample_sums", 0)
                kind = kind._replace(n_column_sums=sums)
            yield kind


def _fields_of(kind: Kind) -> dict[str, Any]:
    """The fields of Problem that the kind's modulation is."""
    import torch

    fields = dict(MODULATIONS.get(kind.modulation, {}))
    if kind.direction == "forward":
        fields.pop("n_sample_sums", None)
    if "gate_dtype" in fields:
        fields["gate_dtype"] = getattr(torch, fields["gate_dtype"])
    if "samples" in fields:
        from rownorm.launch.problem import Samples

        n_samples = fields["samples"] or kind.n_rows
        fields["samples"] = Samples(kind.n_rows // n_samples, n_samples)
    return fields


def regimes() -> tuple[str, ...]:
    """The regimes of the rownorm that Python imports; an older one may have fewer."""
    from rownorm.launch import Plan

    names: tuple[str, ...] = get_args(get_type_hints(Plan)["regime"])
    return names


def _pre_bias(direction: str, center: bool, every: bool = False) -> list[tuple[bool, int]]:
    """(pre_bias, n_column_sums): without and with a pre_bias; or every number of sums."""
    if direction == "forward":
        return [(False, 0), (True, 0)]
    return [(False, n) for n in (range(4) if every else (1 + center, 2 + center))]


def fields_of_plans() -> list[str]:
    """The fields of a plan that are compared."""
    from rownorm.launch import Plan

    return [field.name for field in dataclasses.fields(Plan) if field.name not in NOT_COMPARED]


def digests(
    kind: Kind, widths: Sequence[int], devices: dict[str, Any], fields: Sequence[str]
) -> list[list[str]]:
    """One digest for each BLOCK of widths and each field."""
    import torch

    from rownorm.launch import Problem, force, plan

    get = operator.attrgetter(*fields)
    dtype, residual = getattr(torch, kind.dtype), kind.residual and getattr(torch, kind.residual)
    rest = (kind.center, kind.n_column_sums, devices[kind.arch], kind.activation, kind.pre_bias)
    more = _fields_of(kind)
    found = []
    with force(regime=kind.regime) if kind.regime else contextlib.nullcontext():
        for first in range(0, len(widths), BLOCK):
            plans = []
            for n_cols in widths[first : first + BLOCK]:
                problem = Problem(
                    kind.direction, kind.n_rows, n_cols, dtype, residual, *rest, **more
                )  # type: ignore[arg-type]
                try:
                    plans.append(get(plan(problem)))
                except ValueError:
                    plans.append(("ValueError",) * len(fields))
            found.append([_digest(values) for values in zip(*plans, strict=True)])
    return found


def _digest(values: Sequence[Any]) -> str:
    return hashlib.blake2b(",".join(map(str, values)).encode(), digest_size=6).hexdigest()


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--quick", is_flag=True, help="Leave out what takes most of the time: widths in large numbers."
)
@click.option("--arch", "archs", multiple=True, help="Only these architectures, beside sm_90.")
def write(out: Path, quick: bool, archs: tuple[str, ...]) -> None:
    """Plan many problems with the rownorm that Python imports."""
    import triton

    from rownorm.launch import device_of
    from rownorm.launch.resources import TARGETS

    devices = {arch: target.device for arch, target in TARGETS.items()}
    devices["interpreter"] = device_of(-1)
    found: dict[str, Any] = {}
    fields = fields_of_plans()
    for kind, widths in kinds(archs or tuple(devices), quick):
        found[f"{kind}, {len(widths)} widths"] = digests(kind, widths, devices, fields)
    content = {"triton": triton.__version__, "fields": fields, "plans": found}
    out.write_text(json.dumps(content, indent=0))
    click.echo(f"wrote {len(found)} kinds of problems to {out}")


@main.command()
@click.argument("before", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def compare(before: Path, after: Path) -> None:
    """Name the kinds of problems whose plans differ; exit status 1 if there are any."""
    old, new = json.loads(before.read_text()), json.loads(after.read_text())
    if old["triton"] != new["triton"]:
        click.echo(f"written with different versions of Triton: {old['triton']}, {new['triton']}")
    for name in sorted({*old["fields"]} ^ {*new["fields"]}):
        click.echo(f"not compared: {name}, a field of one file only")
    fields = [name for name in old["fields"] if name in new["fields"]]
    both = [kind for kind in old["plans"] if kind in new["plans"]]
    lists = {len(widths): widths for widths in (every_width(), dense_widths(), sparse_widths())}
    lists[len(sparse_widths()[::3])] = sparse_widths()[::3]
    differing = 0
    for kind in both:
        widths = lists[int(kind.split()[-2])]
        pairs = zip(_by_field(old, kind), _by_field(new, kind), strict=True)
        differences = [[name for name in fields if a[name] != b[name]] for a, b in pairs]
        blocks = [i for i, names in enumerate(differences) if names]
        if blocks:
            differing += 1
            names = ", ".join(dict.fromkeys(itertools.chain(*differences)))
            spans = ", ".join(
                f"{widths[i * BLOCK]} to {widths[min((i + 1) * BLOCK, len(widths)) - 1]}"
                for i in blocks[:4]
            )
            click.echo(f"{kind}: {len(blocks)} blocks differ in {names}: {spans}")
    alone = len(old["plans"]) + len(new["plans"]) - 2 * len(both)
    click.echo(
        f"{len(both)} kinds in both files, {differing} of them differ; {alone} in one file only"
    )
    raise SystemExit(1 if differing or not both else 0)


def _by_field(file: dict[str, Any], kind: str) -> list[dict[str, str]]:
    """The digests of each block of widths, by the name of the field."""
    return [dict(zip(file["fields"], block, strict=True)) for block in file["plans"][kind]]


if __name__ == "__main__":
    main()
