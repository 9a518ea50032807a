"""Compare the machine code that two revisions of rownorm compile to. Needs no GPU.

    PYTHONPATH=<old checkout>/src python tools/same_code.py dump --out old.jsonl
    PYTHONPATH=src python tools/same_code.py dump --out new.jsonl
    python tools/same_code.py compare old.jsonl new.jsonl

``dump`` compiles the kernels of every case in ``same_code_cases.json`` and writes one line of JSON per case: for each
kernel a hash of its instructions, their size, its warps, and what it takes of registers, stack and shared memory. An
interrupted dump is resumed. ``compare`` lists the cases that differ and exits with status 1 if there are any. It
names those that lose occupancy: 8 registers more once cost a kernel a quarter of its speed (experiment FR-11).

Kernels are compiled without line information: with it, the assembler may allocate registers differently after an edit
that only moves lines.

For NVIDIA GPUs the hash is of the bytes of the cubin's ``.text`` section: instructions and their scheduling, without
symbols, line information and comments. For AMD GPUs it is of the instructions and labels of the assembly.

A case names tensors and options, never settings or constants of a kernel, so one list of cases serves every revision. A
revision without these tensors or options leaves the case out.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

CASES = Path(__file__).with_name("same_code_cases.json")
EPS = {"rms_norm": 1e-6, "layer_norm": 1e-5}
INPUTS = ("x", "residual", "pre_bias", "weight", "bias")  # of revisions that do not describe them
ROUNDINGS = ("once", "llama")
ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh")


class Case(NamedTuple):
    """One pass of one norm on one architecture."""

    operation: str  # "rms_norm" or "layer_norm"
    direction: str  # "forward" or "backward"
    n_cols: int
    n_rows: int = 4096
    dtype: str = "bfloat16"
    residual_dtype: str | None = None
    parameters: str = (
        "weight"  # names joined by "+", of all tensors but x and residual; "" for none
    )
    arch: str = "sm_90"
    samples: int | None = None  # of scale, shift and residual_gate; None: every row has its own
    group_cols: int | None = None
    options: tuple[
        tuple[str, Any], ...
    ] = ()  # names and values of the ``Program``; eps is the norm's default

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Case:
        """The case of a line of the list, where an option is written as if it was a field."""
        known = {name: value for name, value in fields.items() if name in cls._fields}
        options = {name: value for name, value in fields.items() if name not in known}
        return cls(**known).having(**options)

    def having(self, **options: Any) -> Case:
        """The case with further options."""
        return self._replace(options=(*self.options, *options.items()))

    @property
    def fields(self) -> dict[str, Any]:
        """What ``of`` takes: without defaults."""
        fields = self._asdict()
        options = dict(fields.pop("options"))
        given = {k: v for k, v in fields.items() if v != self._field_defaults.get(k, "")}
        return given | options

    @property
    def key(self) -> str:
        """The case as one line of text, defaults left out."""
        shown = {k: v for k, v in self.fields.items() if k not in self._fields[:4]}
        words = [self.operation, self.direction, f"{self.n_rows}x{self.n_cols}"]
        return " ".join(words + [f"{name}={value}" for name, value in shown.items()])


@click.group(help=__doc__.splitlines()[0])
def main() -> None:
    """The command group."""


@main.command("cases")
@click.option("--table", type=click.Path(path_type=Path), required=True, help="A tuned table.")
@click.option("--out", type=click.Path(path_type=Path), default=CASES, show_default=True)
def write_cases(table: Path, out: Path) -> None:
    """Write the list of cases: one for each row of a tuned table, and a fixed list."""
    rows = json.loads(table.read_text())["plans"]
    cases = dict.fromkeys((*fixed_cases(), *(_case_of_row(row) for row in rows)))
    lines = [json.dumps(case.fields) for case in cases]
    out.write_text("[\n " + ",\n ".join(lines) + "\n]\n")
    click.echo(f"{len(cases)} cases in {out}")


@main.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A JSON Lines file.")
@click.option("--cases", type=click.Path(path_type=Path, exists=True), default=CASES)
@click.option("--match", default="", help="Only cases whose text matches this expression.")
@click.option("--every", default=1, show_default=True, help="Only every n-th of those cases.")
@click.option("--line-info", is_flag=True, help="Keep line information, as in kernels that run.")
@click.option("--sass", type=click.Path(path_type=Path), help="A folder for disassembled kernels.")
def dump(
    out: Path, cases: Path, match: str, every: int, line_info: bool, sass: Path | None
) -> None:
    """Compile the cases with the rownorm that Python finds, and write what comes of them."""
    known = {line["case"] for line in _read(out)} if out.exists() else set()
    chosen = [Case.of(fields) for fields in json.loads(cases.read_text())]
    chosen = [case for case in chosen if re.search(match, case.key)][::every]
    # In an order that mixes the kinds of cases, so that an interrupted dump is a sample of all of them.
    chosen.sort(key=lambda case: hashlib.sha256(case.key.encode()).digest())
    todo = [case for case in chosen if case.key not in known and _exists(case)]
    out.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="same_code_") as cache, out.open("a") as file:
        os.environ["TRITON_CACHE_DIR"] = cache
        os.environ["TRITON_DISABLE_LINE_INFO"] = str(int(not line_info))
        for done, case in enumerate(todo, 1):
            kernels = [_code(one, case, sass) for one in _compile(case)]
            file.write(json.dumps({"case": case.key, "kernels": kernels}) + "\n")
            file.flush()
            seconds = time.monotonic() - started
            click.echo(f"{done}/{len(todo)} {seconds:.0f} s  {case.key}", err=True)


@main.command()
@click.argument("before", type=click.Path(path_type=Path, exists=True))
@click.argument("after", type=click.Path(path_type=Path, exists=True))
def compare(before: Path, after: Path) -> None:
    """List the cases in both dumps whose kernels differ; exit with status 1 if there are any."""
    old = {line["case"]: line["kernels"] for line in _read(before)}
    new = {line["case"]: line["kernels"] for line in _read(after)}
    both = [case for case in old if case in new]
    if not both:
        raise click.ClickException(f"{before} and {after} have no case in common")
    differing = [case for case in both if not _is_same(old[case], new[case])]
    for case in differing:
        click.echo(case)
        for name, kernels in (("before", old[case]), ("after", new[case])):
            for kernel in kernels:
                click.echo(f"    {name:6}  {_line(kernel)}")
    if slower := [case for case in differing if _may_be_slower(old[case], new[case])]:
        click.echo("\n    ".join(["Fewer warps fit, or more is spilled; measure these:", *slower]))
    alone = len(old) + len(new) - 2 * len(both)
    click.echo(f"{len(both)} cases compared, {len(differing)} differ, {alone} in one file only")
    sys.exit(1 if differing else 0)


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _is_same(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> bool:
    """Whether both lists have the same code and resources; kernels may have other names."""
    return [{**k, "kernel": ""} for k in old] == [{**k, "kernel": ""} for k in new]


def _may_be_slower(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> bool:
    """Whether a kernel spills more than before, or fewer of its warps fit on a multiprocessor."""
    return any(
        after["spills"] > before["spills"] or _warps(after) < _warps(before)
        for before, after in zip(old, new, strict=False)
    )


def _warps(kernel: dict[str, Any]) -> int:
    """Warps of a kernel that a multiprocessor holds at once."""
    from rownorm_lab.compiled.occupancy import occupancy

    return occupancy(*(kernel[name] for name in ("arch", "registers", "shared", "warps"))).warps


def _line(kernel: dict[str, Any]) -> str:
    return (
        f"{kernel['kernel']:24} {kernel['hash'][:12]} {kernel['bytes']:6} bytes, "
        f"{kernel['registers']:3} registers, {kernel['spills']} spilled, {kernel['shared']} shared"
    )


def _case_of_row(row: dict[str, Any]) -> Case:
    """A case that a row of a tuned table is for."""
    option = row["option"].split("+")
    activation = next((name for name in ACTIVATIONS if name in option), None)
    if "activation" in option:
        activation = "silu"
    parameters = ["weight"] + ["bias"] * row["center"] + ["pre_bias"] * ("pre_bias" in option)
    dtypes = {0: None, 2: "bfloat16", 4: "float32"}
    case = Case(
        operation="layer_norm" if row["center"] else "rms_norm",
        direction=row["direction"],
        n_cols=row["max_cols"],
        dtype=dtypes[row["itemsize"]] or "",
        residual_dtype=dtypes[row["residual"]],
        parameters="+".join(parameters),
    )
    return case.having(activation=activation) if activation else case


def fixed_cases() -> Iterator[Case]:
    """Cases that planning rules decide, over both operations and directions."""
    for operation, parameters in (("rms_norm", "weight"), ("layer_norm", "weight+bias")):
        for direction in ("forward", "backward"):
            plain = Case(operation, direction, 4096, parameters=parameters)
            wide = plain._replace(n_cols=32768)
            for n_cols in (1, 127, 1000, 5000, 12289):
                yield plain._replace(n_cols=n_cols)
            for residual in (None, "bfloat16", "float32"):
                yield plain._replace(n_rows=1, n_cols=1 << 20, residual_dtype=residual)
                yield plain._replace(n_rows=4, n_cols=1 << 18, residual_dtype=residual)
                yield plain._replace(n_cols=65536, residual_dtype=residual)
                yield wide._replace(dtype="float32", residual_dtype=residual)
            for case in (plain, wide):
                for activation in ACTIVATIONS:
                    yield case.having(activation=activation)
                yield case.having(rounding="llama")
                yield case._replace(residual_dtype="float32").having(rounding="llama")
                yield case.having(weight_shift=1.0)
                yield case._replace(parameters="")
                yield case._replace(parameters=f"{parameters}+pre_bias")
                yield case._replace(parameters=f"{parameters}+pre_bias").having(activation="gelu")
                yield case._replace(parameters=f"{parameters}+pre_bias", residual_dtype="bfloat16")
                yield case._replace(dtype="float64")
                yield case._replace(dtype="float16")
            yield plain._replace(n_rows=4)
            yield plain._replace(n_cols=1 << 18)
            for arch in ("sm_80", "sm_100", "gfx942"):
                for n_cols in (1000, 8192, 65536):
                    yield plain._replace(n_cols=n_cols, arch=arch)
                yield plain._replace(n_rows=4, n_cols=1 << 18, arch=arch)
                yield plain._replace(residual_dtype="bfloat16", arch=arch)
                yield wide._replace(residual_dtype="float32", arch=arch)
            yield from _modulated_cases(plain)


def _modulated_cases(plain: Case) -> Iterator[Case]:
    """Scale, shift and gates, groups, rounding of every step, and a dtype of y."""
    image = plain._replace(parameters=f"{plain.parameters}+scale+shift", samples=16)
    yield image._replace(n_cols=1152).having(scale_shift=1.0)
    yield image._replace(n_cols=8192).having(scale_shift=1.0)
    yield image._replace(samples=None)
    gated = image._replace(
        parameters=f"{image.parameters}+residual_gate", residual_dtype="bfloat16"
    )
    yield gated._replace(n_cols=3072)
    with_gate = plain._replace(parameters=f"{plain.parameters}+gate")
    yield with_gate.having(gate_activation="silu")
    yield with_gate._replace(n_cols=32768).having(gate_activation="sigmoid")
    yield with_gate.having(gate_activation="silu", gate_first=True)
    yield with_gate._replace(group_cols=512).having(gate_activation="silu", gate_first=True)
    yield gated._replace(parameters=f"{image.parameters}+gate").having(rounding="each")
    yield plain.having(rounding="each")
    yield plain.having(out_dtype="float32")
    yield image._replace(n_cols=3072, arch="gfx942")


class _Compiled(NamedTuple):
    asm: dict[str, Any]
    resources: Any  # rownorm.launch.resources.Resources


def _exists(case: Case) -> bool:
    """Whether the rownorm that Python finds, which may be an older one, has the tensors and options of a case."""
    import rownorm.program as described

    named = [name for name in case.parameters.split("+") if name]
    known = {*getattr(described, "INPUTS", INPUTS), *described.Program._fields}
    if not known.issuperset((*named, *dict(case.options))):
        return False
    if dict(case.options).get("rounding", "once") not in getattr(described, "ROUNDINGS", ROUNDINGS):
        return False
    return case.group_cols is None or hasattr(described, "GROUP_COLS")


def arguments(case: Case) -> tuple[Any, ...]:
    """The tensors and the ``Program`` of a case, without memory."""
    import torch

    import rownorm.program as described

    def empty(*shape: int, dtype: str = case.dtype) -> Any:
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    rows = (case.n_rows, case.n_cols)
    samples = rows
    if case.samples is not None:
        rows = (case.samples, case.n_rows // case.samples, case.n_cols)
        samples = (case.samples, 1, case.n_cols)
    shapes = {"gate": rows} | dict.fromkeys(("scale", "shift", "residual_gate"), samples)
    named = [name for name in case.parameters.split("+") if name]
    tensors = {name: empty(*shapes.get(name, rows[-1:])) for name in named}
    tensors["x"] = empty(*rows)
    if case.residual_dtype is not None:
        tensors["residual"] = empty(*rows, dtype=case.residual_dtype)
    options = dict(case.options)
    if "out_dtype" in options:
        options["out_dtype"] = getattr(torch, options["out_dtype"])
    program = described.Program(case.operation == "layer_norm", EPS[case.operation], **options)
    inputs = tuple(tensors.get(name) for name in getattr(described, "INPUTS", INPUTS))
    if case.group_cols is not None:
        from rownorm.ops.groups import in_groups

        inputs, program = in_groups(inputs, program, case.group_cols)
    return *inputs, program


def _compile(case: Case) -> list[_Compiled]:
    """The compiled kernels of a case, in the order in which they run."""
    from rownorm.launch import launcher, resources

    compiled: list[Any] = []

    def compile_for(*arguments: Any) -> Any:
        compiled.append(launcher.compile_for(*arguments))
        return compiled[-1]

    # Keep the compiled kernels, which compile_forward and compile_backward do not return.
    resources.compile_for = compile_for  # type: ignore[attr-defined, assignment]
    compile_pass = getattr(resources, f"compile_{case.direction}")
    target = resources.TARGETS[case.arch]
    result = compile_pass(*arguments(case), target)
    return [_Compiled(c.asm, r) for c, r in zip(compiled, result.kernels, strict=True)]


def _code(compiled: _Compiled, case: Case, sass: Path | None) -> dict[str, Any]:
    """One kernel's line of a dump."""
    asm, used = compiled
    code = text_section(asm["cubin"]) if "cubin" in asm else instructions(asm["amdgcn"]).encode()
    if sass is not None:
        sass.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w=.+-]+", "_", f"{case.key} {used.kernel}.txt")
        (sass / name).write_text(_disassembled(asm))
    return {
        "kernel": used.kernel,
        "hash": hashlib.sha256(code).hexdigest(),
        "bytes": len(code),
        "arch": case.arch,
        "warps": used.num_warps,
        "registers": used.registers,
        "spills": used.spills,
        "shared": used.shared,
    }


