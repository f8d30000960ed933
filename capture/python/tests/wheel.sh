#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# wheel.sh SOURCE_DIR WORK_DIR: `pip install .` into a fresh environment, and everything in it works.
# It fetches what a build needs from the package index, so it runs when STEPTAPE_TEST_WHEEL is 1.
set -eu
source=$1 work=$2
[ "${STEPTAPE_TEST_WHEEL:-}" = 1 ] || {
    echo "skipped: STEPTAPE_TEST_WHEEL is not 1 (it fetches packages from the index)"
    exit 77
}
rm -rf "$work"
mkdir -p "$work"
python3 -m venv "$work/venv"
PATH=$work/venv/bin:$PATH
unset STEPTAPE_LIBRARY PYTHONPATH LD_LIBRARY_PATH
pip install --quiet --disable-pip-version-check "$source" \
    -C cmake.define.ST_ENABLE_CUDA=OFF -C "build-dir=$work/build"
cd "$work"

echo "-- the program"
command -v steptape | grep -q "^$work/venv/bin/"
steptape --version

echo "-- the typed package and its library"
python - "$work" <<'END'
import importlib.metadata
import pathlib
import sys

import steptape

package = pathlib.Path(steptape.__file__).parent
assert str(package).startswith(sys.argv[1]), package
assert (package / "py.typed").is_file()
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
python "$source/capture/python/examples/toy_engine.py" x.tape
steptape verify x.tape
steptape query x.tape "SELECT count(*) AS steps FROM step"

echo "-- the copy for an engine whose Python lacks the package"
python -m venv --without-pip engine
copy=$(python -c "import steptape, pathlib; print(pathlib.Path(steptape.__file__).parent / '_native/share/steptape/python')")
PYTHONPATH="$copy" engine/bin/python -c "
import importlib.metadata
assert importlib.metadata.version('steptape')
names = [point.name for point in importlib.metadata.distribution('steptape').entry_points]
assert names == ['steptape', 'steptape'], names
"
