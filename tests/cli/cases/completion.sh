# SPDX-License-Identifier: Apache-2.0
# The bash completion knows commands, options and the values that --help lists.
. "$SOURCE/tests/cli/lib.sh"
needs bash
completes() { # WORD...: what the last word completes to, sorted
    bash -c '
        . "$SOURCE/docs/completion/steptape.bash"
        COMP_WORDS=(steptape "$@")
        COMP_CWORD=$#
        _steptape
        printf "%s\n" "${COMPREPLY[@]}" | sort | tr "\n" " "' bash "$@"
}
expect() {
    want=$1
    shift
    got=$(completes "$@")
    [ "$got" = "$want" ] || fail "$*: '$got', '$want' expected"
}
expect "import info " i
expect "record recover replay report " re
expect "verify " help ver
expect "cpu cuda " replay x.tape --backend = c
expect "json jsonl " report x.tape --format j
expect "--policy " replay --pol
