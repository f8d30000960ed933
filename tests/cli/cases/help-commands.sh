# SPDX-License-Identifier: Apache-2.0
# Each command's --help goes to stdout and ends with 0; `steptape help COMMAND` is the same text.
. "$SOURCE/tests/cli/lib.sh"
for command in $COMMANDS; do
    steptape "$command" --help >a 2>err || fail "$command --help: exit $?"
    [ ! -s err ] || fail "$command --help talks on stderr"
    grep -q "^Usage: steptape $command" a || fail "$command --help: no usage line"
    steptape help "$command" >b
    cmp a b
done
