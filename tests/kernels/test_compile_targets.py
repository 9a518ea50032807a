"""Kernels compiled for five GPUs, without a GPU: no spills, accesses of 16 bytes, shared memory within the limit.

Tests run in Triton's interpreter, which cannot compile. So this file is also a script: each test runs it for one target
and one set of cases, in a process without the interpreter, and reads a JSON list of failures.
"""

import json
import sys
from collections.abc import Iterator

import pytest
import torch

from support.compiled import json_of

WIDTHS = (256, 1000, 4096, 8192, 16384, 65536)
N_ROWS = 32768
# Registers of a thread at which an SM runs 32 warps. Clusters that prefetch nothing need that many warps, and programs
# of 16 warps, of which two then fit.
FULL_REGISTERS = 64
# Bytes of shared memory that one program may use (NVIDIA's compute capabilities; AMD's LDS).
MOST_SHARED = {
    "sm_80": 163 << 10,
    "sm_90": 227 << 10,
    "sm_100": 227 << 10,
    "gfx90a": 64 << 10,
    "gfx942": 64 << 10,
}
EVERY_PARAMETER = ("pre_bias", "weight", "bias")


MAIN_TARGETS = ("sm_90", "gfx942")
# Around powers of two, where the tile changes; every tile of narrow rows is among them.
NARROW_WIDTHS = (1, 2, 3, 4, 5, 8, 9, 12, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 100, 127, 128)
# Rows whose accesses have 2, 4 or 8 bytes: every number of warps, one chunk for each column and for two, several rows.
UNALIGNED_WIDTHS = (45, 157, 198, 301, 396, 450, 710, 863, 1501, 3002, 5729, 8191)
# LayerNorm backward of 12 columns for each thread has 64 or 80 registers, so that many warps run. An H200 was measured
# with what that spills there, 80 bytes (experiment UR-01).
UNALIGNED_SPILLS = 128
EVERYTHING = {"center": True, "activation": "gelu_tanh", "weight_shift": 1.0}


def plain_norms(dtype: str, widths: tuple[int, ...]) -> Iterator[tuple]:
    for n_cols in widths:
        yield n_cols, dtype, {"center": False}, ("weight",), None, N_ROWS
        yield n_cols, dtype, {"center": True}, ("weight", "bias"), None, N_ROWS


def common_cases(arch: str) -> Iterator[tuple]:
    """(columns, dtype, options, parameters, residual dtype, rows) of plain norms, those that take more registers.

    LayerNorm, for its mean and its bias, at more widths on the target with a tuned table, and RMSNorm at one;
    ``other_cases`` has the rest.
    """
    for n_cols in (256, 16384) if arch == "sm_90" else (8192,):
        yield n_cols, "bfloat16", {"center": True}, ("weight", "bias"), None, N_ROWS
    if arch in MAIN_TARGETS:
        yield 4096, "bfloat16", {"center": False}, ("weight",), None, N_ROWS
        yield 8192, "float32", {"center": True}, ("weight", "bias"), None, N_ROWS
    if arch == "sm_90":
        # The statistics of the narrowest rows take as much shared memory as the rows.
        yield 1, "float64", {"center": True}, ("weight", "bias"), None, N_ROWS
        yield 863, "bfloat16", {"center": True}, ("weight", "bias"), None, N_ROWS  # not aligned
    if arch in ("sm_80", "sm_100"):  # a thread has elements of many narrow rows
        yield 31, "float32", {"center": True}, ("weight", "bias"), None, N_ROWS


def narrow_cases(arch: str) -> Iterator[tuple]:
    """Rows of 1 to 128 columns in every dtype, with and without options and a residual."""
    for n_cols in NARROW_WIDTHS:
        for dtype in ("bfloat16", "float32", "float64"):
            yield from plain_norms(dtype, (n_cols,))
            yield n_cols, dtype, {"center": True}, ("weight", "bias"), dtype, N_ROWS
            yield n_cols, dtype, EVERYTHING, EVERY_PARAMETER, None, N_ROWS
            yield n_cols, dtype, EVERYTHING, EVERY_PARAMETER, "float32", N_ROWS


