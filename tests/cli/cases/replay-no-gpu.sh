# SPDX-License-Identifier: Apache-2.0
# Without a GPU --backend cuda says so and ends with 77.
. "$SOURCE/tests/cli/lib.sh"
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    skip "there is a GPU here"
fi
tiny
refuses 77 cuda steptape replay tiny.tape --backend cuda --policy baseline -o x.tape
only tiny.tape
