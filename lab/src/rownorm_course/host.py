"""The learner's process: ``python -m rownorm_course.host FD MODE``.

It imports torch and Triton once. For every grading it forks a process, in which the learner's files are imported and
called. Such a process has no solution, no judge and no expected value: it gets arguments and gives back results and
what was seen. Every request has a new nonce, and its answer must have it too.

Files of the grader and of rownorm's norms cannot be opened there, and programs cannot be started. That is no sandbox:
code that runs in this process can change it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import importlib.util
import json
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from . import observe
from .grades import Failure, Mode, Pending
from .guard import Guard, Refused, refuse_files, refuse_programs
from .protocol import ErrorReply, Reply, Request, Seen, Watch, plain
from .wire import Closed, Made, decode, encode, receive, send

BEGIN = "begin"  # instead of FD: begin a learner's process right away
PROBES = 32  # calls until memory that a function keeps must be returned again
MEMORY = 6 << 30  # bytes of data of a process without a GPU
# What the grader itself runs in this process: Triton and FlashInfer-Bench are of the learner's making there.
OWN = {
    "loop_figures": "compiled",
    "reduction_code": "compiled",
    "check_dataset": "fib_inside",
    "reference": "fib_inside",
    "what_ran": "fib_inside",
}


class Host:
    """The learner's files, imported, and what is asked of them."""

    def __init__(self, folder: Path, mode: Mode) -> None:
        self.folder, self.mode = folder, mode
        self.device = "cuda" if mode == "gpu" else "cpu"
        self.modules: dict[str, ModuleType] = {}
        observe.THREADS = observe.threads()
        self.guard = Guard()

    def serve(self, channel: socket.socket) -> None:
        """Answer until the grader has gone."""
        with contextlib.suppress(Closed):
            while True:
                nonce, message = receive(channel)
                reply = self._answer(msgspec.msgpack.decode(message, type=Request))
                reply.patched = self.guard.changed()
                sys.stdout.flush()
                send(channel, nonce, msgspec.msgpack.encode(reply, enc_hook=plain))

    def _answer(self, request: Request) -> Reply:
        try:
            with np.errstate(all="ignore"):  # the interpreter computes in numpy
                return getattr(self, f"_{request.op}")(request)
        except BaseException as error:
            return Reply(error=_error(error, self.folder))

    # ---- the learner's functions ----

    def _function(self, file: str, name: str) -> Callable[..., Any]:
        found = getattr(self._module(file), name, None)
        if not callable(found):
            raise Failure(f"{file} has no function {name}; the starter has it, with its arguments")
        return found

    def _module(self, file: str) -> ModuleType:
        if file not in self.modules:
            title = Path(file).stem
            if title in sys.modules:  # a helper of another file, under its own name
                self.modules[file] = sys.modules[title]
                return self.modules[file]
            spec = importlib.util.spec_from_file_location(title, self.folder / file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[title] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[title]
                raise
            self.modules[file] = module
        return self.modules[file]

    def _call(self, request: Request) -> Reply:
        function, watch = self._function(request.file, request.name), request.watch
        compiles = watch is not None and watch.compiles
        named = decode(request.named, self.device, compiles) or {}
        args = list(decode(request.args, self.device, compiles))
        if watch is None:
            return Reply(value=encode(function(*args, **named)))
        if watch.purpose == "measure":
            return Reply(seen=_measured(function, request, watch))

        watched = partial(self._watched, function, request, watch, args, named)
        if watch.runs and request.answer < 0:
            return _refuse_kept(request.name, watched)
        return watched()[0]

    def _watched(
        self,
        function: Callable[..., Any],
        request: Request,
        watch: Watch,
        args: list[Any],
        named: dict[str, Any],
    ) -> tuple[Reply, list[Tensor]]:
        """The reply to a call, and its results."""
        before = [_memory(one) for one in args]
        given = [*args, *named.values()]
        with observe.observed(watch, given) as raw:
            args = [
                torch.empty(one.shape, dtype=one.dtype, device=self.device)
                if isinstance(one, Made)
                else one
                for one in args
            ]
            value = function(*args, **named)
        seen = raw.told()
        seen.changed = _changed(args, before)
        returned = {_place(one) for one in _tensors(value)}
        seen.returned = [
            place
            for place, one in enumerate(args)
            if isinstance(one, Tensor) and _place(one) in returned
        ]
        if request.answer >= 0:
            value = args[request.answer]
        if raw.provenance is not None:
            seen.foreign = raw.provenance.foreign(value)
            tensors = {str(place): one for place, one in enumerate(args)}
            if isinstance(value, tuple | list):
                tensors |= {f"result {place}": one for place, one in enumerate(value)}
            else:
                tensors["result"] = value
            roles = {_place(one): role for role, one in tensors.items() if isinstance(one, Tensor)}
            for launch, storages in zip(seen.launches, raw.provenance.storages, strict=False):
                launch.roles = {
                    name: roles[one._cdata] for name, one in storages.items() if one._cdata in roles
                }
        results = _results(value, given)
        if watch.compiles:
            seen.compiled = _compiled(raw, request, watch, args, list(named.values()))
            value = None
        return Reply(value=encode(value), seen=seen), results

    def _train(self, request: Request) -> Reply:
        """A module's output and gradients; its parameter ``weight`` is the one that is given."""
        cols, eps, x, weight, dy, again = decode(request.args, self.device)
        module = self._function(request.file, request.name)(cols, eps=eps)
        if not isinstance(module, torch.nn.Module):
            raise Failure(
                f"{request.name} is a {type(module).__name__}, expected a torch.nn.Module"
            )
        names = [name for name, _ in module.named_parameters()]
        if names != ["weight"]:
            raise Failure(
                f"the module has the parameters {names}, expected ['weight']: torch.nn.Parameter registers one"
            )
        begins = module.get_parameter("weight").detach().cpu().float()
        if not torch.equal(begins, torch.ones(cols)):
            raise Failure(
                "the weight of a new module is not ones, those of torch.nn.RMSNorm are",
                "weight-not-ones",
            )
        if not module.get_parameter("weight").requires_grad:
            raise Failure("the weight of a new module does not require a gradient", "frozen-weight")
        module = module.to(self.device)
        del module.weight
        module.weight = weight  # type: ignore[assignment]

        return _refuse_kept(request.name, partial(self._trained, module, x, weight, dy, again))

    def _trained(
        self, module: torch.nn.Module, x: Tensor, weight: Tensor, dy: Tensor, again: bool
    ) -> tuple[Reply, list[Tensor]]:
        """The reply to a training step, and its results."""
        before = [_memory(x), _memory(weight)]
        with observe.observed(given=(x, weight)) as raw:
            y = module(x.view_as(x))
        seen = raw.told()
        if raw.provenance is not None:
            seen.foreign = raw.provenance.foreign(y)
        gradients = None
        if again:  # before the backward of the first call
            module((2 * x.detach()).requires_grad_())
        if isinstance(y, Tensor) and y.requires_grad and y.numel() == dy.numel():
            wanted = [one for one in (x, weight) if one.requires_grad]
            found = torch.autograd.grad(y.reshape(dy.shape), wanted, dy, allow_unused=True)
            gradients = list(found) if x.requires_grad else [torch.zeros_like(x), *found]
        seen.changed = _changed([x, weight], before)
        needs = isinstance(y, Tensor) and y.requires_grad
        results = _results([y, *(gradients or ())], [x, weight, dy])
        return Reply(value=encode([y, needs, gradients]), seen=seen), results

    def _own(self, request: Request) -> Reply:
        module = importlib.import_module(f"rownorm_course.{OWN[request.name]}")
        return Reply(value=encode(getattr(module, request.name)(*decode(request.args))))


def _results(value: Any, given: Sequence[Any]) -> list[Tensor]:
    """The tensors in a value that have memory, and not an argument's."""
    arguments = {_place(one) for one in given if isinstance(one, Tensor)}
    return [one for one in _tensors(value) if _place(one) not in arguments]


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in a value that have memory."""
    return [
        one
        for one in (value if isinstance(value, tuple | list) else [value])
        if isinstance(one, Tensor) and one.numel() and not one.is_meta
    ]


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _refuse_kept(name: str, call: Callable[[], tuple[Reply, list[Tensor]]]) -> Reply:
    """The reply to a call; Failure if it returns memory that an earlier one returned, to a caller that still has it.

    call: gives its results too; nobody else here has them. If their memory is alive without them, the function keeps
    it, and is called again until it returns some memory twice, or no longer keeps that of the first call.
    """
    reply, results = call()
    memory = [StorageWeakRef(one.untyped_storage()) for one in results]
    results.clear()
    held: list[Tensor] = []
    for _ in range(PROBES):
        if not _alive(memory):
            break
        _, found = call()
        if not {_place(one) for one in held}.isdisjoint(map(_place, found)):
            raise Failure(
                f"{name} returns memory that an earlier call returned: the caller's first result would change",
                "kept-result",
            )
        held += found
    return reply


def _alive(memory: Sequence[StorageWeakRef]) -> bool:
    if all(one.expired() for one in memory):
        return False
    gc.collect()  # what is in a cycle is not kept
    return not all(one.expired() for one in memory)


def _bytes(tensor: Tensor) -> Tensor:
    made = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return made.set_(tensor.detach().untyped_storage())


def _memory(value: Any) -> Tensor | None:
    """A copy of a tensor's storage; None of what is none, or has no contents."""
    if not isinstance(value, Tensor) or value.is_meta or value.numel() > 1 << 24:
        return None
    return _bytes(value).clone()


def _changed(values: Sequence[Any], before: Sequence[Tensor | None]) -> list[int]:
    """Which tensors have other contents than before."""
    return [
        place
        for place, (one, old) in enumerate(zip(values, before, strict=True))
        if old is not None and not torch.equal(_bytes(one), old)
    ]


def _roles(request: Request) -> list[str]:
    """The roles of the positional and named arguments."""
    values = [*request.args["v"], *(one for _, one in (request.named or {"v": []})["v"])]
    return [one.get("role", "") if isinstance(one, dict) else "" for one in values]


def _compiled(
    raw: observe.Observed, request: Request, watch: Watch, args: list[Any], named: list[Any]
) -> Any:
    from .compiled import compiled_call

    assert watch.case is not None
    roles = {
        one.data_ptr(): role
        for one, role in zip([*args, *named], _roles(request), strict=True)
        if role and isinstance(one, Tensor)
    }
    return compiled_call(raw.started, roles, watch.case, analysis=watch.purpose == "analysis")


def _measured(function: Callable[..., Any], request: Request, watch: Watch) -> Seen:
    """The times of a function that gets the tensors of a case in place of those with their roles."""
    from .measured import medians, records_of

    case = watch.case
    assert case is not None
    roles, given = _roles(request), [decode(one) for one in request.args["v"]]
    named = decode(request.named) or {}

    def call(_: Any, t: Any) -> Any:
        args = [getattr(t, role) if role else one for role, one in zip(roles, given, strict=False)]
        return function(*args, **named)

    return Seen(measured=medians(records_of(call, [case], watch.others), case))


# ---- errors ----


def _error(error: BaseException, folder: Path) -> ErrorReply:
    if isinstance(error, Pending):
        return ErrorReply(message=str(error), pending=True)
    if isinstance(error, Failure):
        return ErrorReply(message=str(error), habit=error.habit)
    if isinstance(error, NotImplementedError):
        return ErrorReply(message=f"still to write: {error}")
    if isinstance(error, SystemExit):
        return ErrorReply(message=f"your code ended the process: exit status {error.code}")
    if isinstance(error, Refused):
        return ErrorReply(message=explained(error, folder), habit=error.habit)
    reason = ""
    if isinstance(error, ValueError):
        reason = str(error)
        if callable(listed := getattr(error, "errors", None)):  # pydantic's
            first = listed()[0]
            field = ".".join(map(str, first["loc"]))
            reason = f"{field}: {first['msg']}" if field else str(first["msg"])
    return ErrorReply(message=explained(error, folder), reason=reason)


def explained(error: BaseException, folder: Path) -> str:
    """An error of the learner's code, with the last line of the learner's own file."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    frames = [
        frame
        for one in causes
        for frame in traceback.extract_tb(one.__traceback__)
        if Path(frame.filename).is_relative_to(folder)
    ]
    last = causes[-1]
    text = f"{type(last).__name__}: {str(last).strip() or 'no message'}"
    if isinstance(last, SyntaxError) and last.filename and Path(last.filename).parent == folder:
        return f"{Path(last.filename).name}, line {last.lineno}: {last.msg}\n{(last.text or '').rstrip()}"
    text = "\n".join(text.splitlines()[:8])
    for part, instead in HABITUAL.items():
        if part in text:
            text = f"{text}\n{instead}"
    if frames:
        where = frames[-1]
        return f"{Path(where.filename).name}, line {where.lineno}: {text}\n    {where.line}"
    return text


# Errors of Triton and Python whose words do not say what to do.
_NUMBER = (
    "In the interpreter, the variable of a loop and a number that is passed are Python's. "
    "tl.cast(value, tl.int64) works for them and on a GPU."
)
_NO_GPU = (
    "Here is no GPU to ask or to start a kernel on. Choose a number of programs or warps without asking: a constant "
    "will do. A kernel runs in the interpreter if DEVICE is imported from rownorm_course.interpreter before triton, as "
    "in the starter; when a file is compiled for a GPU, it starts none at its import: below if __name__ == "
    '"__main__" it may.'
)
_NONE = "Something in the kernel is None: a function without return, or one that the interpreter does not have."
HABITUAL = {
    "'int' object has no attribute 'to'": _NUMBER,
    "'float' object has no attribute 'to'": _NUMBER,
    "active drivers": _NO_GPU,
    "Torch not compiled with CUDA enabled": _NO_GPU,
    "No CUDA GPUs are available": _NO_GPU,
    "Found no NVIDIA driver": _NO_GPU,
    "Cannot re-initialize CUDA in forked subprocess": _NO_GPU,  # torch 2.11, without a GPU as well
    "'NoneType' object has no attribute 'type'": _NONE,
    "'NoneType' object has no attribute 'dtype'": _NONE,
}


# ---- processes ----


def main() -> None:
    """Fork a process for every request on the control socket; or wait for one that has ended."""
    if sys.argv[1] == BEGIN:
        importlib.import_module("rownorm_course.interpreter")
        _begin(json.loads(sys.argv[2]), *map(int, sys.argv[3:]))
        return
    control, mode = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    if mode == "compile":
        importlib.import_module("rownorm_course.compiled")
    importlib.import_module("rownorm_course.interpreter")
    if mode == "interpret":
        importlib.import_module("rownorm_course.rehearsal").rehearse()
    while True:
        message, files, *_ = socket.recv_fds(control, 1 << 16, 4)
        if not message:
            return
        request = json.loads(message)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            control.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if not pid:
            control.close()
            if mode == "gpu":
                _begin_anew(request, files)
            _begin(request, *files)
            os._exit(0)
        for one in files:
            os.close(one)
        control.send(json.dumps(pid).encode())


def _begin_anew(request: dict[str, Any], files: list[int]) -> None:
    """Begin in a new program: PyTorch refuses CUDA in a fork of a process that has counted the GPUs."""
    for one in files:
        os.set_inheritable(one, True)
    command = ["-P", "-m", "rownorm_course.host", BEGIN, json.dumps(request), *map(str, files)]
    os.execv(sys.executable, [sys.executable, *command])


def _begin(request: dict[str, Any], channel: int, out: int, errors: int, stack: int) -> None:
    """The learner's process, until the grader has gone."""
    os.setsid()
    mode, folder = request["mode"], Path(request["folder"])
    os.dup2(out, 1)
    os.dup2(errors, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.register(signal.SIGUSR1, stack)
    if mode != "gpu":
        _limit_memory()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    if request["library"]:
        importlib.import_module("rownorm_course.fib_inside")
        importlib.import_module("rownorm_course.measured")
    host = Host(folder, mode)
    refuse_files(library=request["library"])
    if mode == "interpret" and not request["library"]:
        refuse_programs()
    gc.freeze()  # a collection goes through what the learner's code makes
    host.serve(socket.socket(fileno=channel))


def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


if __name__ == "__main__":
    main()
