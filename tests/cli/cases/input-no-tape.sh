# SPDX-License-Identifier: Apache-2.0
# A folder, a JPEG, noise, nothing, text, another database: each one clear line and exit 1.
. "$SOURCE/tests/cli/lib.sh"
needs sqlite3
mkdir folder
printf '\377\330\377\340\000\020JFIF\000\001\001\000\000\001\000\001\000\000\377\333' >photo.jpg
head -c 4000 /dev/zero | tr '\0' 'x' >>photo.jpg
python3 -c 'import random, sys; sys.stdout.buffer.write(random.Random(1).randbytes(8192))' >noise
: >empty
echo "not a tape" >text
sqlite3 other.db "CREATE TABLE t (x)"
mkdir out
for file in folder photo.jpg noise empty text other.db; do
    for command in info verify dump report; do
        refuses 1 "$file" steptape "$command" "$file"
    done
    refuses 1 "$file" steptape query "$file" "SELECT * FROM step"
    refuses 1 "$file" steptape replay "$file" --backend sim --policy baseline -o out/x.tape
    refuses 1 "$file" steptape import "$file" -o out/x.tape
    [ -z "$(ls -A out)" ] || fail "left behind: $(ls -A out)"
done
only folder photo.jpg noise empty text other.db out

# SQLite would open what lies beside a tape, and wait for ever for the writer of a pipe.
tiny
for suffix in journal wal; do
    mkfifo "tiny.tape-$suffix"
    refuses 1 "tiny.tape-$suffix" timeout 300 steptape info tiny.tape
    rm "tiny.tape-$suffix"
done
