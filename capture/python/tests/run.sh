#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh pytest|engine|ruff|mypy SOURCE_DIR [ARGUMENT...]: a check of the Python package; 77 when its tool is
# missing.  STEPTAPE_PYTHON, python3 or Debian's python3: the first that has what the check needs.
set -eu
check=$1 source=$2
shift 2
cd "$source"
export PYTHONDONTWRITEBYTECODE=1

# find MODULES: sets python.
find_python() {
    for python in "${STEPTAPE_PYTHON:-}" python3 /usr/bin/python3; do
        if [ -n "$python" ] && "$python" -c "import $1" 2>/dev/null; then
            return
        fi
    done
    echo "skipped: no python3 here has $1 (STEPTAPE_PYTHON names another one)"
    exit 77
}

case $check in
pytest)
    find_python "numpy, pytest"
    exec "$python" -m pytest -q -p no:cacheprovider --ignore=tests/engine tests "$@"
    ;;
engine)
    if [ -z "${STEPTAPE_ENGINE:-}${STEPTAPE_SGLANG:-}" ]; then
        echo "skipped: no STEPTAPE_ENGINE names a Python that has vLLM, no STEPTAPE_SGLANG one that has SGLang"
        exit 77
    fi
    find_python "numpy, pytest"
    exec "$python" -m pytest -q -s -p no:cacheprovider tests/engine "$@"
    ;;
ruff)
    if ! command -v ruff >/dev/null 2>&1; then
        find_python ruff
        ruff() { "$python" -m ruff "$@"; }
    fi
    ruff check --no-cache .
    ruff format --no-cache --check .
    ;;
mypy)
    find_python "numpy, mypy"
    exec "$python" -m mypy --cache-dir=/dev/null steptape examples
    ;;
*)
    echo "run.sh: unknown check $check" >&2
    exit 2
    ;;
esac
