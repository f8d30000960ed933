#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# wheel.sh SOURCE_DIR WORK_DIR: `pip wheel .`, then the wheel in a fresh environment, whose path holds a
# space, with nothing left of the build: everything in it works.  It fetches what a build needs from the
# package index, so it runs when STEPTAPE_TEST_WHEEL is 1, or `cuda` for one with device code (minutes).
set -eu
source=$1 work=$2
option=cmake.define.ST_ENABLE_CUDA=OFF built="built without it"
case ${STEPTAPE_TEST_WHEEL:-} in
1) ;;
cuda) option=cmake.define.CMAKE_CUDA_ARCHITECTURES=90a-real built="[1-9][0-9.]*" ;;
*)
    echo "skipped: STEPTAPE_TEST_WHEEL is not 1 or cuda (it fetches packages from the index)"
    exit 77
    ;;
esac
fail() {
    echo "$*" >&2
    exit 1
}
rm -rf "$work"
mkdir -p "$work/dist"
unset STEPTAPE_LIBRARY PYTHONPATH LD_LIBRARY_PATH
export PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv "$work/a venv"
PATH="$work/a venv/bin:$PATH"
cd "$work"
pip wheel --quiet --no-deps --wheel-dir dist --config-settings="build-dir=$work/build" \
    --config-settings="$option" "$source"
rm -rf build
wheel=$(echo "$work"/dist/steptape-*.whl)
ls -l "$wheel"
pip install --quiet "${wheel}[arrow]" mypy

echo "-- the program"
[ "$(command -v steptape)" = "$work/a venv/bin/steptape" ] || fail "$(command -v steptape)"
steptape --version | grep "CUDA: .*$built" || fail "another CUDA was expected: $built"
steptape doctor --python "$work/a venv/bin/python" >doctor.txt
grep "^plug-in  *ok" doctor.txt || fail "$(cat doctor.txt)"

echo "-- no path of the build"
found=$(python - "$source" "$work" <<'END'
import sys
import zipfile
import pathlib

for path in pathlib.Path("dist").iterdir():
    wheel = zipfile.ZipFile(path)
    for name in wheel.namelist():
        if any(folder.encode() in wheel.read(name) for folder in sys.argv[1:]):
            print(name)
END
)
[ -z "$found" ] || fail "these name the machine that built them: $found"

echo "-- the typed package and its library"
python - "$work" <<'END'
import importlib.metadata
import pathlib
import sys

import steptape

package = pathlib.Path(steptape.__file__).parent
assert str(package).startswith(sys.argv[1]), package
assert importlib.metadata.version("steptape") == steptape.__version__
found = {
    (point.group, point.name): point.load()
    for point in importlib.metadata.distribution("steptape").entry_points
    if point.group != "console_scripts"
}
assert set(found) == {("vllm.general_plugins", "steptape"), ("sglang.srt.plugins", "steptape")}
for register in found.values():
    register()
for name in ("capture", "inject", "kernels"):
    assert (package / f"_native/lib/libsteptape_{name}.so").is_file(), name
END

echo "-- an engine is recorded, and the program reads it"
cp "$source/capture/python/examples/toy_engine.py" .
mypy --strict toy_engine.py
steptape record -o x.tape -- python toy_engine.py
steptape verify x.tape
steptape query x.tape "SELECT count(*) AS steps FROM step"
python -c "import steptape; print(steptape.Tape('x.tape').arrow(tables=True, slots=True).read_all().num_rows, 'rows of Arrow')"

echo "-- the copy for an engine whose Python lacks the package"
python3 -m venv --without-pip engine
steptape record -o y.tape -- engine/bin/python -c "
import importlib.metadata
assert importlib.metadata.version('steptape')
names = [point.name for point in importlib.metadata.distribution('steptape').entry_points]
assert names == ['steptape', 'steptape'], names
open('copied', 'w').close()
" 2>err || [ -e copied ] || fail "$(cat err)"
