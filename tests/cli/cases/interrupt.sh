# SPDX-License-Identifier: Apache-2.0
# Ctrl-C in the middle of an import: exit 130 (or by the signal), and no file is left behind.
. "$SOURCE/tests/cli/lib.sh"
mkfifo feed
mkdir out
# Background jobs of a shell ignore SIGINT; python3 gives it back before it starts the program.
python3 - <<'END' || fail "see above"
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
p = subprocess.Popen(["steptape", "import", "feed", "-o", "out/x.tape"], stderr=subprocess.PIPE)
with open("feed", "w") as feed:
    text = open(os.environ["DATA"] + "/tiny.jsonl").read().splitlines(True)
    feed.writelines(text[:10])
    feed.flush()
    while p.poll() is None and not os.listdir("out"):  # until it has taken what it was given
        time.sleep(0.01)
    p.send_signal(signal.SIGINT)
    try:
        feed.writelines(text[10:12])
        feed.flush()
        p.wait(5)
    except (BrokenPipeError, subprocess.TimeoutExpired):
        pass
err = p.communicate()[1].decode()
if p.returncode not in (130, -signal.SIGINT):
    sys.exit(f"exit {p.returncode}: {err}")
if os.listdir("out"):
    sys.exit(f"left behind: {os.listdir('out')}")
END
