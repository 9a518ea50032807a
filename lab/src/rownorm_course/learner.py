"""A learner's folder: its Python files, its answers, and what in them is recognized as not the learner's own work."""

from __future__ import annotations

import ast
import importlib.util
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from .grades import Failure

# Calls that compute a norm. The dispatcher is watched too, so that an alias does not help.
_NORMS = {"layer_norm", "rms_norm", "native_layer_norm", "LayerNorm", "RMSNorm", "_fused_rms_norm"}
_TIMERS = {"time", "torch.cuda", "triton.testing", "torch.cuda.Event", "time.perf_counter"}


class Learner:
    """The files of one exercise. device: "cpu" or "cuda"; seed: differs in every check; gpu: the machine has one."""

    def __init__(
        self, folder: Path, number: int, device: str, seed: int, gpu: bool = False
    ) -> None:
        self.folder = folder
        self.number = number
        self.device = device
        self.seed = seed
        self.gpu = gpu
        self._modules: dict[str, ModuleType] = {}

    def text(self, name: str) -> str:
        """A file of the folder."""
        path = self.folder / name
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise Failure(
                f"{name} is not in {self.folder}. If it was moved, move it back; rownorm learn start {self.number} "
                "writes the starter's file again and keeps the others."
            ) from None
        except UnicodeDecodeError as error:
            raise Failure(f"{name} is not a UTF-8 text: {error}") from None

    def module(self, name: str) -> ModuleType:
        """A Python file, imported; its own errors become a Failure with the line."""
        if name in self._modules:
            return self._modules[name]
        source = self.text(name)
        try:
            tree = ast.parse(source)
        except SyntaxError as error:
            where = f"{name}, line {error.lineno}"
            shown = (error.text or "").rstrip()
            raise Failure(f"{where}: {error.msg}\n{shown}") from None
        honest(name, tree)
        title = f"learner_{abs(hash(self.folder))}_{Path(name).stem}"
        spec = importlib.util.spec_from_file_location(title, self.folder / name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[title] = module
        sys.path.insert(0, str(self.folder))
        sys.dont_write_bytecode = True
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(self.folder))
        self._modules[name] = module
        self._honest_helpers()
        return module

    def _honest_helpers(self) -> None:
        """Files that the learner's own import are read as well."""
        for one in list(sys.modules.values()):
            file = Path(getattr(one, "__file__", None) or "/")
            if file.parent == self.folder and file.suffix == ".py":
                honest(file.name, ast.parse(file.read_text(encoding="utf-8")))

    def function(self, name: str, function: str) -> Callable[..., Any]:
        """A function or class of one file."""
        found = getattr(self.module(name), function, None)
        if not callable(found):
            raise Failure(
                f"{name} has no function {function}; the starter has it, with its arguments"
            )
        return found

    def answers(self, name: str = "answers.toml") -> dict[str, Any]:
        """The learner's answers."""
        try:
            return tomllib.loads(self.text(name))
        except tomllib.TOMLDecodeError as error:
            raise Failure(f"{name} cannot be read: {error}", "toml") from None


def honest(name: str, tree: ast.Module) -> None:
    """Refuse what is plainly not the exercise: another's norm, the solution's file, a changed timer."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            root = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            for one in [root, *names]:
                if one.split(".")[0] == "rownorm_course" and (
                    {*one.split("."), *names}.isdisjoint(("interpreter", "measured"))
                ):
                    raise Failure(f"{name}, line {line}: imports {one}", "reads-solution")
                # The lab measures; of its rooms, only this one computes norms.
                if one.split(".")[0] in ("rownorm", "liger_kernel", "quack", "flashinfer") or (
                    one.split(".")[0] == "rownorm_lab" and "providers" in {*one.split("."), *names}
                ):
                    raise Failure(f"{name}, line {line}: imports {one}", "torch-norm")
        if isinstance(node, ast.Call):
            called = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if called in _NORMS and _of_torch(tree, node.func):
                raise Failure(f"{name}, line {line}: calls {ast.unparse(node.func)}", "torch-norm")
        text = node.value if isinstance(node, ast.Constant) else ""
        if isinstance(text, str) and ("solutions/right" in text or "rownorm_course" in text):
            raise Failure(f"{name}, line {line}: names a folder of solutions", "reads-solution")
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    owner = ast.unparse(target.value)
                    if owner in _TIMERS:
                        raise Failure(
                            f"{name}, line {line}: assigns {owner}.{target.attr}", "patches-timer"
                        )


def _of_torch(tree: ast.Module, function: ast.expr) -> bool:
    """Whether a call is of torch: torch.rms_norm, F.layer_norm, nn.RMSNorm, or a name imported from torch."""
    names = {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            root = node.module if isinstance(node, ast.ImportFrom) else None
            for alias in node.names:
                whole = root or alias.name
                if whole.split(".")[0] == "torch":
                    names.add(alias.asname or alias.name.split(".")[0])
    return ast.unparse(function).split(".")[0] in names
