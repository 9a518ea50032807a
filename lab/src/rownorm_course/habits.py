"""The mistakes that usually cause a failure, each with a sentence that says how to mend it."""

HABITS = {
    # ---- addresses and masks ----
    "mask-load": "A load without mask=, or with one that lets too many lanes through, reads past the end of the row, "
    "into whatever follows it. Give every tl.load mask=cols < n_cols and other=0.0. If it has that mask, look at where "
    "the row begins, row * n_cols in a contiguous tensor, and at the grid: programs past the last row leave it too.",
    "mask-other": "Masked lanes of a tl.load without other= are undefined in Triton; the grader makes them NaN. Here "
    "they reach a result. Give that load other=0.0.",
    "mask-other-value": "Masked lanes were counted as 1. In a sum, they count nothing with other=0.0.",
    "mask-store": "A store without mask= writes past the end of the row. Give tl.store mask=cols < n_cols. If it has "
    "that mask, look at where the row begins, and at the grid: programs past the last row leave the tensor, too.",
    "mask-deviation": "Lanes past the end of the row load 0, so x - mean is -mean there (and x - K is -K), and its "
    "square is added to the variance. Zero them again after the subtraction: tl.where(cols < n_cols, x - mean, 0.0).",
    "not-loaded": "Elements were never loaded, whether the values need them here or not. Compare the grid with the "
    "number of rows, and the block (or the loop over columns) with the number of columns.",
    "not-written": "Elements were never stored: of a result, or of a buffer from which it is computed, such as partial "
    "sums of programs that have no row. Compare the grid with the number of rows, and the loop over columns (or the "
    "block) with the number of columns.",
    "kept-result": "Allocate the result in every call: torch.empty takes microseconds. A caller may still need those "
    "of earlier calls.",
    "rows-beyond": "Something counts on few rows: a limit of the grid, or of a loop. Let both follow from the number "
    "of rows.",
    "stride": "Row r begins at r * x.stride(0), not at r * n_cols: a slice of a wider tensor has rows that are "
    "further apart. Pass the stride to the kernel, or call .contiguous() (which costs a copy).",
    "strides": "A contiguous x is right. Element (r, c) is r * x.stride(0) + c * x.stride(1) elements from the first, "
    "whatever the strides are: a transposed x has a small one for rows, an expanded x has 0. y has strides of its own, "
    "and torch.empty_like(x) takes over those of a transposed x: torch.empty(x.shape) is contiguous.",
    "one-column": "With two columns it is right. A row may have one: a block of one lane, in which a reduction has "
    "nothing to combine and does not call its function.",
    "output-stride": "y has a stride of its own: its row r begins at r * y.stride(0), not at r * x.stride(0).",
    "any-shape": "With rows and columns it is right. x may have one dimension or four: make rows of it, "
    "x.reshape(-1, x.shape[-1]), and give the result the shape of x.",
    "any-layout": "A contiguous x is right. A transposed one has no view as rows: x.reshape copies if it must, x.view "
    "fails.",
    "any-dy": "A contiguous dy is right. The dy of y.sum() is a single value, expanded: its strides are 0. Others are "
    "transposed: dy.view fails where dy.reshape copies. A kernel that reads dy with the strides of x needs "
    "dy.contiguous().",
    "weight-not-ones": "torch.nn.Parameter(torch.ones(dim)): a new norm only normalizes.",
    "frozen-weight": "Without a gradient the weight never changes. torch.nn.Parameter(torch.ones(dim)) requires one.",
    "frozen-x": "If x needs a gradient it is right. The weight trains without one of x, too.",
    "saved-elsewhere": "What backward needs belongs to one call: ctx.save_for_backward. A place that all calls share "
    "has the tensors of the last one.",
    "rstd-ignored": "With another eps it is wrong. Use the rstd that is given: forward has computed it with its eps.",
    "int32": "A row offset above 2^31 elements wraps around in int32. Make the row number int64 before the product: "
    "tl.program_id(0).to(tl.int64) * stride.",
    "shared-write": "Two programs store to one address, and the last one wins. At the end of a row, the mask is "
    "cols < n_cols, not the end of the whole tensor. For a sum, give each program a place of its own and add up in a "
    "second kernel.",
    "same-launch": "A program reads what another program of the same launch writes. Programs run in any order and at "
    "the same time; the interpreter runs them one after another, which hides it. Launch a second kernel for the rest.",
    "lanes": "Two lanes of one store have the same address and different values.",
    "own-reduce": "tl.max and its like bring a function of their own. Write larger(a, b) and give it to tl.reduce: a "
    "reduction that Triton does not have is made in this way.",
    "unused-reduce": "tl.reduce gets all elements of the row, and the function that it is given finds the largest of "
    "them: nothing else sorts or compares them.",
    "one-by-one": "A program works on blocks: tl.arange gives a number to each lane, one tl.load or tl.store serves "
    "all of them, and a mask switches off the lanes past the end. The text asks for blocks, not for single elements.",
    "one-access": "The text asks for one load and one store for each program: a block, or a tile, that is wide enough "
    "for all of its elements, and a mask for the lanes past the end.",
    "active-lanes": "The mask switches off a lane without an element of its own. Here such lanes repeat what another "
    "one has.",
    "whose-elements": "The values are right. But the text says which elements a program has: all of these, and no "
    "others.",
    "one-program": "A single program has all of a long vector. Give each program a block of fixed size, such as 256 "
    "elements, and the grid as many programs as there are blocks, triton.cdiv(n, BLOCK).",
    "two-kernels": "Several programs store one sum each, and a second kernel adds these sums without loading x, for a "
    "short vector too. Which program has which elements is yours to choose.",
    "own-part": "Each part was divided by the root mean square of the part. All parts of a row need the sum of the "
    "whole row.",
    "part-of-row": "The squares of the first block only were added. The loop over the blocks must reach the end of "
    "every row, whatever the block size is.",
    "one-block": "One block for the whole row needs more registers the wider the row is. Loop over the row in "
    "blocks of fixed size, or divide it among programs.",
    # ---- formulas ----
    "no-eps": "eps is missing, has a fixed value where the argument belongs, or is added in another place, such as the "
    "sum: it is added to the mean, under the root. It keeps a row of tiny values from being divided by almost zero.",
    "eps-outside": "eps belongs inside the square root: rsqrt(mean + eps), not 1 / (sqrt(mean) + eps).",
    "sum-not-mean": "The sum of squares was not divided by the number of columns.",
    "divide-by-block": "The sum was divided by the block size. Divide by n_cols: lanes past the end are no elements.",
    "no-weight": "The weight was not applied.",
    "no-bias": "The bias was not added.",
    "layer-norm": "RMSNorm does not subtract the mean. This is LayerNorm.",
    "rms-norm": "LayerNorm subtracts the mean, in the variance and in the output. This is RMSNorm.",
    "unbiased": "A mean of squares divides by n, not by n - 1, in a variance too. torch.var divides by n - 1 unless "
    "told otherwise.",
    "no-relu": "ReLU is missing: negative values must become 0.",
    "relu-first": "ReLU was applied before the weight. It comes last: a negative weight turns signs around.",
    "bias-after": "The first bias was added after the norm. It belongs to the row before its statistics are taken.",
    "bias-not-in-mean": "The statistics are those of x. They must be taken of x + bias.",
    # ---- numbers ----
    "low-precision": "The row was squared or summed in fp16, which ends at 65504, or its mean was rounded to it. "
    "Convert after the load, tl.load(...).to(tl.float32), and back at the store.",
    "cancellation": "mean(x^2) - mean(x)^2 subtracts two large, nearly equal numbers: with a mean of 10000 and a "
    "spread of 1, fp32 has no digit of the variance left. Subtract the mean first, then square.",
    "two-roundings": "The result was rounded to 16 bits on the way and again at the end. Keep everything in fp32 "
    "until the store, the weight and partial sums too.",
    "weight-dtype": "With a weight in the dtype of the rows it is right. Each result has the dtype of its own input, "
    "y and dx that of x, dweight that of weight: allocate it so, and convert x and weight to fp32 after their loads.",
    "output-dtype": "y and dx have the dtype of x, dweight has that of weight. Compute in fp32 and convert at "
    "the store.",
    "overflows": "Choose values whose squares fit in fp32: up to about 1e19.",
    "same-kernel": "Welford's merging is a kernel of its own, or at least another constant of the same one: count, "
    "mean and m2 of each block, merged.",
    "no-merge": "Nothing is merged if one block holds the whole row. Load blocks of 1024 columns, take count, mean and "
    "m2 of each, and merge them.",
    "welford-weights": "Two blocks of different sizes were merged as if they were equal. The merged mean is "
    "mean + delta * n_b / (n_a + n_b), and m2 grows by delta^2 * n_a * n_b / (n_a + n_b).",
    "welford-count": "The last block of a row has fewer elements than the others. Its count is "
    "tl.minimum(n_cols - first, BLOCK), and its mean is divided by that.",
    "welford-delta": "The merged m2 lacks delta^2 * n_a * n_b / (n_a + n_b), or has other powers in it: the means of "
    "two blocks differ, and that is part of the spread.",
    "welford-late": "delta is mean_b - mean_a, with the mean before it is merged: keep it until m2 is computed.",
    "welford-swapped": "The merged mean is mean_a + delta * n_b / n: it moves by the share of the block that comes.",
    "shift-outlier": "Shifted sums subtract an element of the row. If it is an outlier, mean(d) is far larger than the "
    "spread and mean(d^2) - mean(d)^2 cancels again. Merge count, mean and m2 of blocks.",
    "shift-block": "If the mean of the first block is subtracted from the whole row, mean(d) is far larger than the "
    "spread where the other blocks lie elsewhere, and mean(d^2) - mean(d)^2 cancels again. Take the deviations of each "
    "block from its own mean, and merge count, mean and m2.",
    "own-shift": "With the same mean in all rows it is right. The constant that is subtracted must be an element of "
    "the row itself: another row may have another mean.",
    "shift-not-added": "The mean of the shifted row was taken for that of the row. The mean is K + mean(d).",
    "shift-squares": "mean(d^2) is not the variance: subtract mean(d)^2.",
    "shift-moves": "Every block has another shift. Sums add up only if one K was subtracted in the whole row.",
    "no-spread": "Without a spread there is nothing to lose: the exact variance is 0, or so small that squares of such "
    "values are 0 in fp32. Give the row values that differ by more.",
    "small-mean": "The mean is not large enough against the spread. fp32 has 24 bits: ask when the digits of the "
    "variance fall below the last digit of mean(x^2).",
    "passes": "Count the loops that load x: each is a pass over the row.",
    "loads-again": "A row has at most 1024 columns: load x and dy into one block each, and use these registers for the "
    "mean, for dx and for the sums of dweight.",
    # ---- modules and gradients ----
    "no-autograd": "Autograd sees no operation between the input and the kernel's output, so no gradient reaches the "
    "weight: it would never train. Call the kernel inside a torch.autograd.Function.",
    "none-gradient": "Either backward of the autograd.Function returns None in its place, or the tensor is no argument "
    "of apply: backward returns a gradient for each argument of forward, in their order.",
    "no-x-gradient": "The gradient of x lacks the term that comes through the root mean square: every element of a row "
    "changes the divisor of all others.",
    "no-weight-in-dx": "g is dy * weight: the gradient passes through the weight on its way to x.",
    "rstd-in-dx": "A factor rstd is missing in dx, or there twice: x_hat is x * rstd, and the whole difference "
    "g - x_hat * mean(g * x_hat) is multiplied by rstd once.",
    "dx-sign": "The term through the root mean square is subtracted: rstd * (g - x_hat * mean(g * x_hat)).",
    "dx-sum": "The sum of g * x_hat was not divided by the number of columns: dx needs its mean.",
    "weight-twice": "dweight is the sum of dy * x_hat, without the weight: g = dy * weight belongs to dx.",
    "wasteful-partials": "A table with a row of partial sums for each row of x is as large as x itself, in fp32: let "
    "each program go through several rows and store one row of sums. Copies of x and dy count, too.",
    "no-rstd": "dweight is the sum of dy * x_hat, and x_hat = x * rstd.",
    "weight-last-row": "dweight is a sum over all rows. A program that stores its own row's product overwrites the "
    "others.",
    "weight-mean": "dweight is the sum over rows of dy * x_hat, not their mean.",
    "many-rows": "With seven rows it is right. Something counts on few: programs of the grid, rows of a program, or "
    "partial sums that are added. Let them follow from the number of rows.",
    "wide-rows": "With 2500 columns it is right. Something counts on few: turns of a loop, or lanes of a block. Let "
    "them follow from the number of columns.",
    "grid": "The second and the third dimension of a grid end at 65535 programs; the first at 2^31 - 1. Rows belong "
    "there.",
    "weight-overflow": "dweight was summed in the dtype of the rows. Sum it in fp32 and round once.",
    "atomics": "Floating-point atomics add in the order in which programs finish, which differs between runs. Store "
    "the sum of each program by tl.store; if several belong to one result, a second kernel adds them in a fixed order.",
    "order": "The programs ran in another order, and the result has other bits: on a GPU the order differs from run to "
    "run. Floating-point atomics do this. Store one partial sum for each program, and add them in a fixed order in a "
    "second kernel.",
    "not-deterministic": "Two calls with the same inputs gave different bits.",
    # ---- honesty ----
    "torch-norm": "It was computed or copied beside your kernel, by PyTorch or in Python. Do that in the kernel.",
    "imports-norm": "A library that has the norm is not imported: the norm is yours to write.",
    "starts-program": "A solution starts no other programs.",
    "no-kernel": "No Triton kernel was launched.",
    "ends-process": "A step counts when its result arrives. Let your functions return.",
    "reads-solution": "The grader's files are not read from a solution. The solution is shown by rownorm learn "
    "solution, after you have passed or given up.",
    "patches-timer": "Timers belong to the grader. Leave time, torch.cuda and triton.testing as they are.",
    "patches-grader": "A part of the process that runs your code was replaced, or answered in its place.",
    # ---- speed ----
    "block-ignored": "Pass the argument block to the kernel as its block size, and load blocks of that size there.",
    "narrow": "Each thread loads fewer than 16 bytes at once. A block needs at least 8 16-bit elements for each "
    "thread: BLOCK >= 8 * 32 * num_warps.",
    "spills": "The kernel needs more registers than a thread has and spills to memory: use a smaller block or more "
    "warps.",
    "few-programs": "Few rows on one program each leave most multiprocessors idle. Divide each row among programs.",
    "not-fused": "The intermediate result is stored and loaded again. One kernel must do all of it.",
    "passes-of-memory": "Rows that fit one program should be read once, by one kernel. Only rows that are divided "
    "among programs need a second one. Choose by the shape.",
    # ---- answers; an empty text where the message says it all ----
    "no-answer": "",
    "toml": "A number is written plainly, 1536 and 100, not 1,536 and 100%. A choice is a letter in quotation marks.",
    "transactions": "Memory moves 32-byte sectors, and a warp's request touches as many as its 32 threads' bytes "
    "cover; counting elements, or blocks of 32 elements, is not how the hardware counts.",
    "straddle": "An access may begin in one sector and end in another. Count the sectors of all of its bytes, from the "
    "first to the last.",
    "few-cases": "One size says nothing about the others, and few rows take the time of a launch: cases() must have "
    "all widths of the text, with its rows and its dtype.",
    "other-operation": "A comparison is fair if both sides compute the same. LayerNorm does more than RMSNorm.",
    "not-your-figures": "The answer must follow from your own measurements.",
    "intensity": "Count the bytes of x and of y: both move. fp16 has 2 bytes an element.",
    "wrong-choice": "",
    "wrong-figure": "The text defines each figure. Work it out once more by hand, for a small example.",
    "wrong-reading": "This figure is printed. Run the command of the text again and copy it as a plain number.",
    # ---- profiles ----
    "microseconds": "Times in a Chrome trace are in microseconds. The function returns seconds.",
    "nanoseconds": "Proton counts nanoseconds. The function returns seconds.",
    "percent": "One of the two is in percent and the other from 0 to 1.",
    "warm-up": "The first call of a shape has a range of its own, warm-up: it compiles the kernel and allocates y. "
    "Leave it out.",
    "both-calls": "Large and tiny calls launch the same kernel, so its name does not tell them apart. Take the "
    "launches inside the ranges with the name, and the counters of launches with the same grid.",
    "correlation": "A kernel runs later than its launch, in another row of the trace. The launch inside the range on "
    "the host (cat cuda_driver or cuda_runtime) and the kernel have the same args.correlation. Neither the order of "
    "events nor their number is fixed.",
    "host-for-kernel": "This is the time of the range on the host, not of the kernels that it launched.",
    "kernel-for-host": "This is the time of the kernels, not of the range on the host.",
    "launch-for-kernel": "This is the time of cuLaunchKernelEx on the host, not of the kernel: a launch returns "
    "before the kernel has run.",
    "device-range": "This is the range on the GPU (cat gpu_user_annotation). The range on the host has the cat "
    "user_annotation, and a kernel the cat kernel.",
    "idle": "Idle is the time without a kernel between the start of the first kernel and the end of the last, over "
    "all of that time. The host's times do not enter.",
    "busy": "This is the share of the time in which a kernel runs. Idle is the rest.",
    "scope": "A scope of Proton is a node with the name of the call; the kernels are the leaves below it. Divide "
    "their time by their count.",
    "rate": "Bandwidth is the bytes of one call over the kernel time of one call; the peak is that of the profile.",
    "theoretical": "This is the theoretical occupancy: what registers, shared memory and block size allow. The "
    "achieved one is sm__warps_active.",
    "bytes-for-sectors": "This is in bytes. A sector has 32.",
    "limit": "First compare the host time with the kernel time, then the bandwidth with the peak. Occupancy by "
    "itself limits nothing.",
    "wrong-counter": "Ask of each figure what it would be if the answer were right.",
    "more-threads-than-work": "There are more threads than elements: past the end of a row they have none, and a block "
    "with fewer elements than threads is loaded several times over. 32 * num_warps threads each need an element, and 8 "
    "of 16 bits for 16-byte loads.",
    "bytes-in-flight": "The memory answers after several hundred nanoseconds. To keep it busy, loads for all that "
    "time must be under way: wider loads, and more of them before the first result is needed.",
    # ---- FlashInfer-Bench ----
    "entry-point": "entry_point is file.py::function: a file among the sources and a function in it.",
    "sources-missing": "A Solution carries its sources and is built in a folder of its own: every file that it imports "
    "must be among its sources.",
    "destination": "With destination_passing_style the outputs are the last arguments and are written in place; "
    "without it the function returns them.",
    "wrong-definition": "The Solution names another Definition than the exercise's.",
    "no-baseline": "A time alone says little. Add a Solution that calls PyTorch to the dataset: "
    "rownorm_lab.fib.solutions.pytorch_baseline makes one.",
    "wrong-reference": "Everything is compared with the reference. Take the Definition as it is: "
    "rownorm_lab.fib.definition.definition_of makes it.",
    "hand-written": "Traces are the output of a run, not a file to fill in.",
    "batches": "The benchmark must cover every batch of the exercise.",
    "eps-random": "eps must be a scalar of the workload. As a random input it is noise.",
}
