"""The providers that need no other package; what the others declare; refusals."""

import importlib.util
import os
import subprocess
import sys
import typing

import pytest
import torch

import rownorm
from rownorm.ops.batch_invariance import state
from rownorm_lab.data.case import OPERATIONS, Case
from rownorm_lab.measure.accuracy import judge
from rownorm_lab.providers import (
    Declared,
    Provider,
    Refusal,
    all_providers,
    as_tuple,
    by_autograd,
    missing,
    provider,
    torch_compile,
    usual,
)
from rownorm_lab.providers.data import output_names, rotation

PEERS = ("liger", "quack", "fla", "mamba", "flashinfer", "helion")


def made(name, case, device="cpu", data="normal"):
    """A judgement of one call."""
    (t,) = rotation(case, 1, device, data=data)
    one = all_providers()[name]
    outputs = as_tuple(one.prepare(case, t)())
    return judge(case, t, outputs, strict=one.kind == "ours")


def test_the_list_of_providers():
    known = all_providers()
    assert set(known) == {
        *("rownorm", "rownorm_invariant", "torch", "torch.compile", "torch.compile_newer", *PEERS),
        *("plain_loop", "plain_block", "ceiling"),
    }
    assert list(known)[:2] == ["rownorm", "rownorm_invariant"]
    assert list(known)[2:5] == ["torch", "torch.compile", "torch.compile_newer"]
    assert list(known)[-1] == "ceiling"
    for one in known.values():
        assert one.about
        assert "\n" not in one.about
        assert set(one.operations) <= set(OPERATIONS)


@pytest.mark.parametrize("name", PEERS)
def test_a_missing_provider_says_how_to_install_it(name, monkeypatch):
    one = all_providers()[name]._replace(needs=("surely_not_installed",))
    assert missing(one) == f"surely_not_installed is not installed; {one.install}"
    assert missing(one._replace(needs=("surely_not", "nor_this"))).startswith(
        "surely_not and nor_this are not installed; pip install "
    )
    assert "needs a GPU" in (missing(one._replace(needs=()), "cpu") or "")
    assert missing(one._replace(needs=()), "cuda:1") is None


def test_plain_kernels_need_a_gpu_or_the_interpreter(monkeypatch):
    one = all_providers()["plain_loop"]
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert "TRITON_INTERPRET=1" in (missing(one, "cpu") or "")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert missing(one, "cpu") is None


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("liger", {"operation": "add_layer_norm"}, "liger has no add_layer_norm"),
        ("liger", {"operation": "rms_norm", "bias": True}, "a bias in RMSNorm"),
        ("liger", {"operation": "layer_norm", "bias": False}, "LayerNorm without a bias"),
        ("quack", {"operation": "rms_norm", "activation": "silu"}, "an activation"),
        ("fla", {"operation": "rms_norm", "pre_bias": True}, "a bias before the norm"),
        (
            "liger",
            {"operation": "add_rms_norm", "residual_dtype": "fp32"},
            "a residual stream in another dtype than x",
        ),
        (
            "flashinfer",
            {"operation": "rms_norm", "direction": "both"},
            "flashinfer has no backward",
        ),
        (
            "plain_block",
            {"operation": "rms_norm", "direction": "backward"},
            "plain_block has no backward",
        ),
        ("fla", {"operation": "rms_norm", "weight": False}, "a norm without a weight"),
        ("fla", {"operation": "rms_norm", "sample_rows": 1}, "does not offer scale and shift"),
        (
            "fla",
            {"operation": "rms_norm", "gate_activation": "sigmoid", "gate_first": True},
            "a silu gate before the norm, and no other",
        ),
        ("fla", {"operation": "add_rms_norm", "gate_activation": "silu"}, "not with both"),
        ("liger", {"operation": "rms_norm", "gate_activation": "silu"}, "a gate after the norm"),
        ("mamba", {"operation": "rms_norm", "gate_activation": "sigmoid"}, "with a silu gate"),
        ("flashinfer", {"operation": "rms_norm", "dtype": "fp32"}, "does not take fp32"),
    ],
)
def test_refusals_give_the_reason(name, options, reason):
    case = Case(rows=2, cols=8, **options)
    (t,) = rotation(case, 1, "cpu")
    with pytest.raises(Refusal, match=reason):
        all_providers()[name].prepare(case, t)


