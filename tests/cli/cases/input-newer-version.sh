# SPDX-License-Identifier: Apache-2.0
. "$SOURCE/tests/cli/lib.sh"
needs sqlite3
tiny
sqlite3 tiny.tape "PRAGMA user_version = 9999"
for command in info verify dump; do
    refuses 1 9999 steptape "$command" tiny.tape
done
refuses 1 9999 steptape replay tiny.tape --backend sim --policy baseline
only tiny.tape
