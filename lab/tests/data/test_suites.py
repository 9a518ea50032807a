"""Suites contain what their names say."""

import pytest

from rownorm_lab.data.suites import FORMS, SPEED, SUITES


def shapes(name):
    return [(case.rows, case.cols) for case in SUITES[name].cases()]


def kinds(name):
    return {(case.operation, case.direction, case.dtype) for case in SUITES[name].cases()}


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_is_valid(name):
    cases = SUITES[name].cases()
    assert cases
    assert len({case.key for case in cases}) == len(cases), "a case is there twice"
    assert SUITES[name].about
    assert "  " not in SUITES[name].about


def test_course_sweep():
    assert shapes("course") == [(4096, 256 << i) for i in range(8)]
    assert shapes("course")[-1] == (4096, 32768)
    assert kinds("course") == {("layer_norm", "forward", "fp32")}


def test_batch_doubles_its_rows():
    assert shapes("batch") == [(1 << k, 4096) for k in range(16)]
    assert kinds("batch") == kinds("flashinfer")


def test_flashinfer_sweep():
    assert shapes("flashinfer") == [(rows, 4096) for rows in (1, 8, 32, 128, 512)]
    assert kinds("flashinfer") == {("rms_norm", "forward", "fp16")}


def test_speed_suites():
    assert len(SPEED) == 12
    for name, dtype in (("speed", "bf16"), ("speed-fp16", "fp16"), ("speed-fp32", "fp32")):
        assert shapes(name) == list(SPEED) * 4
        assert kinds(name) == {
            (op, way, dtype) for op in ("rms_norm", "layer_norm") for way in ("forward", "backward")
        }
    added = SUITES["speed-add"].cases()
    assert {case.variant for case in added} == {"add_rms_norm (fp32 residual)"}
    assert len(added) == 24
    assert {case.cols for case in SUITES["speed-variants"].cases()} == {
        *(1024, 2048, 4096, 5120, 8192, 16384)
    }
    assert {case.variant for case in SUITES["speed-variants"].cases()} == {
        f"{op} ({option})"
        for op in ("rms_norm", "layer_norm")
        for option in ("pre_bias", "silu", "gelu")
    }
    assert set(shapes("speed-wide")) == {
        (rows, cols) for rows in (1, 4, 16) for cols in (65536, 262144, 1048576)
    }
    (fused,) = SUITES["fused-bias"].cases()
    assert (fused.rows, fused.cols, fused.dtype, fused.variant) == (
        *(512, 8192, "fp32", "layer_norm (pre_bias)"),
    )


def test_suites_of_diffusion_transformers():
    cases = [case for name in ("dit", "flux") for case in SUITES[name].cases()]
    assert {case.cols for case in cases} == {1152, 1536, 2304, 3072, 5120}
    assert {case.sample_rows for case in cases} == {1, 256, 1024, 4608}
    assert not any(case.weight or case.has_bias for case in cases)


def test_host_suite():
    assert shapes("host") == [(8, 4096)] * 4
    assert kinds("host") == {
        (op, way, "fp16") for op in ("rms_norm", "layer_norm") for way in ("forward", "both")
    }


def test_speed_all_contains_the_speed_suites():
    parts = [name for name in SUITES if name.startswith("speed-") and name != "speed-all"]
    parts += ["speed", "course", "fused-bias", "flashinfer", "host", *FORMS]
    every = {case.key for name in parts for case in SUITES[name].cases()}
    assert {case.key for case in SUITES["speed-all"].cases()} == every


@pytest.mark.parametrize(
    ("name", "widths", "operations"),
    [
        ("llama-3-8b", {4096}, {"rms_norm", "add_rms_norm"}),
        ("llama-3-70b", {8192}, {"rms_norm", "add_rms_norm"}),
        ("qwen3", {128, 4096, 5120}, {"rms_norm", "add_rms_norm"}),
        ("gemma", {256, 2304, 2560, 3584, 5376}, {"rms_norm"}),
        ("gpt-2", {768, 1024, 1280, 1600}, {"layer_norm", "add_layer_norm"}),
        ("vit", {768, 1024, 1280}, {"layer_norm"}),
        ("evoformer", {128, 256}, {"layer_norm"}),
    ],
)
def test_models_have_their_true_widths(name, widths, operations):
    cases = SUITES[name].cases()
    assert {case.cols for case in cases} == widths
    assert {case.operation for case in cases} == operations
    assert all(case.name for case in cases)
    assert {case.direction for case in cases} == {"forward", "backward"}


def test_evoformer_rows():
    by_name = {case.name: case.rows for case in SUITES["evoformer"].cases()}
    assert by_name["Evoformer MSA, initial, training"] == 128 * 256
    assert by_name["Evoformer pair, fine-tuning, training"] == 384 * 384
