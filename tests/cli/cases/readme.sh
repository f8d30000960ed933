# SPDX-License-Identifier: Apache-2.0
# Runs every block of README.md that is marked ```sh run, in order, in one shell; a block ```text run
# right after one is what it prints, to the byte.
. "$SOURCE/tests/cli/lib.sh"
needs sqlite3
ln -s "$SOURCE/traces" traces
mkdir build
for file in steptape steptape.so; do
    ln -s "$BUILD/$file" "build/$file"
done
python3 - <<'END'
import os, re
text = open(os.environ["SOURCE"] + "/README.md").read()
blocks = re.findall(r"^```sh run\n(.*?)^```\n(?:\n?```text run\n(.*?)^```\n)?", text, re.M | re.S)
assert blocks, "README.md has no block marked to run"
with open("script", "w") as script:
    for n, (code, output) in enumerate(blocks):
        script.write(f"{{\n{code}}} >block{n}.out\n")
        if output:
            open(f"block{n}.want", "w").write(output)
            script.write(f"cmp block{n}.out block{n}.want || {{ cat block{n}.out; exit 1; }}\n")
END
sh -eux script || fail "a command of README.md failed"
