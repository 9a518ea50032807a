"""Three Solutions for a Definition: self-contained, the installed package, and PyTorch as the baseline."""

from __future__ import annotations

from collections.abc import Mapping

from flashinfer_bench import BuildSpec, Definition, Solution, SourceFile, SupportedLanguages

from ..data.records import EAGER, OURS
from ..version import __version__
from .bundle import sources
from .definition import Norm

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
    roles = [_name(norm, role) for role in ("x", "residual", "weight", "bias", "y", "h")]
    arguments = ", ".join([*norm.inputs.values(), *norm.outputs.values()])
    files["main.py"] = (
        f'"""{definition.name}: written by rownorm {__version__} from its own source files."""\n\n'
        f"from .rownorm.ops.into import norm_into\n\n\n"
        f"def run({arguments}):\n"
        f"    norm_into(({', '.join(roles)}), {_options(norm)})\n"
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
    rows = [norm.inputs["x"], *([norm.inputs["residual"]] if "residual" in norm.inputs else [])]
    options = [f"eps={norm.inputs.get('eps', repr(norm.eps))}"]
    options += [f"weight_shift={norm.weight_shift}"] if norm.weight_shift else []
    call = f"rownorm.{norm.operation}({', '.join([*rows, *_parameters(norm), *options])})"
    only_y = "[0]" if "residual" in norm.inputs and "h" not in norm.outputs else ""
    text = f"import rownorm\n\n\ndef run({', '.join(norm.inputs.values())}):\n    return {call}{only_y}\n"
    return _solution(
        definition,
        PACKAGE,
        {"main.py": text},
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
    eps = norm.inputs.get("eps", repr(norm.eps))
    if norm.centers:
        y = f"F.layer_norm(h, ({norm.cols},), {weight}, {norm.inputs.get('bias')}, {eps})"
    else:
        y = f"F.rms_norm(h, ({norm.cols},), {weight}, {eps})"
        y += f" + {norm.inputs['bias']}" if "bias" in norm.inputs else ""
    results = {"y": y, "h": "h"}
    lines.append(f"return {', '.join(results[role] for role in norm.outputs)}")
    body = "\n".join(f"    {line}" for line in lines)
    head = "import torch.nn.functional as F\n\n\n"
    return _solution(
        definition,
        EAGER,
        {"main.py": f"{head}def run({', '.join(norm.inputs.values())}):\n{body}\n"},
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


def _name(norm: Norm, role: str) -> str:
    """The argument with this role, or None, as source text."""
    return norm.inputs.get(role) or norm.outputs.get(role) or "None"


def _parameters(norm: Norm) -> list[str]:
    return [norm.inputs[role] for role in ("weight", "bias") if role in norm.inputs]


def _options(norm: Norm) -> str:
    """The fields of a Program, as source text."""
    return f"({norm.centers}, {norm.inputs.get('eps', repr(norm.eps))}, {norm.weight_shift})"
