#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh PROGRAM... - runs test programs one after another and counts.
#
# A program that prints a cmocka summary counts its test functions; any other counts as one test by
# its exit code. Exit 77 is one skipped test. A crash, a time-out, or a failing exit without a
# failed test is one failed test. Lines that begin with "report: " are shown, and the whole output
# of a failure. The last line is always "N passed, N failed, N skipped"; exit code 0 only if nothing
# failed.
#
#   AFD_TEST_TIMEOUT   seconds for each program (300)
set -uo pipefail
export LC_ALL=C

timeout_s=${AFD_TEST_TIMEOUT:-300}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/afd-tests.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
output=$scratch/output
passed=0
failed=0
skipped=0
failed_names=()

now_ms() {
    local now=$EPOCHREALTIME
    echo $((${now%.*} * 1000 + 10#${now#*.} / 1000))
}

# Sum of the numbers of all "[  PASSED  ] 3 test(s)" lines (or FAILED, SKIPPED) of the output.
summary_sum() {
    grep -a -o "\[  $1 *\] [0-9]* test(s)" "$output" |
        awk '{ sum += $(NF - 1) } END { print sum + 0 }'
}

lines_with() {
    grep -a -c "$1" "$output" || true
}

# Sets program_passed, program_failed, program_skipped and reason from the exit code and the output.
judge() {
    local code=$1 begun ended
    program_passed=$(summary_sum PASSED)
    program_failed=$(summary_sum FAILED)
    program_skipped=$(summary_sum SKIPPED)
    reason=
    begun=$(lines_with '^\[==========\].*Running [0-9]* test(s)')
    ended=$(lines_with '^\[==========\].* test(s) run')
    if [ "$code" -eq 77 ]; then
        program_skipped=$((program_skipped + 1))
        reason=$(tail -n 1 "$output")
    elif [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
        reason="did not end within $timeout_s s"
    elif [ "$code" -gt 128 ]; then
        reason="died of signal $((code - 128))"
    elif [ "$code" -ne 0 ]; then
        [ "$program_failed" -gt 0 ] || reason="exit code $code"
    elif [ "$begun" -ne "$ended" ]; then
        reason="left before its tests were done"
    elif [ "$begun" -eq 0 ]; then
        program_passed=1
    fi
    if [ -n "$reason" ] && [ "$code" -ne 77 ]; then
        program_failed=$((program_failed + 1))
    fi
}

run_one() {
    local program=$1 name begin end code word=ok
    name=$(basename "$program")
    case $program in
    */*) ;;
    *) program=./$program ;;
    esac
    begin=$(now_ms)
    timeout --kill-after=10 "$timeout_s" "$program" >"$output" 2>&1 </dev/null
    code=$?
    end=$(now_ms)
    judge "$code"
    if [ "$program_failed" -gt 0 ]; then
        word=FAILED
        failed_names+=("$name")
    elif [ $((program_passed)) -eq 0 ] && [ "$program_skipped" -gt 0 ]; then
        word=skipped
    fi
    passed=$((passed + program_passed))
    failed=$((failed + program_failed))
    skipped=$((skipped + program_skipped))
    printf '%-8s %4d.%d s %5d passed %4d failed %4d skipped  %s%s\n' "$word" \
        $(((end - begin) / 1000)) $(((end - begin) % 1000 / 100)) "$program_passed" \
        "$program_failed" "$program_skipped" "$name" "${reason:+ ($reason)}"
    echo "$((end - begin)) $name" >>"$scratch/times"
    if [ "$program_failed" -gt 0 ]; then
        sed 's/^/    /' "$output"
    else
        sed -n 's/^report: /    /p' "$output"
    fi
}

for program in "$@"; do
    run_one "$program"
done

if [ $# -gt 1 ]; then
    echo "slowest:"
    sort -rn "$scratch/times" | head -n 5 |
        awk '{ printf "%10.1f s  %s\n", $1 / 1000, $2 }'
fi
[ ${#failed_names[@]} -eq 0 ] || echo "failed: ${failed_names[*]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
