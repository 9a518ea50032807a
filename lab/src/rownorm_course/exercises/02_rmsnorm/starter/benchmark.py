"""Time rms_norm beside torch's, with the lab's clock: python benchmark.py (on a machine with a GPU)."""

from rownorm_lab.data.case import Case


def cases():
    """The cases to time, a list of Case(operation=..., rows=4096, cols=256, dtype="fp16", eps=1e-6).

    operation: what torch computes beside you, "layer_norm" or "rms_norm".
    """
    raise NotImplementedError("cases: torch must compute the same operation as you")


def bytes_moved(rows, cols, itemsize):
    """The bytes that any implementation must move."""
    raise NotImplementedError("bytes_moved")


def gb_per_s(rows, cols, itemsize, seconds):
    """Bandwidth in GB/s, 1 GB = 10^9 bytes."""
    raise NotImplementedError("gb_per_s")


def speedup(mine, torch_times):
    """How many times as fast as torch; both are lists of seconds."""
    raise NotImplementedError("speedup")


if __name__ == "__main__":
    from rmsnorm import rms_norm

    from rownorm_course.measured import compare

    for block in (64, 128, 256, 512, 1024):
        print(f"block {block}")
        compare(
            lambda case, t, block=block: rms_norm(t.x, t.weight, case.eps, block=block), cases()
        )
