#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_cli_usage.sh - bad usage is exit code 2, one sentence on stderr that has the values, nothing
# on stdout; a backend that is not there is 3.
set -uo pipefail
export LC_ALL=C
afd=${AFD:?}
[ -x "$afd" ] || { echo "no command in this build" && exit 77; }
unset RANK WORLD_SIZE AFD_RANK AFD_WORLD SLURM_PROCID OMPI_COMM_WORLD_RANK
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failures=0

# refuse CODE WORDS ARGUMENT...: exit code, and each of WORDS (separated by |) on the last line.
refuse() {
    local want=$1 words=$2 code
    shift 2
    timeout 30 "$afd" "$@" >"$scratch/out" 2>"$scratch/err"
    code=$?
    local last
    last=$(tail -n 1 "$scratch/err")
    local bad=
    [ "$code" -eq "$want" ] || bad="exit code $code, not $want"
    [ ! -s "$scratch/out" ] || bad="something on stdout"
    local word
    while IFS= read -r -d '|' word; do
        [[ $last == *"$word"* ]] || bad="no \"$word\" in: $last"
    done <<<"$words|"
    [ -z "$bad" ] && return
    echo "afd $*: $bad"
    failures=$((failures + 1))
}

refuse 2 'frob' frob
refuse 2 'no-such' run --no-such
refuse 2 'abc' run --hidden abc
refuse 2 'stray' run stray
refuse 2 '9|4' run --tokens 9 --capacity 4
refuse 2 '65537|65536' run --tokens 65537
refuse 2 '--topk|-1' run --topk -1
refuse 2 '--topk is 33|32' run --topk 33
refuse 2 '--capacity|-1' run --capacity -1
refuse 2 '--stages is 9|8' run --stages 9
refuse 2 '--blocks is 257|256' run --blocks 257
refuse 2 '--exchanges is 0' run --exchanges 0
refuse 2 '--hidden is 0' run --hidden 0
refuse 2 'bytes:4294967297|4294967295' run --payload bytes:4294967297
refuse 2 'fp9|bf16' run --payload fp9
refuse 2 '0s|1000' run --deadline 0s
refuse 2 '600|1024' run --layout 600A600F
refuse 2 '2A2Fx' run --layout 2A2Fx
refuse 2 'layout' run --layout 2A2F --roles A,F
refuse 2 '2 Attention|0 FFN' run --roles A,A
refuse 2 '2A2F@2|domain' run --layout 2A2F@2
refuse 2 'union' run --protocol union-hybrid
refuse 2 'hybrid' run --protocol hybrid
refuse 2 'ofi' run --fabric ofi
refuse 2 'channels' run --channels 2
refuse 2 'FP8' run --reply fp8
refuse 2 '--view|2A2F has 2' run --view
refuse 2 '--view|--bias' run --layout 1A1F --view --bias
refuse 2 'unknown|variant|reply-variant|words-tokens|zero-padding|scales|first-epoch' \
    run --switch x=1
refuse 2 'NAME=VALUE' run --switch variant
refuse 2 '99999999999|256' run --switch words-tokens=99999999999
refuse 2 'first-epoch=0' run --switch first-epoch=0
refuse 2 'none.rtr' run --trace none.rtr
refuse 2 'README.md|RTR1' run --trace README.md
refuse 2 '--experts 64|32' run --trace data/traces/gptoss20b_mmlu_L00.rtr --experts 64
refuse 2 '--topk 8|4' run --trace data/traces/gptoss20b_mmlu_L00.rtr --topk 8
refuse 2 'two sources' run --trace data/traces/gptoss20b_mmlu_L00.rtr --routing none
refuse 2 '--world 4|--rank' run --world 4
refuse 2 '--rendezvous|--rank' run --rendezvous localhost:1
refuse 2 '--rank is 4|0 .. 3' run --rank 4 --world 4 --rendezvous localhost:1
refuse 2 '--world is 3|4 ranks' run --rank 0 --world 3 --rendezvous localhost:1 --layout 2A2F
refuse 2 '--ranks threads|--rank 0' run --rank 0 --world 2 --rendezvous localhost:1 --ranks threads
RANK=0 WORLD_SIZE=3 refuse 2 'environment has 3|2A2F has 4' run
refuse 3 'cuda' run --backend cuda
refuse 2 'stray' info stray
refuse 2 '1024' memory --layout 2000A48F

printf '0 1 x 0\n' >"$scratch/placement"
refuse 2 'entry 2|2 FFN' run --experts 4 --topk 2 --placement "$scratch/placement"
printf '0 1 0\n' >"$scratch/placement"
refuse 2 '3 entries|4 experts' run --experts 4 --topk 2 --placement "$scratch/placement"
head -c 1000 data/traces/gptoss20b_mmlu_L00.rtr >"$scratch/short.rtr"
refuse 2 'short.rtr|has 1000' run --trace "$scratch/short.rtr"

for verb in '' run memory info; do
    # shellcheck disable=SC2086 # no verb is no argument
    if ! "$afd" $verb --help >"$scratch/out" 2>&1 || [ ! -s "$scratch/out" ]; then
        echo "afd $verb --help failed"
        failures=$((failures + 1))
    fi
done
[ "$failures" -eq 0 ]