@pytest.mark.parametrize(
    ("options", "widest"),
    [
        ({"operation": "rms_norm", "direction": "backward"}, 32768),
        ({"operation": "rms_norm", "dtype": "fp32"}, 16384),
        ({"operation": "add_rms_norm", "residual_dtype": "fp32"}, 32768),
        ({"operation": "add_rms_norm", "residual_dtype": "fp32", "direction": "backward"}, 16384),
    ],
)
def test_fla_takes_rows_of_64_KiB_of_what_it_stores(options, widest, monkeypatch):
    case = Case(rows=1, cols=widest + 1, **options)
    (t,) = rotation(case, 1, "cpu")
    with pytest.raises(Refusal, match=f"up to {widest} columns"):
        all_providers()["fla"].prepare(case, t)
    case = Case(rows=1, cols=widest, **options)
    (t,) = rotation(case, 1, "cpu")
    monkeypatch.setitem(sys.modules, "fla", None)
    with pytest.raises(ImportError, match="fla"):  # which is no refusal
        all_providers()["fla"].prepare(case, t)


def test_declared_cases_are_not_refused():
    case = Case(operation="add_rms_norm", rows=2, cols=8, bias=True, residual_dtype="fp32")
    assert all_providers()["quack"].refusal(case) is None
    assert all_providers()["fla"].refusal(case) is None


