#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles each header of kernels/ alone, as C11 and (with a C++ compiler at hand) as C++17: device
# files read them as C++.
# Usage: headers_test.sh SOURCE_DIR CC [CXX]
set -u
source_dir=$1
cc=$2
cxx=${3:-}
if [ -z "$cxx" ]; then
    for candidate in c++ g++ clang++; do
        if command -v "$candidate" >/dev/null 2>&1; then
            cxx=$candidate
            break
        fi
    done
fi
failed=0
count=0
for header in "$source_dir"/kernels/*.h "$source_dir"/kernels/*/*.h \
    "$source_dir"/kernels/include/steptape/*.h; do
    count=$((count + 1))
    printf '#include "%s"\nint st_header_test;\n' "$header" |
        "$cc" -std=c11 -Wall -Wextra -Werror -fsyntax-only -I"$source_dir" \
            -I"$source_dir/kernels/include" -x c - || failed=1
    if [ -n "$cxx" ]; then
        printf '#include "%s"\nint st_header_test;\n' "$header" |
            "$cxx" -std=c++17 -Wall -Wextra -Werror -fsyntax-only -I"$source_dir" \
                -I"$source_dir/kernels/include" -x c++ - || failed=1
    fi
done
echo "$count headers, C++ compiler: ${cxx:-none}"
exit $failed
