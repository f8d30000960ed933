# SPDX-License-Identifier: Apache-2.0
. "$SOURCE/tests/cli/lib.sh"
refuses 1 none.jsonl steptape import none.jsonl -o x.tape
for command in info verify dump report; do
    refuses 1 none.tape steptape "$command" none.tape
done
refuses 1 none.tape steptape query none.tape "SELECT 1"
refuses 1 none.tape steptape replay none.tape --backend sim --policy baseline
mkdir x.tape.recording
refuses 1 'steptape recover' steptape info x.tape
rmdir x.tape.recording
[ -z "$(ls -A)" ] || fail "left behind: $(ls -A)"
