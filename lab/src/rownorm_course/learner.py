"""A learner's folder, as the grader sees it: texts and answers, and functions that run in the learner's process."""

from __future__ import annotations

import ast
import linecache
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .catalog import exercises
from .grades import Failure, Mode, Pending
from .process import Ended, LearnerProcess
from .protocol import Reply, Request, Seen, Watch
from .wire import decode, encode

# Calls that compute a norm. The dispatcher is watched too, so that an alias does not help.
_NORMS = {"layer_norm", "rms_norm", "native_layer_norm", "LayerNorm", "RMSNorm", "_fused_rms_norm"}
_NORM_PACKAGES = {"rownorm", "liger_kernel", "quack", "flashinfer", "fla", "mamba_ssm", "helion"}
_TIMERS = {"time", "torch.cuda", "triton.testing", "torch.cuda.Event", "time.perf_counter"}
STEP_S = 30.0  # of one step, unless the exercise says otherwise


class LearnerError(Failure):
    """The learner's code raised. reason: the first complaint of a validator."""

    def __init__(self, message: str, habit: str = "", reason: str = "") -> None:
        super().__init__(message, habit)
        self.reason = reason


class Learner:
    """The files of one exercise. mode: where kernels run; seed: differs in every check; gpu: the machine has one."""

    def __init__(self, folder: Path, number: int, mode: Mode, seed: int, gpu: bool = False) -> None:
        linecache.checkcache()  # a watched file has changed
        self.folder = folder.resolve()
        self.number = number
        self.mode: Mode = mode
        self.device = "cuda" if mode == "gpu" else "cpu"
        self.seed = seed
        self.gpu = gpu
        self.tried: dict[str, list[str]] = {}  # wrong answers by question, of all checks
        self.waiting: Callable[[float], None] = lambda seconds: None  # while a call runs
        self._process: LearnerProcess | None = None
        self._read: set[str] = set()  # files that are known to be honest
        self._watch: tuple[Watch, Seen, Mapping[int, str]] | None = None
        self.begin_step(STEP_S)

    # ---- files ----

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

    def answers(self, name: str = "answers.toml") -> dict[str, Any]:
        """The learner's answers."""
        try:
            return tomllib.loads(self.text(name))
        except tomllib.TOMLDecodeError as error:
            raise Failure(f"{name} cannot be read: {error}", "toml") from None

    def _refuse_dishonest(self, name: str) -> None:
        """A Python file, and those of the folder that it imports."""
        if name in self._read:
            return
        try:
            tree = ast.parse(self.text(name))
        except SyntaxError as error:
            raise Failure(
                f"{name}, line {error.lineno}: {error.msg}\n{(error.text or '').rstrip()}"
            ) from None
        self._read.add(name)
        honest(name, tree)
        for helper in _imported(tree):
            if (self.folder / f"{helper}.py").is_file():
                self._refuse_dishonest(f"{helper}.py")

    # ---- functions ----

    def function(self, file: str, name: str, answer: int = -1) -> Callable[..., Any]:
        """A function of one file; a call runs it in the learner's process. answer: see ``Request``."""
        self._refuse_dishonest(file)

        def call(*args: Any, **named: Any) -> Any:
            watch, _, roles = self._watch or (None, None, {})
            request = Request(
                file=file,
                name=name,
                args=encode(args, roles, whole=True),
                named=encode(named, roles, whole=True),
                watch=watch,
                answer=answer,
            )
            return self._result(request)

        return call

    def train(self, file: str, name: str, *args: Any) -> Any:
        """The output and the gradients of a module: see ``Host._train``."""
        self._refuse_dishonest(file)
        return self._result(
            Request(op="train", file=file, name=name, args=encode(args, whole=True))
        )

    def _result(self, request: Request) -> Any:
        """What a function of the learner gives; what it did is added to what the block has seen."""
        reply = self._ask(request)
        if self._watch is not None and reply.seen is not None:
            self._watch[1].add(reply.seen)
        return decode(reply.value, self.device)

    def own(self, name: str, *args: Any) -> Any:
        """A function of ``host.OWN`` in the learner's process."""
        return decode(self._ask(Request(op="own", name=name, args=encode(args))).value)

    @contextmanager
    def observed(
        self, watch: Watch | None = None, roles: Mapping[int, str] | None = None
    ) -> Iterator[Seen]:
        """What the calls of the block do. roles: names of their tensors, by id."""
        before, seen = self._watch, Seen()
        self._watch = watch or Watch(), seen, roles or {}
        try:
            yield seen
        finally:
            self._watch = before

    # ---- the process ----

    def begin_step(self, limit_s: float) -> None:
        """The calls that follow have so many seconds of processor time together."""
        self.limit_s, self.begun = limit_s, time.monotonic()
        if self._process is not None:
            self._process.begin_step()

    def printed(self) -> str:
        """What the learner's code has printed in this step."""
        return self._process.printed_now() if self._process is not None else ""

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def __enter__(self) -> Learner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: Request) -> Reply:
        if self._process is not None and self._process.ended:
            if self._process.late:
                raise Ended(self._process.ended)
            self.close()
        if self._process is None:
            library = self.mode == "gpu" or bool(exercises()[self.number].needs)
            self._process = LearnerProcess(self.mode, self.folder, library)
        reply = self._process.ask(
            request, self.begun, self.limit_s, lambda: self.waiting(time.monotonic() - self.begun)
        )
        if reply.patched:
            raise Failure(
                f"{reply.patched} is not what it was when grading began", "patches-grader"
            )
        error = reply.error
        if error is not None and error.pending:
            raise Pending(error.message)
        if error is not None:
            raise LearnerError(error.message, error.habit, error.reason)
        return reply


def _imported(tree: ast.Module) -> set[str]:
    """The modules that a file imports, and their first packages."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
            found |= {alias.name for alias in node.names}
    return found


def honest(name: str, tree: ast.Module) -> None:
    """Refuse what is plainly not the exercise: another's norm, the solution's file, a changed timer."""
    for node in ast.walk(tree):
        for what, habit in _dishonest(node, tree):
            raise Failure(f"{name}, line {getattr(node, 'lineno', 0)}: {what}", habit)


def _dishonest(node: ast.AST, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(what is wrong, habit)."""
    match node:
        case ast.Import() | ast.ImportFrom():
            names = [alias.name for alias in node.names]
            root = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            for one in [root, *names]:
                package, parts = one.split(".")[0], {*one.split("."), *names}
                if package == "rownorm_course" and parts.isdisjoint(("interpreter", "measured")):
                    yield f"imports {one}", "reads-solution"
                # The lab measures; of its rooms, only this one computes norms.
                if package in _NORM_PACKAGES or (package == "rownorm_lab" and "providers" in parts):
                    yield f"imports {one}", "imports-norm"
        case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called)):
            if called in _NORMS and _of_torch(tree, node.func):
                yield f"calls {ast.unparse(node.func)}", "torch-norm"
        case ast.Constant(value=str(text)):
            if "solutions/right" in text or "rownorm_course" in text:
                yield "names a folder of solutions", "reads-solution"
        case ast.Assign():
            for target in node.targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) in _TIMERS:
                    yield f"assigns {ast.unparse(target)}", "patches-timer"


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
