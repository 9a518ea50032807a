"""Problem -> Plan where there is no tuned table: rules that follow the pattern of the one there is.

A row that fits one program is held by one. Wider rows are shared by the programs of a cluster, where the GPU has
clusters; the widest, in backward, by programs all over an NVIDIA GPU. Else they are taken in chunks.
"""

from __future__ import annotations

from .problem import Plan, Problem, Regime

# Columns up to which one program holds whole rows in registers without a spill, on every target: (forward, backward).
RESIDENT_COLS = (16384, 8192)
CLUSTER_BYTES = {"forward": 32768, "backward": 8192}  # of one program's share of a row
# Programs of one cluster. Backward has no more rows than clusters at a time, and large ones leave SMs idle.
MOST_PROGRAMS = {"forward": 16, "backward": 4}
GRID_TILE_BYTES = 8192  # of one tensor
MOST_CHUNKS = 8  # tiles that hold a row whose width is no power of two
CHUNK_COLS = {"forward": 4096, "backward": 2048}  # columns of one chunk of a wider row
FEW_CHUNKS = 4  # of such a row, that a kernel may be compiled for
TILE_ELEMENTS = {"forward": 2048, "backward": 4096}  # elements of a tile of several short rows
# Of an SM's shared memory; elsewhere: NVIDIA GPUs that are not in data centres.
PIPELINE_BYTES = {"sm_80": 150 << 10, "sm_90": 200 << 10, "sm_100": 200 << 10}
PIPELINE_BYTES_ELSEWHERE = 80 << 10
MOST_STAGES = 5


