#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The long simulation: every layout, option, hunt and fault; prints a line for each and a total.
#   tools/sim_long.sh build/afd [SEEDS]
set -eu
afd=$1
seeds=${2:-250}
total=0
one() {
    line=$("$afd" sim --seeds "$seeds" "$@") || {
        echo "$line"
        echo "failed: afd sim --seeds $seeds $*"
        exit 1
    }
    count=$(echo "$line" | sed 's/.*: \([0-9]*\) schedules.*/\1/')
    total=$((total + count))
    echo "$line   $*"
}
for layout in 1A1F 2A2F 3A1F 1A3F 5A3F 3A2F; do
    for hunt in uniform starve freeze late words pct; do
        one --layout $layout --hunt $hunt --experts 16 --topk 2
        one --layout $layout --hunt $hunt --experts 16 --topk 4 --words 0 --weights
        one --layout $layout --hunt $hunt --experts 16 --topk 4 --stages 3 --exchanges 6 --tokens 4
        one --layout $layout --hunt $hunt --experts 16 --topk 4 --receive indexed --blocks 3
        one --layout $layout --hunt $hunt --experts 16 --topk 4 --routing sparse --tokens 3 \
            --words 3 --tag-period 4 --exchanges 12
        one --layout $layout --hunt $hunt --experts 16 --topk 2 --hidden 1024 --tokens 2 --blocks 5
    done
    for fault in die stall abort route; do
        one --layout $layout --fault $fault --experts 16 --topk 4
        one --layout $layout --fault $fault --experts 16 --topk 2 --stages 2 --blocks 4
    done
done
for layout in 1A1F 2A1F 5A1F; do
    one --layout $layout --view --experts 16 --topk 4
done
echo "total: $total schedules, 0 findings"
