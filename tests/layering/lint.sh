#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# lint.sh format|spelling|shell|manpages SOURCE_DIR: one linter over the tree; 77 when it is missing.
set -eu
tool=$1
cd "$2"

folders="traces kernels capture replay analysis tests"

need() {
    command -v "$1" >/dev/null 2>&1 && return
    echo "skipped: $1 is not installed"
    exit 77
}

case $tool in
format)
    # Releases differ in what they write; 14 is the one that counts.
    need clang-format-14
    # shellcheck disable=SC2086 # a list of folders
    find steptape.c $folders -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) \
        -exec clang-format-14 --dry-run -Werror {} +
    ;;
spelling)
    need codespell
    # shellcheck disable=SC2086
    codespell steptape.c quickstart CMakeLists.txt ./*.md docs $folders
    ;;
shell)
    need shellcheck
    # shellcheck disable=SC2086
    find $folders -type f -name '*.sh' -exec shellcheck -x -s sh -e SC2016,SC2094,SC2119 {} +
    shellcheck -x quickstart .ci/run
    ;;
manpages)
    need scdoc
    for page in docs/man/*.scd; do
        scdoc <"$page" >/dev/null || {
            echo "$page: scdoc refuses it"
            exit 1
        }
    done
    ;;
*)
    echo "lint.sh: unknown linter $tool" >&2
    exit 2
    ;;
esac
