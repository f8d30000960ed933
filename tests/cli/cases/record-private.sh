# SPDX-License-Identifier: Apache-2.0
# What an engine knows of its users does not come into a tape: the recorder is given numbers, and
# neither the environment nor the command line of the engine goes where they are kept.
. "$SOURCE/tests/cli/lib.sh"
engine=$BUILD/capture/fake_engine
[ -x "$engine" ] || skip "the engine for tests was not built"
secret=planted-prompt-of-a-user
export PLANTED="$secret"
steptape record -o x.tape -- sh -c '"$0" --steps 300; echo "$1"' "$engine" "$secret" >out 2>err
grep -q "$secret" out || fail "the engine did not print it"
steptape record -o y.tape -- sh -c '"$0" --steps 300 --abort-at 200; echo "$1"' "$engine" "$secret" \
    >out 2>err || true
host=$(uname -n)
# Two or three letters are in packed bytes by chance.
[ "${#host}" -ge 6 ] || host=$secret
for tape in x.tape y.tape; do
    steptape verify "$tape" >verified
    for word in "$secret" "$PWD" "$host" "$(id -un)@"; do
        grep -aqF -- "$word" "$tape" && fail "'$word' is in $tape"
    done
done
exit 0
