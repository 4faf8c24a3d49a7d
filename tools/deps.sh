#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# deps.sh [run|test|lint|all] - installs the Debian packages that a purpose needs and that are
# missing. Touches neither the network nor anything else when all are there.
set -euo pipefail

run=(gcc make pkg-config libpopt-dev libjansson-dev libxxhash-dev libsodium-dev)
test=("${run[@]}" g++ libcmocka-dev python3 scdoc)
lint=("${test[@]}" clang-format-14 clang-tidy cppcheck shellcheck codespell)
all=("${lint[@]}" universal-ctags man-db libfabric-dev)

case ${1:-all} in
run) wanted=("${run[@]}") ;;
test) wanted=("${test[@]}") ;;
lint) wanted=("${lint[@]}") ;;
all) wanted=("${all[@]}") ;;
*)
    echo "usage: deps.sh [run|test|lint|all]" >&2
    exit 2
    ;;
esac

if ! command -v dpkg >/dev/null; then
    echo "deps: not a Debian system; install the equivalents of: ${wanted[*]}" >&2
    exit 0
fi

missing=()
for package in "${wanted[@]}"; do
    dpkg -s "$package" 2>/dev/null | grep -q '^Status: install ok installed' ||
        missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
        echo "deps: missing ${missing[*]}; install them as root (there is no sudo)" >&2
        exit 1
    }
    as_root=(sudo)
fi

install_missing() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends "${missing[@]}"
}

echo "deps: installing ${missing[*]}"
update=("${as_root[@]}" apt-get update -q)
"${update[@]}" || { sleep 5 && "${update[@]}"; } || echo "deps: apt-get update failed" >&2
install_missing || { sleep 5 && install_missing; }
