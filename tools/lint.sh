#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lint.sh [--format] - clang-format, clang-tidy, cppcheck, shellcheck and codespell over the tree.
# --format rewrites the sources instead. `make lint` sets LINT_FLAGS, the compiler flags.
set -uo pipefail

dirs=()
for dir in include src cli tests examples bench fuzz; do
    [ -d "$dir" ] && dirs+=("$dir")
done
mapfile -t formatted < <(find "${dirs[@]}" -type f \
    \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) | sort)
# clang-tidy reads what ships; tests and the MPI program (whose header may be missing) are left to
# the compiler's warnings and cppcheck.
mapfile -t sources < <(find src cli examples -type f -name '*.c' | sort)
mapfile -t scripts < <(find tools tests .ci -type f \( -name '*.sh' -o -path '.ci/run' \) | sort)
texts=(README.md HACKING.md Makefile doc man tools .ci "${dirs[@]}")

if [ "${1:-}" = --format ]; then
    exec clang-format-14 -i "${formatted[@]}"
fi

failed=()
# part NAME COMMAND...: runs it, says how long it took, remembers whether it failed.
part() {
    local name=$1 begin=$SECONDS
    shift
    if "$@"; then
        echo "lint: $name: ok ($((SECONDS - begin)) s)"
    else
        echo "lint: $name: FAILED ($((SECONDS - begin)) s)"
        failed+=("$name")
    fi
}

# The flags that clang knows; gcc's own warnings are the compiler's business.
read -ra flags <<<"${LINT_FLAGS:?run make lint}"
tidy_one() {
    read -ra tidy_flags <<<"$LINT_FLAGS"
    [ "$1" = src/error.c ] || tidy_flags+=(-include tools/lint_hints.h)
    clang-tidy --quiet --warnings-as-errors='*' "$1" -- "${tidy_flags[@]}" 2>/dev/null
}
export -f tidy_one
tidy_all() {
    printf '%s\0' "${sources[@]}" | xargs -0 -I{} -P "$(nproc)" bash -c 'tidy_one {}'
}
cppcheck_all() {
    local defines=()
    for flag in "${flags[@]}"; do
        case $flag in
        -I* | -D*) defines+=("$flag") ;;
        esac
    done
    cppcheck --quiet --std=c11 --language=c --error-exitcode=1 -j "$(nproc)" --inline-suppr \
        --enable=warning,performance,portability --suppressions-list=tools/cppcheck.txt \
        "${defines[@]}" "${sources[@]}"
}

part clang-format clang-format-14 --dry-run -Werror "${formatted[@]}"
part shellcheck shellcheck "${scripts[@]}"
part codespell codespell --quiet-level=3 --ignore-words=tools/codespell.txt "${texts[@]}"
part cppcheck cppcheck_all
part clang-tidy tidy_all
if [ ${#failed[@]} -gt 0 ]; then
    echo "lint: failed: ${failed[*]}"
    exit 1
fi
echo "lint: ${#formatted[@]} files are clean"
