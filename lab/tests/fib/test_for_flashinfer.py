"""``rownorm fib export --for-flashinfer``: the contract as read from FlashInfer 0.7.2, and its real loader where it is
installed; a CPU suffices.
"""

import importlib.util
import json

import pytest
import torch

from lab_support.lab_commands import invoke, refused
from rownorm_lab.fib.for_flashinfer import COLS, FORMS, INSTALL, NOT_SERVED, definition_of
from support.frameworks import framework

ADD = ("fused_add_rmsnorm", "gemma_fused_add_rmsnorm")


def export(folder, *options):
    """A dataset of 48 columns."""
    ran = invoke("fib", "export", folder, "--for-flashinfer", "--cols", 48, *options)
    assert ran.exit_code == 0, ran.output
    return folder


def loaded(folder, part):
    """The JSON files of a part of a dataset, by name."""
    files = [json.loads(path.read_text()) for path in (folder / part).rglob("*.json")]
    assert len({one["name"] for one in files}) == len(files)
    return {one["name"]: one for one in files}


def tensors_of(form, dtype=torch.bfloat16, scale=1.0):
    """Random inputs by name."""
    shapes = {name: (48,) if name in ("weight", "bias") else (3, 48) for name in form.arguments}
    parameter = torch.float32 if form.name == "layernorm" else dtype
    return {
        name: (torch.randn(shape) * (scale if len(shape) == 2 else 1)).to(
            dtype if len(shape) == 2 else parameter
        )
        for name, shape in shapes.items()
        if name != "eps"
    }


