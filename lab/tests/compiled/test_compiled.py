"""Analyses of kernels that are compiled for GPUs that are not here.

Tests run in Triton's interpreter, which cannot compile. So this file is also a script, which a test runs in a process
without the interpreter; it prints JSON.
"""

import json
import sys
from pathlib import Path

import msgspec
import pytest
import triton

from rownorm.inside import INPUTS
from rownorm_lab.commands.analyze.command import DEFAULT_TARGETS
from rownorm_lab.compiled import compile as compile_module
from rownorm_lab.data.analyses import Analysis
from rownorm_lab.data.analysis_tables import text_of
from rownorm_lab.data.case import Case
from rownorm_lab.providers.data import input_names
from support.compiled import json_of

PAGE = Path(__file__).parents[3] / "docs" / "analysis.md"
BLOCKS = (64, 128, 256, 512, 1024)  # of its first example
# (operation, direction, rows, columns, target, regime that is forced): every regime, a width that fills no tile, rows
# that are not a multiple of a tile, and rows that do not begin at a sector.
CASES = [
    ("rms_norm", "forward", 1001, 256, "sm_90", ""),
    ("rms_norm", "backward", 6001, 1000, "sm_90", ""),
    ("rms_norm", "forward", 50, 1000, "gfx942", ""),
    ("layer_norm", "forward", 40, 65536, "sm_90", ""),
]
MORE = [
    ("layer_norm", "backward", 40, 65536, "gfx942", ""),
    ("layer_norm", "backward", 3001, 1003, "sm_90", ""),
    ("layer_norm", "backward", 700, 65536, "sm_90", "grid"),
    ("layer_norm", "backward", 2000, 8192, "sm_90", "cluster"),
    ("rms_norm", "forward", 300, 131072, "sm_90", "cluster"),
    ("rms_norm", "forward", 3, 1 << 20, "sm_90", "split"),
    ("rms_norm", "forward", 77, 5000, "sm_90", "looped"),
    ("layer_norm", "backward", 77, 5000, "sm_80", "looped"),
    ("layer_norm", "backward", 20000, 100, "gfx90a", ""),
    ("add_layer_norm", "forward", 100, 4096, "sm_100", ""),
    ("add_rms_norm", "backward", 100, 4096, "gfx942", ""),
]


def differences(cases):
    """Where the traffic that some programs and turns stand for differs from that of all of them."""
    from rownorm.launch import force
    from rownorm_lab.compiled import llir, traffic
    from rownorm_lab.compiled.compile import compile_case, target_of

    wrong = []
    for operation, direction, rows, cols, target, regime in cases:
        case = Case(operation=operation, direction=direction, rows=rows, cols=cols)
        with force(**({"regime": regime} if regime else {})):
            compiled = compile_case(case, target_of(target))
        for kernel in compiled.kernels:
            found = traffic.traffic_of(kernel, target, cols * 2, rows)
            function = llir.parse(kernel.compiled.asm["llir"])
            everything = kernel._replace(share=kernel.n_programs, turns_over=0, sections=0)
            counts, _ = traffic._counted(everything, function, found.sector_bytes, cols * 2, rows)
            flows = {(flow.tensor, flow.kind): flow for flow in found.flows}
            expected = {(flow.tensor, flow.kind): flow for flow in traffic.flows_of(counts, kernel)}
            for key in {*flows, *expected}:
                pair = [
                    (one[key].requests, one[key].sectors, one[key].bytes) if key in one else None
                    for one in (flows, expected)
                ]
                # Sampled turns of rows that are not aligned are an estimate.
                exact = not (kernel.turns_over and cols * 2 % found.sector_bytes)
                if not _close(*pair, 1e-9 if exact else 0.01):
                    wrong.append(f"{case.title} {target} {kernel.name} {key}: {pair}")
    return wrong


def _close(some, all_of_them, tolerance):
    if some is None or all_of_them is None:
        return False
    return all(abs(a - b) <= tolerance * max(a, b) for a, b in zip(some, all_of_them, strict=True))


def test_some_programs_stand_for_all(triton_cache):
    assert not json_of([__file__, "CASES"], triton_cache)


@pytest.mark.exhaustive
def test_some_programs_stand_for_all_in_every_regime(triton_cache):
    assert not json_of([__file__, "MORE"], triton_cache)


