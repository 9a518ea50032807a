"""Three Solutions for a Definition: self-contained, the installed package, and PyTorch as the baseline."""

from __future__ import annotations

from collections.abc import Mapping

from flashinfer_bench import BuildSpec, Definition, Solution, SourceFile, SupportedLanguages

from ..data.records import EAGER, OURS
from ..version import __version__
from .bundle import sources
from .definition import Norm, run_source

AUTHOR = "rownorm"
BASELINE_AUTHOR = "baseline"
PACKAGE = f"{OURS}_package"


def solutions_of(definition: Definition, norm: Norm) -> list[Solution]:
    """The Solutions that an export writes."""
    return [
        self_contained(definition, norm),
        installed_package(definition, norm),
        pytorch_baseline(definition, norm),
    ]


def label(solution: Solution) -> str:
    """The provider's name in records and reports: that of the Solution without its Definition."""
    name = short_name(solution.name, solution.definition)
    ours = solution.author in (AUTHOR, BASELINE_AUTHOR)
    return name if ours else f"{name} ({solution.author})"


def short_name(solution: str, definition: str) -> str:
    """The name of a Solution without that of its Definition."""
    return solution.removesuffix(f"_{definition}")


def self_contained(definition: Definition, norm: Norm) -> Solution:
    """The library's kernels, planner and launcher as source files. It needs torch and Triton only."""
    files = {f"rownorm/{path}": text for path, text in sources().items()}
    names = norm.inputs | norm.outputs
    roles = [names.get(role, "None") for role in ("x", "residual", "weight", "bias", "y", "h")]
    program = f"({norm.centers}, {norm.eps_source}, {norm.weight_shift})"  # the fields of a Program
    files["main.py"] = run_source(
        f'"""{definition.name}: written by rownorm {__version__} from its own source files."""\n\n'
        "from .rownorm.ops.into import norm_into",
        [*norm.inputs.values(), *norm.outputs.values()],
        [f"norm_into(({', '.join(roles)}), {program})"],
    )
    return _solution(
        definition,
        OURS,
        files,
        language=SupportedLanguages.TRITON,
        destination_passing=True,
        description="rownorm's Triton kernels with the plan that it has for the shape and the GPU. "
        "Needs torch and Triton; rownorm need not be installed.",
    )


def installed_package(definition: Definition, norm: Norm) -> Solution:
    """A thin wrapper over ``import rownorm``."""
    roles = [role for role in ("x", "residual", "weight", "bias") if role in norm.inputs]
    arguments = [*(norm.inputs[role] for role in roles), f"eps={norm.eps_source}"]
    arguments += [f"weight_shift={norm.weight_shift}"] if norm.weight_shift else []
    call = f"rownorm.{norm.operation}({', '.join(arguments)})"
    only_y = "[0]" if "residual" in norm.inputs and "h" not in norm.outputs else ""
    lines = [f"return {call}{only_y}"]
    return _solution(
        definition,
        PACKAGE,
        {"main.py": run_source("import rownorm", norm.inputs.values(), lines)},
        language=SupportedLanguages.PYTHON,
        dependencies=["rownorm"],
        description=f"Calls the installed rownorm; written by rownorm {__version__}.",
    )


def pytorch_baseline(definition: Definition, norm: Norm) -> Solution:
    """PyTorch's own operators, as a model would call them."""
    lines = [f"h = {norm.inputs['x']}"]
    if "residual" in norm.inputs:
        lines[0] += f" + {norm.inputs['residual']}"
    weight = norm.inputs["weight"] + (f" + {norm.weight_shift}" if norm.weight_shift else "")
    if norm.centers:
        bias = norm.inputs.get("bias")
        y = f"F.layer_norm(h, ({norm.cols},), {weight}, {bias}, {norm.eps_source})"
    else:
        y = f"F.rms_norm(h, ({norm.cols},), {weight}, {norm.eps_source})"
        y += f" + {norm.inputs['bias']}" if "bias" in norm.inputs else ""
    results = {"y": y, "h": "h"}
    lines.append(f"return {', '.join(results[role] for role in norm.outputs)}")
    head = "import torch.nn.functional as F"
    return _solution(
        definition,
        EAGER,
        {"main.py": run_source(head, norm.inputs.values(), lines)},
        author=BASELINE_AUTHOR,
        language=SupportedLanguages.PYTHON,
        description="The baseline: eager PyTorch.",
    )


def _solution(
    definition: Definition,
    kind: str,
    files: Mapping[str, str],
    *,
    language: SupportedLanguages,
    description: str,
    author: str = AUTHOR,
    destination_passing: bool = False,
    dependencies: list[str] | None = None,
) -> Solution:
    return Solution(
        name=f"{kind}_{definition.name}",
        definition=definition.name,
        author=author,
        description=description,
        spec=BuildSpec(
            language=language,
            target_hardware=["cuda"],
            entry_point="main.py::run",
            dependencies=dependencies or [],
            destination_passing_style=destination_passing,
        ),
        sources=[SourceFile(path=path, content=text) for path, text in files.items()],
    )
