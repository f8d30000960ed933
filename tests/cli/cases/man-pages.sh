# SPDX-License-Identifier: Apache-2.0
# In a man page an option stands alone on its line, with its text below.
. "$SOURCE/tests/cli/lib.sh"
[ -e "$BUILD/man/steptape-record.1" ] || skip "no man pages were built"
for page in "$BUILD"/man/*.1; do
    ! grep -n '^\\fB-.*   ' "$page" || fail "$page: the text of an option is in its line"
done
