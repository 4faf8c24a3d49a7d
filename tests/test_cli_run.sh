#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_cli_run.sh - jobs end with exit code 0, one JSON object on stdout that has what the contract
# says, and every exchange checked, under many options; a wrong value is exit code 1.
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

# look FILE PYTHON: the expression over the object `d` is true.
look() {
    python3 -c "
import json, sys
d = json.load(open(sys.argv[1]))
assert $2, json.dumps(d)
" "$1" 2>"$scratch/why" || fail "$1: not so: $2: $(tail -n 1 "$scratch/why")"
}

# good PYTHON ARGUMENT...: the job succeeds, and the expression is true of its object.
good() {
    local what=$1 code
    shift
    timeout 100 "$afd" run --hidden 144 --exchanges 6 --json "$@" >"$scratch/out" 2>"$scratch/err"
    code=$?
    [ "$code" -eq 0 ] || fail "afd run $*: exit code $code: $(tail -n 1 "$scratch/err")"
    [ ! -s "$scratch/err" ] || fail "afd run $*: on stderr: $(head -n 1 "$scratch/err")"
    look "$scratch/out" "d['mismatches'] == 0 and ($what)"
}

keys="all(k in d for k in 'layout protocol backend digest exchanges mismatches sizes'.split())"
size_keys="all(k in s for s in d['sizes'] for k in \
'tokens exchanges p50_us p99_us rows bytes imbalance'.split())"
trace=data/traces/esft_dsv2lite_intent_L13.rtr

good "$keys and $size_keys and d['exchanges'] == 24 and d['layout'] == '2A2F' and \
[s['tokens'] for s in d['sizes']] == [1, 8, 32, 128] and d['experts'] == 128 and d['topk'] == 8"
good "d['experts'] == 64 and d['topk'] == 6 and d['exchanges'] == 12 and \
all(0 < s['p50_us'] <= s['p99_us'] and s['imbalance'] >= 1 for s in d['sizes'])" \
    --trace $trace --tokens 1,8 --weights
good "d['exchanges'] == 24 and [s['tokens'] for s in d['sizes']] == [1, 2, 4, 8]" \
    --layout 3A1F --ranks threads --routing skewed --tokens 1..8 --view
good "d['experts'] == 257 and d['stages'] == 3" --layout 5A3F --experts 257 --topk 5 --payload fp8 \
    --receive indexed --stages 3 --tokens 8 --ranks threads
good "d['sizes'][0]['rows'] == 0 and d['sizes'][0]['bytes'] == 0" --tokens 0,1
good "d['sizes'][0]['rows'] == 0" --routing none --tokens 5
good "d['sizes'][0]['rows'] == 2 * 5 * 6 and d['sizes'][0]['imbalance'] == 2 and \
d['sizes'][0]['bytes'] == 60 * 4 * 144" --routing one-expert --tokens 5
good "True" --payload fp8-ue8m0 --switch scales=col --align 8 --switch zero-padding=1 --tokens 7
good "True" --payload bytes:37 --ids int32 --bias --weights --tokens 7 --routing lognormal
good "d['variant'] == 'words' and d['reply_variant'] == 'words'" --switch variant=words \
    --switch reply-variant=words --switch first-epoch=4611686018427387000 --tokens 3
good "True" --roles A,F,A,F,F --blocks 3 --stages 8 --tokens 4 --exchanges 40
good "d['sizes'][0]['p50_us'] is None" --exchanges 1 --tokens 1
good "d['exchanges'] == 6" --capacity 100 --tokens 3
seq 0 1 3 | tac >"$scratch/placement" # 3 2 1 0
good "True" --layout 1A4F --experts 4 --topk 2 --placement "$scratch/placement" --tokens 5

# The same seed is the same traffic; another is not.
for n in 1 2 3; do
    "$afd" run --hidden 16 --topk 1 --tokens 9 --exchanges 20 --seed $((7 + n / 3)) --json \
        >"$scratch/s$n"
done
imbalance="['sizes'][0]['imbalance']"
look "$scratch/s1" "d$imbalance == json.load(open('$scratch/s2'))$imbalance"
look "$scratch/s1" "d$imbalance != json.load(open('$scratch/s3'))$imbalance"

# One wrong value of one expert's answer is found, and says so in the exit code.
AFD_TEST_KILL=1:2:5 "$afd" run --hidden 16 --tokens 8 --exchanges 8 --json \
    >"$scratch/out" 2>"$scratch/err"
code=$?
[ "$code" -eq 1 ] || fail "a wrong value: exit code $code"
look "$scratch/out" "1 <= d['mismatches'] <= 2"

# Ranks started elsewhere: each knows all results; under a launcher only rank 0 prints.
port=$((20000 + RANDOM % 10000))
for r in 0 1 2; do
    "$afd" run --layout 2A1F --rank $r --world 3 --rendezvous 127.0.0.1:$port --tokens 4 \
        --exchanges 10 --hidden 64 --json >"$scratch/rank$r" 2>"$scratch/err$r" &
    pids[r]=$!
done
for r in 0 1 2; do
    wait "${pids[r]}" || fail "rank $r of a job started elsewhere: $(tail -n 1 "$scratch/err$r")"
    look "$scratch/rank$r" "d['exchanges'] == 10 and d['mismatches'] == 0 and d['rank'] == $r and \
d['sizes'][0]['p50_us'] > 0 and d['role'] == ('ffn' if $r == 0 else 'attention')"
done
for r in 0 1; do
    RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$afd" run --layout 1A1F \
        --tokens 4 --exchanges 10 --hidden 64 --json >"$scratch/rank$r" 2>"$scratch/err$r" &
    pids[r]=$!
done
for r in 0 1; do
    wait "${pids[r]}" || fail "rank $r of a launcher's job: $(tail -n 1 "$scratch/err$r")"
done
look "$scratch/rank0" "d['exchanges'] == 10"
[ ! -s "$scratch/rank1" ] || fail "rank 1 of a launcher's job prints"

# Different options are found before any data moves, and both sides say so.
for r in 0 1; do
    "$afd" run --rank $r --world 2 --rendezvous 127.0.0.1:$port --tokens 4 --exchanges 1$r \
        --hidden 64 >"$scratch/rank$r" 2>"$scratch/err$r" &
    pids[r]=$!
done
for r in 0 1; do
    wait "${pids[r]}"
    code=$?
    [ "$code" -eq 3 ] || fail "different --exchanges: rank $r has exit code $code"
    grep -q 'rank 1 was started with other .*--exchanges' "$scratch/err$r" ||
        fail "different --exchanges: rank $r says $(tail -n 1 "$scratch/err$r")"
done

"$afd" memory --layout 3A1F --capacity 128 --json >"$scratch/out" || fail "memory failed"
look "$scratch/out" "len(d['ranks']) == 4 and all(r['registered_bytes'] == sum(x['bytes'] for x in \
r['regions'] if x['registered']) for r in d['ranks']) and \
d['largest_registered_bytes'] == max(r['registered_bytes'] for r in d['ranks'])"
"$afd" memory --layout 1000A24F --capacity 65536 --hidden 7168 --json >"$scratch/out" ||
    fail "memory of 1024 ranks failed"
look "$scratch/out" "len(d['ranks']) == 1024 and d['largest_registered_bytes'] > 2**32 and \
d['largest_registered_bytes'] >= 1000 * 65536 * 7168 * 2"
"$afd" info --json >"$scratch/out" || fail "info failed"
look "$scratch/out" "d['cores'] >= 1 and d['vector'] in d['vector_sets'] and len(d['digest']) == 16"
[ "$failures" -eq 0 ]
