"""The parameters that the extension passes are those of the compiled kernels."""

import pytest

from rownorm.launch import native
from support import compiled_parameters
from support.compiled import json_of

SIGNATURE = {
    "x_ptr": "*fp16",
    "h_ptr": "constexpr",
    "n": "i32",
    "stride": "i64",
    "ONE": "constexpr",
}
PTX = """.visible .entry kernel(
	.param .u64 .ptr .global .align 1 kernel_param_0,
	.param .u32 kernel_param_1,
	.param .u64 kernel_param_2,
	.param .u64 .ptr .global .align 1 kernel_param_3,
	.param .u64 .ptr .global .align 1 kernel_param_4
)
"""


def test_parameters_follow_the_signature():
    arguments = ({"x_ptr": 3, "h_ptr": -1}, {"n": 5, "stride": 7, "m": 1})
    assert native.parameters(SIGNATURE, PTX, *arguments) == (
        (3, 0),
        (-1, 5),
        (-1, 7),
        (-1, 0),
        (-1, 0),
    )


@pytest.mark.parametrize(
    ("old", "new"), [(".u32", ".u64"), (",\n\t.param .u64 kernel_param_2", ""), (".entry", ".func")]
)
def test_a_compiled_kernel_with_other_parameters_is_refused(old, new):
    with pytest.raises(RuntimeError, match="the compiled kernel takes"):
        native.parameters(SIGNATURE, PTX.replace(old, new), {"x_ptr": 3}, {"n": 5, "stride": 7})


def test_parameters_of_compiled_kernels(triton_cache):
    seen = json_of([compiled_parameters.__file__], triton_cache)
    assert {
        "forward_resident",
        "forward_looped",
        "forward_cluster",
        "backward_resident",
        "backward_grid",
        "column_sums",
    } <= set(seen)
    for name, (found, expected) in seen.items():
        assert found == expected, name