def unaligned_cases(arch: str) -> Iterator[tuple]:
    """Rows that begin at addresses which no access of 16 bytes can use: NVIDIA's have plans of their own."""
    if not arch.startswith("sm"):
        return
    for n_cols in UNALIGNED_WIDTHS:
        for dtype in ("bfloat16", "float32"):
            yield n_cols, dtype, {"center": True}, ("weight", "bias"), None, N_ROWS
            if n_cols <= 4096:  # else a third sum leaves no registers for such a plan
                yield n_cols, dtype, EVERYTHING, EVERY_PARAMETER, "float32", N_ROWS
        yield n_cols, "bfloat16", {"center": True}, ("weight", "bias"), "float32", N_ROWS


def other_cases(arch: str) -> Iterator[tuple]:
    """Every other width, and the options: all of them for the main targets, those of special plans for the others."""
    main_target, common = arch in MAIN_TARGETS, [*common_cases(arch)]
    plain = [*plain_norms("bfloat16", WIDTHS)]
    plain += plain_norms("float32", WIDTHS if main_target else (1000, 8192, 16384))
    plain += plain_norms("float64", (1,) if main_target else ())
    yield from (case for case in plain if case not in common)
    if arch in ("sm_80", "sm_100"):
        yield 200_000, "bfloat16", EVERYTHING, EVERY_PARAMETER, "float32", 1024
    if arch == "sm_80":
        yield 12288, "bfloat16", {"center": False}, (), None, 1024
    if not main_target:
        return
    if arch == "gfx942":
        yield 863, "bfloat16", {"center": True}, ("weight", "bias"), None, N_ROWS  # not aligned
    yield 1048576, "bfloat16", {"center": True}, ("weight", "bias"), None, 1
    yield 4096, "bfloat16", {"center": False, "activation": "relu"}, ("weight",), None, N_ROWS
    yield 4096, "bfloat16", {"center": False}, ("weight",), "bfloat16", N_ROWS
    for n_cols in (1000, 4096, 8192, 65536):
        yield n_cols, "bfloat16", {"center": False}, ("weight",), "float32", N_ROWS
        yield n_cols, "bfloat16", EVERYTHING, EVERY_PARAMETER, "float32", N_ROWS
    for n_cols in (
        1000,
        4096,
        16384,
        32768,
    ):  # the stream is rounded, so the statistics are computed differently
        yield n_cols, "bfloat16", {"center": True}, ("weight", "bias"), "bfloat16", N_ROWS
    yield 1048576, "bfloat16", {"center": True}, ("weight", "bias"), "bfloat16", 1
    for n_cols in (4096, 65536):
        yield n_cols, "bfloat16", {"center": False}, (), None, N_ROWS
    for n_cols in (1000, 4096, 8192):
        yield n_cols, "bfloat16", {"center": True}, ("weight", "bias"), "float64", N_ROWS
    for n_cols in (1000, 4096, 8192):
        yield n_cols, "float64", {"center": True}, ("weight", "bias"), None, N_ROWS
    if arch == "sm_90":  # the grid regime, in programs of one, two and four warps
        yield 16384, "bfloat16", {"center": True}, EVERY_PARAMETER, None, 16384
        for n_cols in (131072, 262144, 524288):
            yield n_cols, "bfloat16", {"center": False}, ("weight",), None, 1024
            yield n_cols, "bfloat16", {"center": True}, ("weight", "bias"), "bfloat16", 1024
            yield n_cols, "bfloat16", EVERYTHING, EVERY_PARAMETER, "float32", 1024
            yield n_cols, "float32", EVERYTHING, EVERY_PARAMETER, None, 1024


def mixed_cases(arch: str) -> Iterator[tuple]:
    """Rows of 16 and of 32 bits: y has another dtype than x."""
    for n_cols in (300, 600, 1024, 2560, 8192, 16384) if arch in MAIN_TARGETS else (600, 8192):
        for dtype, out_dtype, residual in (
            ("float32", torch.bfloat16, None),
            ("bfloat16", torch.float32, None),
            ("bfloat16", torch.float32, "bfloat16"),
            ("bfloat16", torch.float32, "float32"),
        ):
            options = {"center": True, "out_dtype": out_dtype}
            yield n_cols, dtype, options, ("weight", "bias"), residual, N_ROWS


