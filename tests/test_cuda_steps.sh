#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_cuda_steps.sh - the steps compile for sm_90 and spill no register. $CUDA_REPORT is what nvcc
# and ptxas said of tests/cuda_steps.cu; it is empty where there is no nvcc. Needs no GPU.
set -euo pipefail

if [ -z "${CUDA_REPORT:-}" ]; then
    echo "no nvcc: the steps were not compiled for CUDA"
    exit 77
fi
awk '
    /Compiling entry function/ { split($0, part, "\047"); name = part[2] }
    /spill stores/ { stack = $0; sub(/^ */, "", stack) }
    /Used [0-9]+ registers/ { line = $0; sub(/^.*Used/, "used", line)
                              printf "report: %s: %s; %s\n", name, line, stack; kernels++ }
    END { if (!kernels) { print "no kernel was compiled"; exit 1 } }
' "$CUDA_REPORT" || {
    cat "$CUDA_REPORT"
    exit 1
}
if grep -q '^nvcc failed' "$CUDA_REPORT"; then
    cat "$CUDA_REPORT"
    exit 1
fi
if grep -E '[1-9][0-9]* bytes spill (stores|loads)' "$CUDA_REPORT"; then
    echo "a step spills registers"
    exit 1
fi
