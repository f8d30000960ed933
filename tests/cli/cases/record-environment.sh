# SPDX-License-Identifier: Apache-2.0
# What a recorded command finds in its environment.
. "$SOURCE/tests/cli/lib.sh"
[ -e "$BUILD/capture/libsteptape_capture.so" ] || skip "no library in $BUILD"
unset CUDA_INJECTION64_PATH VLLM_PLUGINS STEPTAPE_LIBRARY STEPTAPE_INJECT SGLANG_PLUGINS
shown() { # OPTION...: the environment of a recorded command
    steptape -q record -o x.tape "$@" -- env >variables 2>err || true
}
has() {
    grep -qxF -- "$1" variables || fail "'$1' is not in: $(grep -e STEPTAPE -e PLUGINS -e INJ variables)"
}
shown --launches=off
has "STEPTAPE_RECORD=$PWD/x.tape"
has "STEPTAPE_LAUNCHES=off"
has "STEPTAPE_ALL_RANKS=0"
has "STEPTAPE_OVERHEAD_BUDGET=1%"
grep -q '^STEPTAPE_LIBRARY=/.*libsteptape_capture.so' variables || fail "no library"
grep -q '^PYTHONPATH=.*/python' variables || fail "no package for an engine that lacks it"
grep -q VLLM_PLUGINS variables && fail "VLLM_PLUGINS was not set: all plug-ins are loaded"

VLLM_PLUGINS=other SGLANG_PLUGINS=steptape shown --launches=off --all-ranks --ring=4M \
    --overhead-budget=0.5%
has "VLLM_PLUGINS=other,steptape"
has "SGLANG_PLUGINS=steptape"
has "STEPTAPE_ALL_RANKS=1"
has "STEPTAPE_RING_BYTES=4194304"
has "STEPTAPE_OVERHEAD_BUDGET=0.5%"
shown --launches=off --overhead-budget=none
has "STEPTAPE_OVERHEAD_BUDGET="

# One injected library a process: another tool's stays, and launches are refused by name.
touch inject.so
export STEPTAPE_INJECT="$PWD/inject.so"
shown --launches=count
has "CUDA_INJECTION64_PATH=$PWD/inject.so"
has "LD_PRELOAD=$PWD/inject.so" # counts without CUPTI
shown --launches=node
has "STEPTAPE_LAUNCHES=node"
grep -q LD_PRELOAD variables && fail "preloaded, which only a count needs"
export CUDA_INJECTION64_PATH=/opt/other.so
refuses 2 /opt/other.so steptape record -o x.tape --launches=node -- true
shown --launches=off
has "CUDA_INJECTION64_PATH=/opt/other.so"

# The loader's list cannot hold every path; an empty variable names nothing.
unset CUDA_INJECTION64_PATH
mkdir 'a b'
touch 'a b/inject.so'
export STEPTAPE_INJECT="$PWD/a b/inject.so"
refuses 1 'no path with a space' steptape record -o x.tape --launches=count -- true
shown --launches=node
has "CUDA_INJECTION64_PATH=$PWD/a b/inject.so"
STEPTAPE_INJECT=nowhere.so refuses 1 'STEPTAPE_INJECT says' \
    steptape record -o x.tape --launches=node -- true
STEPTAPE_INJECT='' STEPTAPE_LIBRARY='' shown --launches=off
grep -q '^STEPTAPE_LIBRARY=/.*libsteptape_capture.so' variables || fail "an empty variable was kept"
