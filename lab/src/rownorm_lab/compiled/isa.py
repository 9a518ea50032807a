"""Machine code as text: SASS and PTX for NVIDIA, AMD ISA. Each line with its source line and what kind it is."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from triton import knobs

Isa = Literal["sass", "ptx", "amdgcn"]
ISAS: tuple[Isa, ...] = ("sass", "ptx", "amdgcn")
Mark = Literal["load", "store", "atomic", "shared", "barrier", "reduction", "spill", ""]

_MARKS: dict[Isa, tuple[tuple[str, Mark], ...]] = {  # the first pattern that an opcode begins with
    "sass": (
        (r"(LDGSTS|LDG)(\.|$)", "load"),
        (r"STG", "store"),
        (r"ATOM|RED\.|REDG", "atomic"),
        (r"LDL|STL", "spill"),
        (r"SHFL|REDUX|CREDUX", "reduction"),
        (r"LDS|STS|ST\.|LDSM|STSM|STAS", "shared"),
        (r"BAR|UCGABAR|SYNCS", "barrier"),
    ),
    "ptx": (
        (r"ld\.(relaxed\.\w+\.)?global|cp\.async\.c[ag]", "load"),
        (r"st\.global", "store"),
        (r"atom|red\.", "atomic"),
        (r"(ld|st)\.local", "spill"),
        (r"shfl|redux", "reduction"),
        (r"(ld|st)\.(async\.)?.*shared|ldmatrix|stmatrix", "shared"),
        (r"bar\.|barrier|mbarrier", "barrier"),
    ),
    "amdgcn": (
        (r"(global|buffer|flat)_load_", "load"),
        (r"(global|buffer|flat)_store_", "store"),
        (r"(global|buffer|flat)_atomic_", "atomic"),
        (r"scratch_", "spill"),
        (r"ds_(bpermute|permute|swizzle)|v_readlane|v_permlane|v_\w+_dpp", "reduction"),
        (r"ds_", "shared"),
        (r"s_barrier", "barrier"),
    ),
}


class Line(NamedTuple):
    """One instruction or label."""

    text: str
    opcode: str  # "" for a label
    mark: Mark
    width: int  # bytes of one thread, of a global access; else 0
    file: str  # the source that it was compiled from, "" if unknown
    number: int  # line of that file


def default_isa(compiled: Any) -> Isa:
    """The machine code of a compiled kernel: SASS or AMD ISA."""
    return "amdgcn" if "amdgcn" in compiled.asm else "sass"


def lines_of(compiled: Any, isa: Isa) -> list[Line]:
    """The code of a compiled kernel. ValueError if it was compiled for the other vendor."""
    if isa == "sass" and "cubin" in compiled.asm:
        return list(_sass(disassembled(compiled.asm["cubin"])))
    if isa not in compiled.asm:
        known = "sass and ptx" if "cubin" in compiled.asm else "amdgcn"
        raise ValueError(f"the target has no {isa}; it has {known}")
    return list(_assembly(compiled.asm[isa], isa))


def counts(lines: Sequence[Line]) -> dict[str, int]:
    """How many instructions of each kind there are in the code."""
    found = Counter(line.mark for line in lines if line.mark)
    return {mark: found[mark] for mark in sorted(found)}


def widths(lines: Sequence[Line], mark: Mark) -> dict[int, int]:
    """Bytes of one thread to how many instructions of that kind have that width."""
    return dict(sorted(Counter(line.width for line in lines if line.mark == mark).items()))


def most_loads(lines: Sequence[Line]) -> int:
    """The most global loads between two branches: how many a thread can have in flight."""
    most = current = 0
    for line in lines:
        branches = not line.opcode or re.match(r"BRA|EXIT|bra|ret", line.opcode) is not None
        current = 0 if branches else current + (line.mark == "load")
        most = max(most, current)
    return most


def unrolling(compiled: Any) -> float:
    """How many turns of a loop of loads ptxas made into one: the loads in flight in SASS over those in PTX."""
    if "cubin" not in compiled.asm:
        return 1.0
    before = most_loads(lines_of(compiled, "ptx"))
    return max(1.0, most_loads(lines_of(compiled, "sass")) / before) if before else 1.0


@lru_cache(maxsize=4)  # an analysis reads the same code twice
def disassembled(cubin: bytes) -> str:
    """SASS with line information, by the nvdisasm that Triton brings."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        # Without its analysis of the data flow, which takes as long as all else and changes nothing here.
        command = [knobs.nvidia.nvdisasm.path, "-c", "-g", "-ndf", str(file)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _sass(text: str) -> Iterator[Line]:
    file, number = "", 0
    for raw in text.splitlines():
        if place := re.match(r'\s*//## File "(.*?)", line (\d+)', raw):
            file, number = place[1], int(place[2])
        elif found := re.match(
            r"\s*/\*[0-9a-f]+\*/\s+(\{?\s*(?:@!?U?P\w+\s+)?([A-Z][\w.]*).*?);", raw
        ):
            yield _line(" ".join(found[1].split()), found[2], "sass", file, number)
        elif label := re.match(r"(\.L_\w+):", raw):
            yield Line(f"{label[1]}:", "", "", 0, "", 0)


def _assembly(text: str, isa: Isa) -> Iterator[Line]:
    """PTX and AMD assembly: ``.file`` numbers the sources, ``.loc`` names the line of what follows."""
    files = dict[str, str]()
    for index, *names in re.findall(
        r'^\s*\.file\s+(\d+) "([^"]*)"(?: "([^"]*)")?', text, re.MULTILINE
    ):
        files[index] = "/".join(filter(None, names))
    file, number = "", 0
    for raw in text.splitlines():
        stripped = raw.split(";" if isa == "amdgcn" else "//")[0].strip().rstrip(";")
        if place := re.match(r"\.loc\s+(\d+)\s+(\d+)", stripped):
            file, number = files.get(place[1], ""), int(place[2])
        elif stripped.startswith(".Lfunc_end"):
            return
        elif label := re.fullmatch(r"(\.LBB\w+|\$L__BB\w+):", stripped):
            yield Line(f"{label[1]}:", "", "", 0, "", 0)
        elif found := _OPCODES[isa].match(stripped):
            yield _line(stripped, found[1], isa, file, number)


_OPCODES = {
    "ptx": re.compile(r"(?:@!?%?\w+\s+)?([a-z]\w*(?:\.[\w:]+)*)(?=\s|$)"),
    "amdgcn": re.compile(r"((?:s|v|ds|global|buffer|flat|scratch)_\w+)"),
}


def _line(text: str, opcode: str, isa: Isa, file: str, number: int) -> Line:
    mark: Mark = next((mark for pattern, mark in _MARKS[isa] if re.match(pattern, opcode)), "")
    width = _width(text, opcode, isa) if mark in ("load", "store", "atomic") else 0
    return Line(text, opcode, mark, width, file, number)


def _width(text: str, opcode: str, isa: Isa) -> int:
    """Bytes that one thread moves."""
    if isa == "amdgcn":
        found = re.search(r"dwordx(\d)", opcode)
        return (
            4 * int(found[1]) if found else 4 if "dword" in opcode else 1 if "byte" in opcode else 2
        )
    if isa == "ptx":
        if copy := re.search(r"cp\.async.*\], (0x[0-9a-f]+|\d+)", text):
            return int(copy[1], 0)
        found = re.search(r"(?:\.v(\d))?\.[bfsu](\d+)$", opcode)
        return int(found[1] or 1) * int(found[2]) // 8 if found else 0
    found = re.search(r"\.(?:[US])?(128|64|16|8)\b", opcode)
    return int(found[1]) // 8 if found else 4
