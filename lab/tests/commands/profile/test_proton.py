"""Proton's hatchet files. The samples are synthetic: written by hand to the layout of Triton 3.6, made-up times."""

import json

import pytest

from rownorm_lab.profilers import proton


def node(name, metrics=None, children=()):
    frame = {"name": name, "type": "function"}
    return {"frame": frame, "metrics": metrics or {}, "children": list(children)}


def kernel(name, count, nanoseconds):
    metrics = {"count": count, "time (ns)": nanoseconds, "device_id": "0", "device_type": "CUDA"}
    return node(name, metrics)


TREE = node(
    "ROOT",
    {"count": 0, "time (ns)": 0},
    [
        kernel("forward_resident", 2, 3000),
        node(
            "scope",
            {"time (ns)": 5000},
            [kernel("column_sums", 1, 4000), kernel("forward_resident", 1, 1000)],
        ),
    ],
)
DEVICES = {"CUDA": {"0": {"arch": "90", "num_sms": 132}}}


def written(folder, document):
    file = folder / "proton.hatchet"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def test_kernels_of_all_scopes_largest_first(tmp_path):
    assert proton.parse(written(tmp_path, [TREE, DEVICES])) == [
        ("forward_resident", 3, pytest.approx(4e-6)),
        ("column_sums", 1, pytest.approx(4e-6)),
    ]


def test_a_tree_without_kernels(tmp_path):
    assert proton.parse(written(tmp_path, [node("ROOT")])) == []


def test_a_file_that_is_cut_off(tmp_path):
    with pytest.raises(ValueError, match="cut off"):
        proton.parse(written(tmp_path, json.dumps([TREE])[:-20]))


@pytest.mark.parametrize("document", [{"traceEvents": []}, [], [3]])
def test_a_foreign_file(tmp_path, document):
    with pytest.raises(ValueError, match="no hatchet file of Proton"):
        proton.parse(written(tmp_path, document))


def test_the_tree_of_scopes_is_kept(tmp_path):
    found = proton.scopes(written(tmp_path, [TREE, DEVICES]), repeats=2)
    assert [(one.path, one.calls, pytest.approx(one.seconds), one.is_kernel) for one in found] == [
        (["scope"], 1, 2.5e-6, False),
        (["scope", "column_sums"], 0.5, 2e-6, True),
        (["scope", "forward_resident"], 0.5, 0.5e-6, True),
        (["forward_resident"], 1, 1.5e-6, True),
    ]
    assert proton.scopes(written(tmp_path, [node("ROOT", children=[kernel("a", 1, 1)])]), 1) == []
