# SPDX-License-Identifier: Apache-2.0
. "$SOURCE/tests/cli/lib.sh"
steptape doctor >out
for word in cuda cpu sim; do
    grep -q "$word" out || fail "doctor says nothing of $word"
done
