#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run_demo.sh AFD - the main job on real input: four processes of this machine exchange the tokens
# of a real routing trace, and every value is checked. Ends with a table.
set -euo pipefail

afd=${1:?usage: run_demo.sh AFD}
if [ ! -x "$afd" ]; then
    echo "run: $afd was not built; 'make all' says why" >&2
    exit 1
fi
set -x
exec "$afd" run --layout 2A2F --ranks processes \
    --trace data/traces/esft_dsv2lite_intent_L13.rtr --tokens 1,8,32,128 --exchanges 500
