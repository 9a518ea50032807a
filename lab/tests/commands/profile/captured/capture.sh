#!/bin/sh
# Capture what test_captured.py reads, on an NVIDIA GPU with ncu: capture.sh FOLDER
set -eu
out=$1
python=${PYTHON:-python3}
"$python" -m rownorm_lab profile rms_norm --rows 8192 --cols 4096 --dtype bf16 --pass both --out "$out"
# The same counters in the long layout.
ncu --csv --page details --print-units base --log-file "$out/ncu-long.csv" --profile-from-start off \
    --kernel-name-base function --cache-control all --clock-control none \
    --metrics dram__bytes_read.sum,launch__registers_per_thread,gpu__time_duration.sum \
    "$python" -m rownorm_lab.commands.profile.work "$out" counters
