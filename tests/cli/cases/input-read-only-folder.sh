# SPDX-License-Identifier: Apache-2.0
. "$SOURCE/tests/cli/lib.sh"
tiny
mkdir locked
cp tiny.tape locked/
chmod 500 locked
folder=locked
if touch locked/probe 2>/dev/null; then
    # root: the mode does not hold it; sysfs does
    rm locked/probe
    folder=/sys
    if touch /sys/probe 2>/dev/null || [ ! -d /sys ]; then
        skip "no folder here that root cannot write to"
    fi
else
    # A tape can be read where nothing can be written.
    steptape info locked/tiny.tape >/dev/null
    steptape verify locked/tiny.tape >/dev/null
    refuses 1 locked steptape replay locked/tiny.tape --backend sim --policy baseline
    steptape -q replay tiny.tape --backend sim -o kept.tape >/dev/null
    chmod 400 kept.tape
    refuses 1 'kept.tape: the file or its folder may not be written' \
        steptape replay tiny.tape --backend sim -o kept.tape
    rm -f kept.tape
fi
refuses 1 "$folder" steptape import "$DATA/tiny.jsonl" -o "$folder/x.tape"
refuses 1 "$folder" steptape replay tiny.tape --backend sim --policy baseline -o "$folder/x.tape"
chmod 700 locked
only tiny.tape locked
