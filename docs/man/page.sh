#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# page.sh PROGRAM COMMAND PAGE.scd SCDOC OUTPUT: makes a man page of PAGE.scd, with the line @OPTIONS@
# replaced by the options that `PROGRAM COMMAND --help` lists: their text is written once, in C.
set -eu
options=$(mktemp)
trap 'rm -f "$options"' EXIT
[ -z "$2" ] || "$1" "$2" --help | awk '
    function flush() {
        if (spec == "")
            return
        gsub(/[\\_*]/, "\\\\&", spec)
        gsub(/[\\_*<]/, "\\\\&", text)
        printf "*%s*\n\t%s\n\n", spec, text
        spec = text = ""
    }
    # (mawk knows no {20}.)
    /^  +-/ && !/^                    / {
        flush()
        # The text begins in column 30; behind an option that reaches that far, after three spaces
        # or on the next line.
        spec = $0
        text = ""
        if (substr($0, 29, 1) == " " || match($0, /[^ ]   [^ ]/)) {
            at = substr($0, 29, 1) == " " ? 29 : RSTART + 3
            spec = substr($0, 1, at - 1)
            text = substr($0, at + 1)
        }
        gsub(/^ +| +$/, "", spec)
        next
    }
    /^                    / && spec != "" {
        sub(/^ +/, "")
        text = text (text == "" ? "" : " ") $0
        next
    }
    { flush() }
    END { flush() }
' >"$options"
sed -e "/^@OPTIONS@\$/{
r $options
d
}" "$3" | "$4" >"$5"