def text_section(cubin: bytes) -> bytes:
    """The machine code of a cubin: what its ELF sections named ``.text.<kernel>`` contain."""
    table, entry_size, count, names_index = (
        struct.unpack_from("<Q", cubin, 40)[0],
        *struct.unpack_from("<HHH", cubin, 58),
    )
    # Of each section: (offset of its name, type, flags, address, offset, size).
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + i * entry_size) for i in range(count)]
    names = sections[names_index][4]
    code = b""
    for name, _, _, _, offset, size in sections:
        if cubin.startswith(b".text.", names + name):
            code += cubin[offset : offset + size]
    return code


def instructions(amdgcn: str) -> str:
    """The instructions and branch labels of AMD assembly: no directives, comments, symbols or metadata."""
    lines = []
    for line in amdgcn.splitlines():
        line = line.split(";")[0].strip()
        is_label = re.fullmatch(r"\.LBB\w+:", line)
        if is_label or re.match(r"(s|v|ds|global|buffer|flat|scratch)_\w+", line):
            lines.append(re.sub(r"\s+", " ", line))
    return "\n".join(lines)


def _disassembled(asm: dict[str, Any]) -> str:
    """A kernel's instructions as text, to look at what differs."""
    if "cubin" not in asm:
        return instructions(asm["amdgcn"])
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(asm["cubin"])
        command = [knobs.nvidia.nvdisasm.path, "-c", "-novliw", str(file)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.stdout or ran.stderr


if __name__ == "__main__":
    main()