def from_rules(problem: Problem, regime: Regime | None = None) -> Plan:
    """The plan of a plain norm of these rows; in ``regime``, if one is asked for."""
    forward = problem.direction == "forward"
    width = 2 if problem.computes_in_fp64 else 1  # fp64 takes twice the registers
    fits = next_power_of_2(problem.n_cols) * width <= RESIDENT_COLS[0 if forward else 1]
    if regime in ("tile", "resident") or (regime is None and fits):
        block_cols, chunks = blocks(problem)
        held_cols = block_cols * chunks
        block_rows = max(1, TILE_ELEMENTS[problem.direction] // width // next_power_of_2(held_cols))
        if regime == "resident":
            block_rows = 1
        elif regime is None and not forward and _is_short(held_cols, problem):
            return _in_one_warp(block_cols, problem)
        num_warps = warps(block_rows * held_cols * width, block_rows * block_cols, problem)
        return Plan(
            regime="tile" if block_rows > 1 else "resident",
            block_rows=block_rows,
            block_cols=block_cols,
            num_warps=num_warps,
            programs_per_sm=max(1, 8 // num_warps),
            num_stages=MOST_STAGES,
        )
    most = MOST_PROGRAMS[problem.direction] * CLUSTER_BYTES[problem.direction]
    if (
        regime is None
        and problem.device.clusters
        and problem.n_cols * problem.dtype.itemsize <= most
    ):
        regime = "cluster"
    if regime == "cluster":
        return in_clusters(problem)
    if regime == "grid" or (regime is None and not forward):
        return in_a_grid(problem)
    return in_chunks(problem)


def _is_short(held_cols: int, problem: Problem) -> bool:
    """Backward: whether a warp of an NVIDIA GPU has 16 bytes of a row for every lane, once or twice."""
    once = 512 // problem.dtype.itemsize
    nvidia = problem.device.arch.startswith("sm_") and not problem.computes_in_fp64
    return nvidia and held_cols in (once, 2 * once)


def _in_one_warp(block_cols: int, problem: Problem) -> Plan:
    """Backward of short rows: in programs of one warp, which waits for no other."""
    block_rows = 2048 // (block_cols * problem.dtype.itemsize)
    return Plan("tile", block_rows, block_cols, 1, programs_per_sm=8, num_stages=3)


def blocks(problem: Problem) -> tuple[int, int]:
    """(columns of a tile, tiles) that hold a row with few lanes to spare: 5120 columns are 5 tiles of 1024."""
    whole = next_power_of_2(problem.n_cols)
    # A tile gives every lane of a warp 16 bytes: with fewer, accesses are narrow.
    block_cols = max(whole // MOST_CHUNKS, 16 // problem.dtype.itemsize * problem.device.warp_size)
    if block_cols >= whole:
        return whole, 1
    chunks = -(-problem.n_cols // block_cols)
    while chunks % 2 == 0:
        block_cols, chunks = 2 * block_cols, chunks // 2
    return block_cols, chunks


def warps(elements: int, tile: int, problem: Problem) -> int:
    """16 elements a thread; backward has at most 256 threads, which leaves each its 255 registers, so up to 32.

    Where a row lies in several tiles, no more threads than have 16 bytes of one.
    """
    threads = next_power_of_2(elements // 16)
    if tile < elements:
        threads = min(threads, tile * problem.dtype.itemsize // 16)
    threads = min(threads, 1024 if problem.direction == "forward" else 256)
    return max(1, threads // problem.device.warp_size)


def in_clusters(problem: Problem) -> Plan:
    """Rows too wide for one program, shared by as few as hold them: each program's share fits its registers."""
    share = CLUSTER_BYTES[problem.direction] // problem.dtype.itemsize
    most = MOST_PROGRAMS[problem.direction]
    cluster = min(most, next_power_of_2(-(-problem.n_cols // share)))
    if problem.direction == "forward":
        return Plan("cluster", 1, min(4096, share), 16, cluster_size=cluster, num_stages=2)
    # Small programs with all the registers there are, two to an SM: while one waits, the other works.
    return Plan("cluster", 1, 512, 4, cluster_size=cluster, programs_per_sm=2, num_stages=3)


def in_a_grid(problem: Problem) -> Plan:
    """Backward of rows too wide for one program, shared by programs all over the GPU.

    Small programs, two to an SM, with all the registers there are: while one waits, the other works.
    """
    block_cols = min(GRID_TILE_BYTES // problem.dtype.itemsize, next_power_of_2(problem.n_cols))
    return Plan("grid", 1, block_cols, 4, programs_per_sm=2, num_stages=4, pipeline_depth=2)


def in_chunks(problem: Problem) -> Plan:
    """Rows too wide for one program's registers."""
    block_cols = CHUNK_COLS[problem.direction] // (2 if problem.computes_in_fp64 else 1)
    threads = 512 if problem.direction == "forward" else 256
    num_warps = threads // problem.device.warp_size
    return Plan("looped", 1, block_cols, num_warps, programs_per_sm=8)


def chunks_of(plan: Plan, problem: Problem) -> int:
    """Tiles that a program's share of a row is taken in."""
    return -(-problem.n_cols // (plan.cluster_size * plan.block_cols))


def filled_chunks(plan: Plan, problem: Problem) -> int:
    """How many chunks a row has, where it fills them and they are few: a kernel can be compiled for that. Else 0."""
    chunks, rest = divmod(problem.n_cols, plan.block_cols)
    return chunks if rest == 0 and chunks <= FEW_CHUNKS else 0


def most_stages(plan: Plan, problem: Problem) -> int:
    """Backward: tiles in flight that fit the shared memory of an NVIDIA SM. Other GPUs prefetch into registers: 1."""
    arch = problem.device.arch
    if problem.direction == "forward":
        return 2 if plan.regime == "cluster" else 1
    if not arch.startswith("sm_"):
        return 1
    h, dh = problem.residual_dtype or problem.dtype, problem.residual_dtype
    reads = 2 if plan.regime == "grid" else 1
    per_element = reads * (problem.dtype.itemsize + h.itemsize) + (dh.itemsize if dh else 0)
    tile_bytes = plan.block_rows * max(1, plan.chunks) * plan.block_cols
    tile_bytes *= per_element * plan.programs_per_sm
    fitting = 1 + PIPELINE_BYTES.get(arch, PIPELINE_BYTES_ELSEWHERE) // tile_bytes
    # dh is wanted late in a tile, and with more than 3 in flight the compiler keeps one more copy of everything.
    return fitting if dh is None else min(fitting, 3)


def next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
