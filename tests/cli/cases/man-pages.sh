# SPDX-License-Identifier: Apache-2.0
# In a man page an option stands alone on its line, with its text below, and the exit status is there.
. "$SOURCE/tests/cli/lib.sh"
[ -e "$BUILD/man/steptape-record.1" ] || skip "no man pages were built"
for page in "$BUILD"/man/*.1; do
    ! grep -n '^\\fB-.*   ' "$page" || fail "$page: the text of an option is in its line"
    sed -n '/^\.SH EXIT STATUS/,/^\.SH [^E]/p' "$page" | grep -q 'wrong command' || fail "$page: no exit status"
done
