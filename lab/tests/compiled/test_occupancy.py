"""Occupancy, compared with NVIDIA's occupancy calculator and with what AMD's compiler prints."""

import pytest

from rownorm_lab.compiled.occupancy import occupancy


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "warps", "programs", "limited_by"),
    [
        ("sm_90", 32, 0, 4, 16, "warps"),
        ("sm_90", 40, 32, 8, 6, "registers"),
        ("sm_90", 38, 32, 8, 6, "registers"),  # 38 are allocated as 40
        ("sm_90", 255, 0, 8, 1, "registers"),
        ("sm_90", 16, 0, 1, 32, "programs"),
        ("sm_90", 64, 27 << 10, 4, 8, "registers, shared memory"),
        ("sm_90", 32, 64 << 10, 4, 3, "shared memory"),  # 65 KiB with the driver's KiB, of 228
        ("sm_80", 32, 64 << 10, 4, 2, "shared memory"),  # of 164
        ("gfx942", 94, 0, 4, 5, "registers"),  # the compiler prints "Occupancy: 5" for 94 VGPRs
        ("gfx942", 64, 0, 4, 8, "warps"),
        ("gfx90a", 32, 40 << 10, 4, 1, "shared memory"),
    ],
)
def test_programs_of_a_multiprocessor(arch, registers, shared, warps, programs, limited_by):
    found = occupancy(arch, registers, shared, warps)
    assert (found.programs, found.limited_by) == (programs, limited_by)
    assert found.fraction == found.warps / (32 if arch.startswith("gfx") else 64)


def test_shared_memory_that_is_left_to_l1_limits_programs():
    assert occupancy("sm_90", 32, 40 << 10, 4).programs == 5
    assert occupancy("sm_90", 32, 40 << 10, 4, reserved_for=2).programs == 2  # 82 KiB, so 100
