#!/bin/sh
# Profile RMSNorm on an AMD GPU with rocprofv3; the summary is rocprof_results/triton_analysis_summary.md.
#
#     examples/run_rocprof_triton.sh [--cols 4096 --rows 8192 --dtype bf16]
#
# The options are those of rownorm profile. Without an AMD GPU the Chrome traces remain, and the summary says what is
# missing; the exit status is 0 then, too. It is 1 if a tool that is here failed or was denied. PYTHON names another
# interpreter than python3.
set -u
out=rocprof_results
"${PYTHON:-python3}" -m rownorm_lab profile rms_norm --tools chrome,rocprofv3 --out "$out" "$@"
status=$?
# 2 is a usage error: nothing was written, and an old summary stays as it is.
test $status = 2 && exit 2
cp "$out/summary.md" "$out/triton_analysis_summary.md" || exit 1
if test $status = 1 && ! grep -q '"status": "\(failed\|denied\)"' "$out/summary.json"; then
    echo "rocprofv3 is missing here; $out/triton_analysis_summary.md says what it needs" >&2
    status=0
fi
exit $status
