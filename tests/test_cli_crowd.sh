#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_cli_crowd.sh - ranks far outnumber cores and none starves: 8A4F as processes, on two cores
# where there are more, 1,000 exchanges at T = 8 within a minute. And every wrong value is counted,
# whichever exchange it is in.
set -uo pipefail
export LC_ALL=C
afd=${AFD:?}
[ -x "$afd" ] || { echo "no command in this build" && exit 77; }
unset RANK WORLD_SIZE AFD_RANK AFD_WORLD SLURM_PROCID OMPI_COMM_WORLD_RANK AFD_KEY
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failures=0

fail() {
    echo "$*"
    failures=$((failures + 1))
}

two_cores=()
first_two=$(taskset -cp $$ 2>/dev/null | sed 's/.*: //' | tr ',' '\n' |
    awk -F- '{ for (i = $1; i <= ($2 == "" ? $1 : $2); i++) print i }' | head -n 2 | paste -sd,)
[ -n "$first_two" ] && two_cores=(taskset -c "$first_two")

# With a sanitizer the point is that it ends, not how soon.
exchanges=1000
[ -z "${SAN:-}" ] || exchanges=100
begin=$SECONDS
"${two_cores[@]}" "$afd" run --layout 8A4F --ranks processes --tokens 8 \
    --exchanges $exchanges --json \
    >"$scratch/out" 2>"$scratch/err" || fail "8A4F: exit code $?: $(tail -n 1 "$scratch/err")"
took=$((SECONDS - begin))
[ "$took" -le 60 ] || fail "8A4F took $took s"
echo "report: 8A4F, $exchanges exchanges at T = 8, processes on cores ${first_two:-?}: $took s"
grep -q "\"exchanges\": $exchanges," "$scratch/out" || fail "8A4F did not check all its exchanges"

# Exchange 0 .. 3 have distinct experts, 4 .. 7 are timed.
for options in '' '--receive indexed' '--payload fp8 --align 4' '--protocol union --stages 2'; do
    for exchange in 0 3 4 7; do
        # shellcheck disable=SC2086 # several options
        AFD_TEST_KILL=1:$exchange:5 "$afd" run --hidden 32 --tokens 4 --exchanges 8 $options \
            >"$scratch/out" 2>"$scratch/err"
        code=$?
        [ "$code" -eq 1 ] || fail "a lie in exchange $exchange, $options: exit code $code"
        grep -q '^8 exchanges checked, 1 mismatches$' "$scratch/out" ||
            fail "a lie in exchange $exchange, $options: $(tail -n 1 "$scratch/out")"
        grep -q '^afd: 1 mismatches' "$scratch/err" ||
            fail "a lie in exchange $exchange, $options: stderr has $(tail -n 1 "$scratch/err")"
    done
done

# The environment's switches win over the options, and what is checked and reported follows them.
AFD_RECEIVE=indexed AFD_VARIANT=rows "$afd" run --hidden 32 --tokens 4 --exchanges 8 --json \
    --receive expanded --switch variant=words >"$scratch/out" 2>"$scratch/err" ||
    fail "switches of the environment: $(tail -n 1 "$scratch/err")"
grep -q '"receive": "indexed"' "$scratch/out" || fail "AFD_RECEIVE is not in the report"
grep -q '"variant": "rows"' "$scratch/out" || fail "AFD_VARIANT is not in the report"
[ "$failures" -eq 0 ]