def form_failures(
    arch: str, few: bool, widths: tuple[int, ...], norms: tuple[tuple, ...]
) -> list[str]:
    """What is wrong with the kernels of samples, gates and rounded steps, in every extent and order, at these widths.

    few: those forms only that have the most tensors. norms: (whether it is LayerNorm, dtype). They have no settings of
    their own at most widths, so they may spill; they must compile, and fit in shared memory.
    """
    from rownorm.launch.resources import TARGETS, compile_backward, compile_forward
    from rownorm.program import INPUTS, Program

    silu, first = {"gate_activation": "silu"}, {"gate_first": True}
    samples, rows = (64, 1), (64, 16)  # leading dimensions of a tensor of each extent
    forms = [  # (tensors beside x and weight, options)
        ({"scale": samples, "shift": samples}, {"scale_shift": 1.0}),
        ({"scale": rows, "shift": rows, "residual": rows}, {"rounding": "each"}),
        ({"residual": rows, "residual_gate": samples, "scale": samples, "shift": samples}, {}),
        ({"gate": rows}, silu | {"rounding": "llama"}),
        ({"gate": rows, "residual": rows, "residual_gate": rows}, silu | first),
    ]
    wrong, forms = [], forms[1:3] + forms[4:] if few else forms
    for n_cols in widths:
        for center, dtype in norms:
            x = torch.empty(*rows, n_cols, dtype=dtype, device="meta")
            for shapes, options in forms:
                tensors = {name: x.new_empty(*shape, n_cols) for name, shape in shapes.items()}
                tensors |= {"x": x, "weight": x.new_empty(n_cols)}
                program = Program(center, 1e-5, **options)
                for compile_pass in (compile_forward, compile_backward):
                    case = f"{compile_pass.__name__}, {n_cols} columns, {dtype}, {[*shapes]}, {options}"
                    try:
                        compiled = compile_pass(*map(tensors.get, INPUTS), program, TARGETS[arch])
                    except Exception as error:
                        wrong.append(f"{case}: does not compile: {error}")
                        continue
                    wrong += [
                        f"{case}, {compiled.plan}, {kernel.kernel}: {kernel.shared} bytes of shared memory"
                        for kernel in compiled.kernels
                        if kernel.shared > MOST_SHARED[arch]
                    ]
    return wrong


def failures(arch: str, cases: str) -> list[str]:
    """What is wrong with the kernels of a target, one line each. cases: one of CASES, or of FORMS."""
    from rownorm.launch.resources import TARGETS, compile_backward, compile_forward
    from rownorm.program import Program

    if cases in FORMS:
        return form_failures(arch, *FORMS[cases])

    target, wrong = TARGETS[arch], []
    for n_cols, dtype, options, parameters, residual_dtype, n_rows in CASES[cases](arch):
        x = torch.empty(n_rows, n_cols, dtype=getattr(torch, dtype), device="meta")
        residual = None if residual_dtype is None else x.to(getattr(torch, residual_dtype))
        given = [x[0].clone() if name in parameters else None for name in EVERY_PARAMETER]
        program = Program(eps=1e-5, **options)
        for compile_pass in (compile_forward, compile_backward):
            case = (
                f"{compile_pass.__name__}, {n_rows} x {n_cols} {dtype}, {options}, {parameters}, "
            )
            case += f"residual {residual_dtype}, "
            try:
                compiled = compile_pass(x, residual, *given, program, target)
            except Exception as error:
                wrong.append(f"{case}does not compile: {error}")
                continue
            for kernel in compiled.kernels:
                what = f"{case}{compiled.plan}, {kernel.kernel}: "
                if kernel.spills > (UNALIGNED_SPILLS if cases == "unaligned" else 0):
                    wrong.append(f"{what}{kernel.spills} bytes spilled")
                plain = residual is None and "pre_bias" not in parameters and not program.activation
                alone = kernel.kernel == "forward_cluster" and compiled.plan.num_stages == 1
                halves = kernel.kernel == "forward_resident" and kernel.num_warps == 16
                is_full = alone or (halves and arch.startswith("sm"))
                if plain and is_full and kernel.registers > FULL_REGISTERS:
                    wrong.append(f"{what}{kernel.registers} registers, so few programs to an SM")
                if kernel.shared > MOST_SHARED[arch]:
                    wrong.append(f"{what}{kernel.shared} bytes of shared memory")
                if n_cols <= max(NARROW_WIDTHS) or n_cols % 8 or program.out_dtype is not None:
                    continue  # a thread has less than 16 bytes of some rows, or they are not aligned
                if kernel.load_bytes < widest_access(kernel, compiled.plan, x, target):
                    wrong.append(f"{what}loads of {kernel.load_bytes} bytes at most")
                has_weight = "weight" in parameters
                loads, stores = wide_accesses(
                    kernel, compiled.plan, x, residual, has_weight, target
                )
                if kernel.wide_loads < loads:
                    wrong.append(f"{what}{kernel.wide_loads} loads of 16 bytes, {loads} expected")
                if kernel.wide_stores < stores:
                    wrong.append(
                        f"{what}{kernel.wide_stores} stores of 16 bytes, {stores} expected"
                    )
    return wrong


