#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# page.sh PROGRAM COMMAND PAGE.scd SCDOC OUTPUT: makes a man page of PAGE.scd, with the lines @OPTIONS@,
# @EXAMPLES@ and @STATUS@ replaced by what `PROGRAM COMMAND --help` says of them: their text is written
# once, in C.
set -eu
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
help() {
    [ -z "$command" ] || "$program" "$command" --help
}
program=$1 command=$2
help | sed -n '/^Exit status: /,/^$/{
s/^Exit status: //
s/[\\_*<]/\\&/g
p
}' | tr '\n' ' ' >"$parts/status" # one line: a dash in front of another would begin a list
# An example that was too long for a line goes on in the first column of the next.
help | sed -n '/^Examples\{0,1\}:$/,/^$/{
/:$/d
s/[\\_*<]/\\&/g
p
}' | awk '
    /^  / && text != "" { print "\t" text "\n" }
    /^  / { text = substr($0, 3); next }
    NF { text = text " " $0 }
    END { print "\t" text "\n" }
' >"$parts/examples"
help | awk '
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
' >"$parts/options"
sed -e "/^@OPTIONS@\$/{
r $parts/options
d
}" -e "/^@EXAMPLES@\$/{
r $parts/examples
d
}" -e "/^@STATUS@\$/{
r $parts/status
d
}" "$3" | "$4" >"$5"
