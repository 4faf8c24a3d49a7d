#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check_headers.sh - compiles every header alone: gcc C11 for all, g++ C++17 for those that promise
# it, nvcc (where there is one) for those that devices use. `make check-headers` sets the variables.
set -uo pipefail
shopt -s nullglob

scratch=$(mktemp -d "${TMPDIR:-/tmp}/afd-headers.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
read -ra c_flags <<<"${C_FLAGS:?run make check-headers}"
read -ra nvcc_flags <<<"${NVCC_FLAGS:-}"
export scratch CC=${CC:-gcc} CXX=${CXX:-g++} NVCC=${NVCC:-}

# C++ has no strict prototypes, and there -Wshadow dislikes a function named as a struct (as stat).
cxx_flags=(-std=c++17)
for flag in "${c_flags[@]}"; do
    case $flag in
    -std=* | -Wstrict-prototypes | -Wshadow) ;;
    *) cxx_flags+=("$flag") ;;
    esac
done

# check HEADER LANGUAGE COMPILER [FLAG...]: prints a line and what the compiler said if it fails.
check() {
    local header=$1 language=$2 text
    shift 2
    local source=$scratch/${header//\//_}.$language
    echo "#include \"$header\"" >"$source"
    if ! text=$("$@" "$source" 2>&1) || grep -q 'warning:' <<<"$text"; then
        echo "$header does not stand alone as $language:"
        echo "$text"
        return 1
    fi
}

# jobs_run FUNCTION HEADER...: at most one job for each core at a time.
failures=0
jobs_run() {
    local function=$1 header running=0 cores
    cores=$(nproc)
    shift
    for header in "$@"; do
        if [ "$running" -ge "$cores" ]; then
            wait -n || failures=$((failures + 1))
            running=$((running - 1))
        fi
        "$function" "$header" &
        running=$((running + 1))
    done
    while [ "$running" -gt 0 ]; do
        wait -n || failures=$((failures + 1))
        running=$((running - 1))
    done
}

as_c() { check "$1" c "$CC" "${c_flags[@]}" -I. -fsyntax-only; }
as_cxx() { check "$1" cc "$CXX" "${cxx_flags[@]}" -I. -fsyntax-only; }
as_cuda() { check "$1" cu "$NVCC" "${nvcc_flags[@]}" -I. -ptx -o /dev/null; }

both=(include/afd/*.h src/shared/*.h src/steps/*.h)
c_only=(src/*.h src/exec/*.h src/exec/sim/*.h src/fabric/*.h src/bootstrap/*.h)
device=(src/exec/cuda/*.cuh src/exec/cuda/*.h)
jobs_run as_c "${both[@]}" "${c_only[@]}"
jobs_run as_cxx "${both[@]}"
cuda_count=0
if [ -n "$NVCC" ]; then
    jobs_run as_cuda "${both[@]}" "${device[@]}"
    cuda_count=$((${#both[@]} + ${#device[@]}))
fi
echo "check-headers: $((${#both[@]} + ${#c_only[@]})) as C11, ${#both[@]} as C++17," \
    "$cuda_count as CUDA, $failures failed"
[ "$failures" -eq 0 ]