def widest_access(kernel, plan, x, target) -> int:
    """Bytes that a thread can load at once: 16, or its share of the tile if that is less."""
    if kernel.kernel == "column_sums":
        return 0
    threads = kernel.num_warps * target.device.warp_size
    return min(16, plan.block_rows * plan.block_cols * x.itemsize // threads)


def wide_accesses(kernel, plan, x, residual, has_weight, target) -> tuple[int, int]:
    """16-byte (loads, stores) of a kernel that moves its rows, and the weight of a row, in no smaller accesses."""
    if kernel.kernel == "column_sums":  # reads partial sums, not rows
        return 0, 0
    threads = kernel.num_warps * target.device.warp_size
    per_row_tensor = plan.block_rows * plan.block_cols * x.itemsize // (16 * threads)
    forward = kernel.kernel.startswith("forward")
    only_statistics = kernel.kernel in ("forward_moments", "backward_sums")
    rows_read = (1 if forward else 2) + (residual is not None and not only_statistics)
    rows_written = 0 if only_statistics else 1 + (forward and residual is not None)
    reads_weight = has_weight and plan.block_rows == 1 and kernel.kernel != "forward_moments"
    weights = bool(per_row_tensor) and reads_weight
    return rows_read * per_row_tensor + weights, rows_written * per_row_tensor


CASES = {
    "common": common_cases,
    "narrow": narrow_cases,
    "mixed": mixed_cases,
    "unaligned": unaligned_cases,
    "other": other_cases,
}
# Forms at one of the tiles of samples; in every regime, and at widths around these tiles.
FORMS = {
    "forms": (True, (3072,), ((True, torch.bfloat16),)),
    "more forms": (
        False,
        (7, 64, 1000, 1152, 2304, 3072, 5120, 8192, 12288, 20000, 131072),
        ((True, torch.bfloat16), (False, torch.float32)),
    ),
}
EXHAUSTIVE = pytest.mark.exhaustive
LIKE_GFX942 = pytest.param("gfx90a", marks=EXHAUSTIVE)
MORE_CASES = [pytest.param(name, marks=EXHAUSTIVE) for name in CASES if name != "common"]
MORE_CASES += [pytest.param(name, marks=EXHAUSTIVE) for name in FORMS]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx942", LIKE_GFX942])
@pytest.mark.parametrize("cases", ["common", *MORE_CASES])
def test_kernels_fit_do_not_spill_and_access_16_bytes(cases, arch, triton_cache):
    wrong = json_of([__file__, arch, cases], triton_cache)
    assert not wrong, "\n" + "\n".join(wrong)


def test_kernels_of_samples_and_gates_fit(triton_cache):
    wrong = json_of([__file__, "sm_90", "forms"], triton_cache)
    assert not wrong, "\n" + "\n".join(wrong)


if __name__ == "__main__":
    print(json.dumps(failures(*sys.argv[1:])))
