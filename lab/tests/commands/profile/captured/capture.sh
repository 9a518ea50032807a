#!/bin/sh
# Capture what test_captured.py and test_ncu_source.py read, on an NVIDIA GPU with ncu: capture.sh FOLDER
# FOLDER gets a profile, FOLDER-lines the counters by source line of another program.
set -eu
out=$1
here=$(dirname "$0")
python=${PYTHON:-python3}
"$python" -m rownorm_lab profile rms_norm --rows 8192 --cols 4096 --dtype bf16 --pass both --out "$out"
rm -f "$out/ncu.ncu-rep" "$out/ncu-source.csv"  # megabytes, with the paths of this machine
# The same counters in the long layout.
ncu --csv --page details --print-units base --log-file "$out/ncu-long.csv" --profile-from-start off \
    --kernel-name-base function --cache-control all --clock-control none \
    --metrics dram__bytes_read.sum,launch__registers_per_thread,gpu__time_duration.sum \
    "$python" -m rownorm_lab.commands.profile.work "$out" counters

whole=$(mktemp -d)
ncu --profile-from-start off --cache-control all --clock-control none --section SourceCounters --import-source yes \
    --kernel-name-base function --kernel-name 'regex:^(forward|backward|column)_|[Ll]ayer_?[Nn]orm' -f -o "$whole/report" \
    "$python" "$here/h200-lines/norms.py"
ncu --import "$whole/report.ncu-rep" --csv --page raw --print-units base > "$whole/raw.csv"
ncu --import "$whole/report.ncu-rep" --csv --page source --print-source cuda,sass --kernel-name-base function \
    > "$whole/source.csv"
mkdir -p "$out-lines"
"$python" "$here/trim_source.py" "$whole/source.csv" "$whole/raw.csv" "$out-lines"
rm -r "$whole"
