#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_cli_faults.sh - a rank that dies or stops, and an interrupt: exit code 3, the last line on
# stderr names the rank and the phase, nothing on stdout, and nothing is left behind.
set -uo pipefail
export LC_ALL=C
afd=${AFD:?}
[ -x "$afd" ] || { echo "no command in this build" && exit 77; }
unset RANK WORLD_SIZE AFD_RANK AFD_WORLD SLURM_PROCID OMPI_COMM_WORLD_RANK
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failures=0
slack_s=${SAN:+10}

fail() {
    echo "$*"
    failures=$((failures + 1))
}

# ended WHAT CODE WORDS FROM LIMIT: a job that began at FROM ended with exit code 3, in time, and
# with WORDS in its last line.
ended() {
    local last word took=$((SECONDS - $4))
    last=$(tail -n 1 "$scratch/err")
    [ "$2" -eq 3 ] || fail "$1: exit code $2"
    [ ! -s "$scratch/out" ] || fail "$1: something on stdout"
    [ "$took" -le $(($5 + ${slack_s:-1})) ] || fail "$1: took $took s"
    while IFS= read -r -d '|' word; do
        [[ $last == *"$word"* ]] || fail "$1: no \"$word\" in: $last"
    done <<<"$3|"
}

# The phases of afd_phase: 0 joining, 1 dispatch, 2 receive, 3 reply, 4 collect.
phases=('while joining' 'in dispatch' 'in receive' 'in reply' 'in collect')
for point in 0:0:0 1:0:0 2:0:1 0:0:2 1:7:3 3:7:4 0:150:2 3:199:4; do
    IFS=: read -r rank _ phase <<<"$point"
    from=$SECONDS
    AFD_TEST_KILL=$point "$afd" run --hidden 64 --tokens 8 --deadline 2s --json \
        >"$scratch/out" 2>"$scratch/err"
    ended "killed at $point" $? "rank $rank died of signal 9|${phases[phase]}" "$from" 3
done

# children PARENT: its direct children, each of which is a rank.
children() {
    ps -o pid= --ppid "$1" | tr -d ' '
}

start() {
    "$afd" run --hidden 256 --tokens 32 --exchanges 1000000 "$@" >"$scratch/out" 2>"$scratch/err" &
    job=$!
    sleep 1
    mapfile -t ranks < <(children "$job")
    from=$SECONDS
}

if command -v ps >/dev/null; then
    start --deadline 2s
    [ "${#ranks[@]}" -eq 4 ] || fail "run has ${#ranks[@]} children, not its 4 ranks"
    kill -KILL "${ranks[2]}"
    wait "$job"
    ended "kill -9 from outside" $? "rank 2 died of signal 9|exchange" "$from" 3

    start --deadline 1s
    kill -STOP "${ranks[1]}"
    wait "$job"
    ended "a stopped rank" $? "rank 1 did not end by itself|exchange" "$from" 7

    start
    kill -KILL "$job"
    wait "$job" 2>/dev/null
    sleep 1
    for pid in "${ranks[@]}"; do
        state=$(ps -o stat= -p "$pid" | tr -d ' ')
        case $state in
        '' | Z*) ;;
        *) fail "rank $pid outlives its parent" ;;
        esac
    done
fi

for how in processes threads; do
    for signal in INT TERM; do
        start --ranks $how
        kill -$signal "$job"
        wait "$job"
        ended "SIG$signal, $how" $? "stopped by signal" "$from" 2
    done
done

left=$(find /dev/shm -name '*afd*' -newer "$scratch" 2>/dev/null)
[ -z "$left" ] || fail "left in /dev/shm: $left"
[ "$failures" -eq 0 ]