@pytest.fixture(scope="module")
def printed(triton_cache):
    """What the first example of docs/analysis.md prints with --json, for all default targets."""
    arguments = [*example()[0], "--target", ",".join(DEFAULT_TARGETS), "--json"]
    return json_of(["-m", "rownorm_lab", "analyze", *arguments], triton_cache)


@pytest.fixture
def block_table(printed):
    """(target, block) to an analysis, and the sources of its fields."""
    found = {(one["target"], one["block"]): one for one in printed["analyses"]}
    return found, printed["sources"]


def example() -> tuple[list[str], list[str]]:
    """The arguments of the first example of docs/analysis.md, and the lines of its output that the page shows."""
    command, _, rest = PAGE.read_text().partition("    rownorm analyze ")[2].partition("\n")
    shown = rest[rest.index("    rms_norm forward") : rest.index("Read it from the top")]
    return command.split(), [line[4:] for line in shown.strip("\n").splitlines()]


@pytest.mark.skipif(
    f"Triton {triton.__version__};" not in example()[1][0],
    reason="docs/analysis.md was made with another Triton",
)
def test_the_example_of_the_documents_is_what_the_command_prints(printed):
    analyses = msgspec.convert(printed["analyses"], list[Analysis], strict=False)
    shown = text_of([one for one in analyses if one.target == "sm_90"])
    assert [line.rstrip() for line in shown] == example()[1]


def test_block_sizes_for_an_h200_and_an_mi300x(block_table):
    analyses, sources = block_table
    assert set(analyses) == {(t, b) for t in DEFAULT_TARGETS for b in (None, *BLOCKS)}
    for (target, block), one in analyses.items():
        [kernel] = one["kernels"]
        by_tensor = {tensor["tensor"]: tensor for tensor in kernel["tensors"]}
        assert by_tensor["x"]["passes"] == (2 if block else 1)
        assert by_tensor["y"]["passes"] == 1
        sectors_of_row = 4096 * 2 // kernel["sector_bytes"]
        assert by_tensor["y"]["sectors"] == sectors_of_row * one["case"]["rows"]
        assert kernel["spilled_bytes"] == 0
        assert one["memory_bytes"] == one["compulsory_bytes"]
        width = max(map(int, kernel["load_widths"]))
        if block in (64, 1024):
            assert width == (2 if block == 64 else 8 if target == "gfx942" else width)
        assert width == by_tensor["x"]["bytes_per_thread"]
    # A block of 64 columns and 128 threads: half of the threads load what the others load.
    narrow = analyses["sm_90", 64]["kernels"][0]
    assert narrow["sector_use"] == 1024 / 1792 < analyses["sm_90", 1024]["kernels"][0]["sector_use"]
    assert narrow["load_requests_per_row"] == 3 * 4096 / 64 * 4
    assert sources["registers"] == "compiler"
    assert sources["load_sectors_per_row"] == "derived"
    assert sources["measured"] == "measured"


def test_the_source_of_a_kernel(triton_cache):
    found = json_of(["-m", "rownorm_lab", "source", "plain_loop", "--json"], triton_cache)
    assert found["isa"] == "sass"
    first = found["code"][0]
    assert first["function"] == "rms_norm_kernel"
    loads = [
        pair["source"]
        for pair in first["lines"]
        if any(mark == "load" for mark, _ in pair["instructions"])
    ]
    assert len(loads) == 3
    assert all("tl.load(" in line for line in loads)
    stores = [
        pair["source"]
        for pair in first["lines"]
        if any(mark == "store" for mark, _ in pair["instructions"])
    ]
    assert len(stores) == 1
    assert "tl.store(" in stores[0]
    answers = dict(found["answers"])
    assert answers["How many passes over the rows?"].startswith(
        "x is loaded 2 times; y is stored once"
    )


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_tensor_of_a_form_has_a_size(direction):
    case = Case(
        operation="add_layer_norm",
        direction=direction,
        rows=8,
        cols=16,
        sample_rows=4,
        residual_gate=True,
        gate_activation="silu",
    )
    sizes = compile_module._sizes(case, None, 1)
    for name in input_names(case):
        assert sizes[name] == sizes[f"d{name}"] > 0
        assert (name in compile_module.ROWS) == (INPUTS[name].extent == "rows")


if __name__ == "__main__":
    print(json.dumps(differences(globals()[sys.argv[1]])))
