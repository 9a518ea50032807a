#!/bin/sh
# Capture starter/profile on an NVIDIA GPU with ncu: the profile of the starter's kernel that the exercise ships. Then write
# its figures into the right solution. Takes less than a minute. An existing profile must be removed first.
set -eu
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../../.." && pwd)
export PYTHONPATH="$root/src:$root/lab/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
cd "$here/starter"  # so that the files name workload.py and profile without a path
"$python" -m rownorm_lab profile --script workload.py --tools chrome,proton,ncu --out profile
rm -f profile/ncu.ncu-rep profile/ncu-source.csv  # megabytes, and no question is about them
du -sk profile
answers=../solutions/right/answers.toml
figures=$("$python" ../solutions/right/analysis.py profile)
sed -i '/^\[figures\]/,$d' "$answers"
echo "$figures" | tee -a "$answers"