def entry_of(solution, folder):
    """The function of a Solution, imported as FlashInfer imports it: a file outside of any package."""
    path = folder / f"{solution['name']}.py"
    (source,) = solution["sources"]
    file, function = solution["spec"]["entry_point"].split("::")
    assert file == source["path"]
    path.write_text(source["content"])
    spec = importlib.util.spec_from_file_location(solution["name"], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def reference_of(definition):
    namespace = {}
    exec(definition["reference"], namespace)
    return namespace["run"]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_solution_gives_what_its_reference_gives(tmp_path, name, dtype):
    folder = export(tmp_path / "data", "--eps", "1e-2")
    definition = loaded(folder, "definitions")[f"{name}_h48"]
    solution = loaded(folder, "solutions")[f"rownorm_{name}_h48"]
    run, reference = entry_of(solution, tmp_path), reference_of(definition)
    tensors = tensors_of(FORMS[name], dtype, scale=0.1)  # rows so small that eps matters
    expected = reference(**tensors)
    if name in ADD:
        assert not solution["spec"]["destination_passing_style"]
        got = run(**tensors)
        # FlashInfer does not copy a result that already is where it belongs.
        assert [one.data_ptr() for one in got] == [
            tensors[one].data_ptr() for one in ("hidden_states", "residual")
        ]
    else:
        assert solution["spec"]["destination_passing_style"]
        output = torch.full((3, 48), torch.nan, dtype=dtype)
        more = {"eps": 1e-2} if name == "fused_rmsnorm_silu" else {}
        run(**tensors, **more, output=output)
        got, expected = (output,), (expected,)
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(tuple(got), expected, rtol=step, atol=step / 8)


def test_each_definition_has_one_solution(tmp_path):
    folder = export(tmp_path / "data")
    names = [f"{name}_h48" for name in FORMS]
    assert sorted(loaded(folder, "definitions")) == sorted(names)
    targets = [one["definition"] for one in loaded(folder, "solutions").values()]
    assert sorted(targets) == sorted(names)
    assert {path.name for path in folder.iterdir()} == {"definitions", "solutions"}
    assert {768, 4096, 4608, 5120, 7168} <= set(COLS)  # of FlashInfer's examples


def test_everybody_is_told_about_eps(tmp_path):
    ran = invoke("fib", "export", tmp_path / "a", "--for-flashinfer", "--cols", 48, "--eps", "1e-5")
    assert "WARNING: FlashInfer does not pass the caller's eps" in ran.output
    assert "compute with eps 1e-05" in ran.output
    assert "WARNING: FlashInfer does not pass" in " ".join(
        invoke("fib", "export", "--help").output.split()
    )
    for one in loaded(tmp_path / "a", "solutions").values():
        says = "eps is the caller's" if "silu" in one["name"] else "eps is 1e-05, whatever"
        assert says in one["description"]
        assert says in one["sources"][0]["content"]
        assert says in loaded(tmp_path / "a", "definitions")[one["definition"]]["description"]


def test_other_options_are_refused():
    assert "takes --cols and --eps" in refused(
        "fib", "export", "data", "--for-flashinfer", "--op", "rms_norm"
    )
    assert "between 0 and 1" in refused("fib", "export", "data", "--for-flashinfer", "--eps", "2")


def test_without_flashinfer_its_installation_is_named(tmp_path, monkeypatch):
    folder = export(tmp_path / "data")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ran = invoke("fib", "check", folder, "--for-flashinfer")
    assert ran.exit_code == 2
    assert INSTALL in ran.output


@pytest.fixture
def flashinfer(tmp_path, monkeypatch):
    """The real package, with its cache of Solutions in an empty folder."""
    found = framework("flashinfer")
    monkeypatch.setenv("HOME", str(tmp_path))
    return found


def test_its_loader_takes_the_dataset_and_its_functions_come_to_it(tmp_path, flashinfer):
    folder = export(tmp_path / "data", "--eps", "1e-5")
    ran = invoke("fib", "check", folder, "--for-flashinfer")
    assert ran.exit_code == 0, ran.output
    assert "6 Solutions: " in ran.output
    for name in FORMS:
        status = "not applied: " if name == "gemma_fused_add_rmsnorm" else "applied\n"
        assert f"{name}_h48: {status}" in ran.output
    assert "WARNING: FlashInfer does not pass the caller's eps" in ran.output
    printed = json.loads(invoke("fib", "check", folder, "--for-flashinfer", "--json").stdout)
    assert {"name": "rmsnorm_h48", "status": "applied", "why": ""} in printed["results"]


def test_what_its_loader_refuses_is_said(tmp_path, flashinfer):
    folder = export(tmp_path / "data")
    (path,) = (folder / "solutions").rglob("rownorm_rmsnorm_h48.json")
    whole = path.read_text()
    path.with_name("second.json").write_text(whole.replace("rownorm_rmsnorm", "other_rmsnorm"))
    ran = invoke("fib", "check", folder, "--for-flashinfer")
    assert ran.exit_code == 2
    assert "would apply nothing of it" in ran.output
    assert "duplicate solution for definition 'rmsnorm_h48'" in ran.output
    path.with_name("second.json").unlink()
    path.write_text(whole.replace("eps=1e-06)", "eps=2e-06)"))
    ran = invoke("fib", "check", folder, "--for-flashinfer")
    assert ran.exit_code == 1
    assert "rmsnorm_h48: wrong: it differs from its reference" in ran.output
    (definition,) = (folder / "definitions").rglob("layernorm_h48.json")
    definition.write_text(definition.read_text().replace("def run", "def no_run"))
    path.write_text(whole.replace("def run(", "def run(scale, "))
    ran = invoke("fib", "check", folder, "--for-flashinfer")
    assert ran.exit_code == 1
    assert "rmsnorm_h48: wrong: FlashInfer stops the program: TypeError" in ran.output
    assert "layernorm_h48: wrong: its reference: KeyError: 'run'" in ran.output


def test_what_callers_pass(tmp_path, flashinfer, monkeypatch):
    from flashinfer import trace_apply

    monkeypatch.setenv("FLASHINFER_TRACE_APPLY_PATH", str(export(tmp_path / "data")))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    x, weight = torch.randn(3, 48).half() / 100, torch.ones(48).half()
    trace_apply.enable_apply()
    try:
        # The trap that the warning is about: should FlashInfer begin to pass eps, this fails.
        ignored = flashinfer.rmsnorm(x, weight, eps=1.0)
        torch.testing.assert_close(ignored, torch.nn.functional.rms_norm(x, (48,), weight, 1e-6))
        passed = flashinfer.fused_rmsnorm_silu(x, weight, eps=1.0)
        assert passed.abs().max() < 0.1
        out = torch.empty_like(x)
        assert flashinfer.rmsnorm(x, weight, out=out) is out
        assert torch.equal(out, ignored)
        heads = torch.randn(2, 48, 16)  # found by the number of heads
        got = flashinfer.rmsnorm(heads, torch.ones(16))
        torch.testing.assert_close(got, torch.nn.functional.rms_norm(heads, (16,), eps=1e-6))
        with pytest.raises(TypeError, match="out_dtype must be one of"):
            flashinfer.fused_rmsnorm_silu(x, weight, out=out.to(torch.float8_e4m3fn))
        assert trace_apply.stats()["flashinfer.norm.rmsnorm"] == {"hit": 3}
    finally:
        trace_apply.disable_apply()


def test_definitions_are_those_of_its_templates(flashinfer):
    from flashinfer.trace.templates import norm

    templates = {one.name_prefix: one for one in vars(norm).values() if hasattr(one, "name_prefix")}
    assert set(templates) == {*FORMS, *NOT_SERVED}
    for name, form in FORMS.items():
        given = {form.arguments[key]: tensor for key, tensor in tensors_of(form).items()}
        theirs = templates[name].build_fi_trace_fn(f"flashinfer.norm.{name}")(**given)
        ours = definition_of(form, 48, 1e-6)
        assert ours["name"] == theirs["name"]
        assert ours["op_type"] == theirs["op_type"]
        assert ours["tags"][0] == theirs["tags"][0]
        for part in ("axes", "inputs", "outputs"):
            for one in (ours, theirs):
                for field in one[part].values():
                    field.pop("description", None)
            assert ours[part] == theirs[part], name
        tensors = tensors_of(form, scale=1e-3)  # so small that eps matters
        y = reference_of(ours)(**tensors)
        y = y[0] if form.is_in_place else y
        torch.testing.assert_close(y, templates[name].reference(*tensors.values()))
