# SPDX-License-Identifier: Apache-2.0
# The terminal goes away in the middle of an import, or the file may not grow: nothing is left behind.
. "$SOURCE/tests/cli/lib.sh"
mkfifo feed
mkdir out
python3 - <<'END' || fail "see above"
import os, signal, subprocess, sys, time
text = open(os.environ["DATA"] + "/tiny.jsonl").read().splitlines(True)

def hang_up(ignored):
    preset = signal.SIG_IGN if ignored else signal.SIG_DFL
    p = subprocess.Popen(["steptape", "import", "feed", "-o", "out/x.tape"], stderr=subprocess.PIPE,
                         preexec_fn=lambda: signal.signal(signal.SIGHUP, preset))
    with open("feed", "w") as feed:
        feed.writelines(text[:10])
        feed.flush()
        while p.poll() is None and not os.listdir("out"):  # until it has taken what it was given
            time.sleep(0.01)
        p.send_signal(signal.SIGHUP)
        if not ignored:
            p.wait()
        else:
            feed.writelines(text[10:])
    err = p.communicate()[1].decode()
    return p.returncode, err, os.listdir("out")

got = hang_up(False)
if got[0] != 130 or got[2]:
    sys.exit(f"hung up: {got}")
got = hang_up(True)  # nohup
if got[0] != 0 or got[2] != ["x.tape"]:
    sys.exit(f"hung up under nohup: {got}")
END
rm out/x.tape
(
    ulimit -f 8
    refuses 1 out/x.tape steptape import "$DATA/tiny.jsonl" -o out/x.tape
) || fail "see above"
[ -z "$(ls -A out)" ] || fail "left behind: $(ls -A out)"
