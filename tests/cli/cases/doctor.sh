# SPDX-License-Identifier: Apache-2.0
. "$SOURCE/tests/cli/lib.sh"
steptape doctor >out
for word in cuda cpu sim; do
    grep -q "$word" out || fail "doctor says nothing of $word"
done

# A CUPTI with known faults is named as such.
if command -v cc >/dev/null; then
    echo 'int cuptiGetVersion(unsigned *v); int cuptiGetVersion(unsigned *v) { *v = 130000; return 0; }' >cupti.c
    cc -shared -fPIC -o libcupti.so.13 cupti.c
    LD_LIBRARY_PATH=$PWD steptape doctor --format=jsonl >out
    grep -q '"CUPTI","status":"warning".*before update 1' out || fail "$(grep CUPTI out)"
fi
