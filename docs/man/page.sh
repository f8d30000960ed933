#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# page.sh PROGRAM COMMAND PAGE.scd: the page in scdoc's language, with the line @OPTIONS@ replaced by
# the options that `PROGRAM COMMAND --help` lists, so that their text is written once, in C.
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
    /^  +-/ && !/^ {20}/ {
        flush()
        sub(/^ +/, "")
        at = match($0, /  +/)
        spec = at ? substr($0, 1, at - 1) : $0
        text = at ? substr($0, at + RLENGTH) : ""
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
}" "$3"