@pytest.mark.parametrize("name", ["rownorm", "rownorm_invariant", "torch"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_results_are_right(name, operation, direction, device):
    modulated = {"weight": False, "sample_rows": 3}
    if operation.startswith("add_"):
        modulated |= {"residual_gate": True}
    plain = {"pre_bias": True, "activation": "silu", "bias": True}
    gated = [{"gate_activation": "silu"}, {"gate_activation": "sigmoid", "gate_first": True}]
    for options in ({}, plain, modulated, *gated):
        case = Case(
            operation=operation, direction=direction, rows=6, cols=40, dtype="fp32", **options
        )
        judged = made(name, case, device)
        assert judged.ok, judged.why


@pytest.mark.parametrize("name", ["rownorm", "torch"])
def test_a_residual_stream_of_another_dtype(name, device):
    case = Case(
        operation="add_layer_norm",
        direction="both",
        rows=5,
        cols=40,
        dtype="fp16",
        residual_dtype="fp32",
    )
    assert made(name, case, device).why == ""


@pytest.mark.parametrize("name", ["plain_loop", "plain_block"])
@pytest.mark.parametrize("operation", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("cols", [1, 127, 128, 1025])
def test_plain_kernels_are_right(name, operation, cols, device):
    for bias in (False, True):
        case = Case(operation=operation, rows=3, cols=cols, dtype="fp32", bias=bias)
        judged = made(name, case, device, "offset")
        assert judged.ok, judged.why


def test_plain_block_refuses_rows_that_do_not_fit():
    (t,) = rotation(Case(operation="rms_norm", rows=1, cols=4), 1, "cpu")
    wide = Case(operation="rms_norm", rows=1, cols=65537)
    with pytest.raises(Refusal, match="65537 columns need 131072"):
        all_providers()["plain_block"].prepare(wide, t)


@pytest.mark.parametrize("direction", ["backward", "both"])
def test_calls_can_be_repeated(direction, device):
    """A call gives the same numbers every time, in new memory."""
    case = Case(operation="add_rms_norm", direction=direction, rows=4, cols=24, dtype="fp32")
    (t,) = rotation(case, 1, device)
    for name in ("rownorm", "torch"):
        call = all_providers()[name].prepare(case, t)
        first, second = as_tuple(call()), as_tuple(call())
        assert len(first) == len(output_names(case))
        for a, b in zip(first, second, strict=True):
            assert torch.equal(a, b)
            assert a.data_ptr() != b.data_ptr()


def test_backward_runs_no_forward():
    ran = []
    case = Case(operation="rms_norm", direction="backward", rows=2, cols=4, dtype="fp32")
    (t,) = rotation(case, 1, "cpu")
    call = by_autograd(case, t, lambda: ran.append(1) or t.x * t.weight)
    call()
    call()
    assert len(ran) == 1


def test_compiled_backward_runs_twice(device):
    """The compiler must not reuse the memory that backward reads."""
    case = Case(operation="add_rms_norm", direction="backward", rows=4, cols=16, dtype="fp32")
    (t,) = rotation(case, 1, device)
    call = all_providers()["torch.compile"].prepare(case, t)
    call()
    judged = judge(case, t, as_tuple(call()), strict=False)
    assert judged.ok, judged.why


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_the_ceiling_moves_the_bytes_of_the_case(operation, direction):
    case = Case(operation=operation, direction=direction, rows=64, cols=256, dtype="bf16")
    (t,) = rotation(case, 1, "cpu")
    output = all_providers()["ceiling"].prepare(case, t)()
    # neg reads as much as it writes, add twice as much.
    factor = 2 if direction == "forward" and not case.adds else 3
    moved = factor * output.numel() * output.element_size()
    assert moved == pytest.approx(case.compulsory_bytes, rel=0.04)  # parameters are not in x
    assert output.dtype == torch.float32  # a CPU is slower with 16 bits than memory is


def test_a_new_provider_is_a_decorated_function(monkeypatch):
    from rownorm_lab import providers

    monkeypatch.setattr(providers, "_registry", dict(providers._registry))

    @provider("mine", about="a test", operations=("rms_norm",), package="numpy")
    def mine(case, t):
        return lambda: t.x

    assert all_providers()["mine"].make is mine
    assert all_providers()["mine"].install == "pip install numpy"
    assert all_providers()["mine"].version


def test_the_decorator_has_the_names_and_types_of_what_it_declares():
    """For editors and type checkers."""
    hints = typing.get_type_hints(provider)
    assert list(hints) == ["name", "about", "declared", "return"]
    assert typing.get_args(hints["declared"]) == (Declared,)
    optional = {"name", "make", "about", "source"} ^ set(Provider._fields)
    assert optional == set(Declared.__annotations__) == Declared.__optional_keys__
    fields, declared = typing.get_type_hints(Provider), typing.get_type_hints(Declared)
    assert declared == {name: fields[name] for name in optional}


def test_some_run_only_if_they_are_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    named = {name for name, one in all_providers().items() if one.on_request}
    assert named == {"rownorm_invariant", "helion"}
    assert set(usual()) == set(all_providers()) - named


def test_the_mode_is_that_of_its_provider(monkeypatch):
    """And of its calls alone: providers take turns in one process."""
    seen = []
    case = Case(operation="rms_norm", rows=2, cols=8)
    (t,) = rotation(case, 1, "cpu")
    monkeypatch.setattr(rownorm, "rms_norm", lambda *_, **__: seen.append(state.is_active) or t.x)
    invariant, usual_call = (
        all_providers()[name].prepare(case, t) for name in ("rownorm_invariant", "rownorm")
    )
    for call in (invariant, usual_call, invariant):
        call()
    assert seen == [True, False, True]


# torch.compile, newer


@pytest.fixture
def backward_case():
    case = Case(operation="rms_norm", rows=2, cols=8, direction="backward")
    (t,) = rotation(case, 1, "cpu")
    return case, t


def test_newer_versions_compile_that_way_themselves(backward_case, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.15.0+cu132")
    with pytest.raises(Refusal, match=r"2.15.0.* compiles this way by itself: it is torch.compile"):
        all_providers()["torch.compile_newer"].prepare(*backward_case)


def test_versions_without_the_settings_are_refused(backward_case, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.12.0")
    monkeypatch.setitem(torch_compile.NEWER, "triton.no_such_setting", True)
    with pytest.raises(Refusal, match=r"torch 2.12.0 has no setting triton.no_such_setting"):
        all_providers()["torch.compile_newer"].prepare(*backward_case)


def test_both_compiled_providers_of_a_case_are_kept(backward_case, monkeypatch):
    """They are timed in turns: preparing one must not drop the code of the other."""
    options, resets = [], []
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(1))

    def compile(function, **settings):
        options.append(settings["options"])
        return function

    monkeypatch.setattr(torch, "compile", compile)
    torch_compile._compiled.cache_clear()
    torch_compile._forget_others.cache_clear()
    case, t = backward_case
    for _ in range(2):
        for name in ("torch.compile", "torch.compile_newer"):
            all_providers()[name].prepare(case, t)()
    torch_compile._compiled.cache_clear()
    assert options == [None, torch_compile.NEWER]
    assert len(resets) == 1


@pytest.mark.skipif(importlib.util.find_spec("helion") is None, reason="helion is not installed")
def test_helion_in_its_interpreter():
    script = """
from rownorm_lab.data.case import Case
from rownorm_lab.measure.accuracy import judge
from rownorm_lab.providers import all_providers, as_tuple
from rownorm_lab.providers.data import rotation
for operation in ("rms_norm", "layer_norm"):
    case = Case(operation=operation, rows=10, cols=70, dtype="fp32", direction="both")
    (t,) = rotation(case, 1, "cpu")
    judged = judge(case, t, as_tuple(all_providers()["helion"].prepare(case, t)()), strict=False)
    assert judged.ok, judged
"""
    environment = os.environ | {"HELION_INTERPRET": "1", "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
