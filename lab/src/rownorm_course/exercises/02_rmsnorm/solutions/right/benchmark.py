"""Time rms_norm beside torch's, with the lab's clock: python benchmark.py (on a machine with a GPU)."""

from statistics import median

from rownorm_lab.data.case import Case


def cases():
    """The cases to time."""
    return [
        Case(operation="rms_norm", rows=4096, cols=cols, dtype="fp16", eps=1e-6)
        for cols in (256, 1024, 4096)
    ]


def bytes_moved(rows, cols, itemsize):
    """The bytes that any implementation must move: x in, y out."""
    return 2 * rows * cols * itemsize


def gb_per_s(rows, cols, itemsize, seconds):
    """Bandwidth in GB/s, 1 GB = 10^9 bytes."""
    return bytes_moved(rows, cols, itemsize) / seconds / 1e9


def speedup(mine, torch_times):
    """How many times as fast as torch; both are lists of seconds."""
    return median(torch_times) / median(mine)


if __name__ == "__main__":
    from rmsnorm import rms_norm

    from rownorm_course.measured import compare

    for block in (64, 128, 256, 512, 1024):
        print(f"block {block}")
        compare(
            lambda case, t, block=block: rms_norm(t.x, t.weight, case.eps, block=block), cases()
        )
