# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Sourced by the cases: . "$SOURCE/tests/cli/lib.sh"

# shellcheck disable=SC2034 # for the cases
COMMANDS="record recover import dump info verify anonymize replay report query bench doctor"

fail() {
    echo "$*" >&2
    exit 1
}

skip() {
    echo "$*" >&2
    exit 77
}

# needs PROGRAM: skips the case where it is not installed.
needs() {
    command -v "$1" >/dev/null || skip "$1 is not installed"
}

# refuses STATUS TEXT COMMAND...: it ends with STATUS, nothing on stdout, and one line on stderr that
# begins with "steptape: " and holds TEXT.
refuses() {
    want=$1 text=$2 status=0
    shift 2
    "$@" >refuses.out 2>refuses.err || status=$?
    [ "$status" -eq "$want" ] || fail "exit $status, $want expected: $*: $(cat refuses.err)"
    [ ! -s refuses.out ] || fail "output in spite of an error: $*"
    [ "$(wc -l <refuses.err)" -eq 1 ] || fail "not one line: $*: $(cat refuses.err)"
    grep -q '^steptape: ' refuses.err || fail "not from steptape: $(cat refuses.err)"
    grep -qF -- "$text" refuses.err || fail "'$text' is not in: $(cat refuses.err)"
    rm -f refuses.out refuses.err
}

# only FILE...: the folder holds these and nothing else, hidden files included.
only() {
    printf '%s\n' "$@" | sort >"$BUILD/only.$$"
    # shellcheck disable=SC2012 # names of our own making
    ls -A | sort | cmp -s - "$BUILD/only.$$" || {
        rm -f "$BUILD/only.$$"
        fail "left behind: $(ls -A), only $* expected"
    }
    rm -f "$BUILD/only.$$"
}

# same_facts A B: two files in the interchange format say the same, key order and white space aside.
same_facts() {
    python3 - "$@" <<'END'
import json, sys
a, b = ([json.dumps(json.loads(l), sort_keys=True) for l in open(f)] for f in sys.argv[1:])
for n, (x, y) in enumerate(zip(a, b), 1):
    if x != y:
        sys.exit(f"line {n} differs:\n{x}\n{y}")
if len(a) != len(b):
    sys.exit(f"{len(a)} and {len(b)} lines")
END
}

tiny() {
    steptape -q import "$DATA/tiny.jsonl" -o tiny.tape
}

# replay_tiny [OPTION...]: baseline and upstream on the simulated GPU, into tiny.runs.tape.
replay_tiny() {
    tiny
    steptape -q replay tiny.tape --backend sim --policy baseline --policy upstream "$@" >/dev/null
}
