#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# consumer.sh CMAKE BUILD_DIR PROJECT LIBDIR: install, move the tree, then build against it with the
# CMake package and with pkg-config, run the program, load the SQLite module.
set -eu
cmake=$1 build=$2 project=$3 libdir=$4
work=$build/consumer
source=$(cd "$project/../../.." && pwd)
toy=$source/capture/python/examples/toy_engine.py
rm -rf "$work"
mkdir -p "$work"
"$cmake" --install "$build" --prefix "$work/staged" >"$work/install.log"
# An installed tree holds no path of where it was made.
mv "$work/staged" "$work/moved"
prefix=$work/moved

expect() {
    [ -e "$prefix/$1" ] || {
        echo "not installed: $1"
        (cd "$prefix" && find . -type f)
        exit 1
    }
}
expect bin/steptape
expect include/steptape/capture.h
expect include/steptape/tape.h
expect include/steptape/kernels.h
expect include/steptape/kernels_attention.h
expect include/steptape/kernels_base.h
expect include/steptape/kernels_indices.h
expect include/steptape/kernels_topk.h
expect "$libdir/libsteptape_capture.so"
expect "$libdir/libsteptape_kernels.so"
expect "$libdir/steptape/steptape.so"
expect "$libdir/cmake/steptape/steptapeConfig.cmake"
expect "$libdir/pkgconfig/steptape-capture.pc"
expect "$libdir/pkgconfig/steptape-kernels.pc"
expect "$libdir/pkgconfig/steptape.pc"
expect share/steptape/python/steptape/vllm_plugin.py
expect share/bash-completion/completions/steptape
expect share/zsh/site-functions/_steptape
expect share/fish/vendor_completions.d/steptape.fish
if command -v scdoc >/dev/null; then
    expect share/man/man1/steptape.1
fi
# A debugger and a sanitizer are told paths, in binary files.
binary=-I
! grep -q "^CMAKE_BUILD_TYPE:STRING=Release" "$build/CMakeCache.txt" || binary=-a
if grep -rlF "$binary" -e "$build" -e "$source" "$prefix"; then
    echo "installed files name the folder of the build or of the sources"
    exit 1
fi

echo "-- the CMake package"
"$cmake" -S "$project" -B "$work/by-cmake" -DCMAKE_PREFIX_PATH="$prefix" >"$work/cmake.log"
"$cmake" --build "$work/by-cmake" >>"$work/cmake.log"
"$work/by-cmake/consumer"
"$work/by-cmake/record" "$work/by-cmake.tape"
"$prefix/bin/steptape" verify "$work/by-cmake.tape"

echo "-- pkg-config"
export PKG_CONFIG_PATH="$prefix/$libdir/pkgconfig"
# shellcheck disable=SC2046 # flags are words
"${CC:-cc}" -o "$work/by-pkg-config" "$project/consumer.c" $(pkg-config --cflags --libs steptape-kernels)
LD_LIBRARY_PATH="$prefix/$libdir" "$work/by-pkg-config"
# shellcheck disable=SC2046
"${CC:-cc}" -o "$work/record" "$project/record.c" $(pkg-config --cflags --libs steptape-capture)
LD_LIBRARY_PATH="$prefix/$libdir" "$work/record" "$work/by-pkg-config.tape"
"$prefix/bin/steptape" verify "$work/by-pkg-config.tape"

echo "-- the Python package, as an engine finds it"
PYTHONPATH="$prefix/share/steptape/python" python3 -c "
import importlib.metadata
points = importlib.metadata.distribution('steptape').entry_points
assert 'steptape.vllm_plugin:register' in [point.value for point in points], points
"

echo "-- an engine whose Python lacks the package is recorded all the same"
mkdir "$work/elsewhere"
mkdir "$work/elsewhere/steptape" # a folder of that name is no package
(
    cd "$work/elsewhere"
    unset PYTHONPATH
    # Nothing is recorded here, which is an error of its own.
    "$prefix/bin/steptape" -q record -o x.tape -- python3 -c "
import importlib.metadata, importlib.util
points = importlib.metadata.distribution('steptape').entry_points
assert 'steptape.vllm_plugin:register' in [point.value for point in points], points
print('plug-in', importlib.util.find_spec('steptape').origin)
" >found 2>err || true
    grep -q "^plug-in $prefix/share/steptape/python/" found || {
        cat found err
        exit 1
    }
    if python3 -c 'import numpy' 2>/dev/null; then
        "$prefix/bin/steptape" record -o toy.tape -- sh -c \
            'exec python3 "$1" "$STEPTAPE_RECORD"' sh "$toy"
        "$prefix/bin/steptape" verify toy.tape
    fi
)

echo "-- the program and the SQLite module"
"$prefix/bin/steptape" --version
if command -v sqlite3 >/dev/null; then
    module=$(pkg-config --variable=sqlite_module steptape)
    sqlite3 :memory: ".load ${module%.so}" "SELECT 'the module loads'"
fi
