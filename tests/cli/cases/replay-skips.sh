# SPDX-License-Identifier: Apache-2.0
# Twelve steps of tiny.jsonl have tokens, known CPU starts and no boundary of 128; four of them ran
# in FULL.  Two c128 layers, two launches each: 48 skipped in eager mode, 32 as recorded, and in full
# mode only the 8 of two steps that are larger than the largest captured graph.
. "$SOURCE/tests/cli/lib.sh"
ask() { # MODE SQL
    replay_tiny --graph-mode "$1" -o "$1.tape"
    steptape query "$1.tape" "$2" --format=csv | tail -n +2
}
skipped="SELECT sum(skipped) FROM launch_count WHERE policy = 'upstream'
    AND operator IN ('compress_pool', 'compress_norm_rope_store')"
got=$(ask eager "$skipped")
[ "$got" = 48 ] || fail "eager: $got skipped, 48 expected"
got=$(ask tape "$skipped")
[ "$got" = 32 ] || fail "tape: $got skipped, 32 expected"
got=$(ask full "$skipped")
[ "$got" = 8 ] || fail "full: $got skipped, 8 expected"
got=$(steptape query tape.tape \
    "SELECT sum(could_skip) FROM run_step WHERE policy = 'upstream'" --format=csv | tail -n +2)
[ "$got" -ge 16 ] || fail "tape: $got could have been skipped, at least the 16 in FULL expected"
got=$(steptape query eager.tape --format=csv \
    "SELECT count(*) FROM launch_count WHERE policy = 'baseline' AND skipped <> 0" | tail -n +2)
[ "$got" = 0 ] || fail "the baseline skips something"
