"""Threads that begin together, forks, and a new process, which call norms of rownorm and of torch and compare them."""

import os
import signal
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils.data import DataLoader, Dataset

from support.like_torch import assert_close


def at_once(functions):
    """The results of functions that begin together, each in a thread of its own."""
    together = threading.Barrier(len(functions), timeout=60)

    def begin(function):
        together.wait()
        return function()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # they take turns often
    try:
        with ThreadPoolExecutor(len(functions)) as threads:
            return list(threads.map(begin, functions))
    finally:
        sys.setswitchinterval(interval)


def assert_in_fork(check):
    """``check()`` passes in a fork of this process, within 30 seconds."""
    process = os.fork()
    if process == 0:
        try:
            signal.alarm(30)
            check()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def output_and_gradients(module, x):
    leaf = x.clone().requires_grad_()
    y = module(leaf)
    return y.detach(), *torch.autograd.grad(y.sin().sum(), (leaf, *module.parameters()))


class Items(Dataset):
    """Items are computed from rows: those of one worker in one process."""

    def __init__(self, function, x):
        self.function, self.x = function, x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.function(self.x[index])


def from_workers(function, x):
    """``function(row)`` for every row, computed by two forks."""
    loader = DataLoader(Items(function, x), 2, num_workers=2, multiprocessing_context="fork")
    return [t for batch in loader for t in batch]


def in_a_new_process(modules, others, x):
    """What a process does that has called no norm yet: in threads, in forks, in workers, then with C++.

    modules, others: of rownorm, and the same of torch.
    """
    from rownorm.launch import native

    torch.set_num_threads(1)
    expected = [output_and_gradients(module, x) for module in others]

    def check():
        for module, of_torch in zip(modules, expected, strict=True):
            assert_close(output_and_gradients(module, x), of_torch)

    first = at_once([lambda module=module: output_and_gradients(module, x) for module in modules])
    for found, of_torch in zip(first, expected, strict=True):
        assert_close(found, of_torch)
    assert_in_fork(check)
    assert native.node.wait(), native.node.reason()  # from here on C++ records
    check()
    assert_in_fork(check)
    found, of_torch = [
        from_workers(lambda row, norms=norms: [output_and_gradients(n, row) for n in norms], x)
        for norms in (modules, others)
    ]
    torch.testing.assert_close(found, of_torch)
