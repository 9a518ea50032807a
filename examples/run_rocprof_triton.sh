#!/bin/sh
# Profile RMSNorm on an AMD GPU with rocprofv3; the summary is rocprof_results/triton_analysis_summary.md.
#
#     examples/run_rocprof_triton.sh [--cols 4096 --rows 8192 --dtype bf16]
#
# The options are those of rownorm profile. Without an AMD GPU the Chrome traces remain, the summary says what is
# missing, and the exit status is 1. PYTHON names another interpreter than python3.
set -u
out=rocprof_results
"${PYTHON:-python3}" -m rownorm_lab profile rms_norm --tools chrome,rocprofv3 --out "$out" "$@"
status=$?
# 2 is a usage error: nothing was written, and an old summary stays as it is.
test $status = 2 || cp "$out/summary.md" "$out/triton_analysis_summary.md"
exit $status
