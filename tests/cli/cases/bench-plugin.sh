# SPDX-License-Identifier: Apache-2.0
# A Python without numpy is refused by name, with what to do.
. "$SOURCE/tests/cli/lib.sh"
[ -e "$BUILD/capture/libsteptape_capture.so" ] || skip "no library in $BUILD"
printf '#!/bin/sh\nexec python3 -S "$@"\n' >bare # without the packages of a site
chmod +x bare
STEPTAPE_PYTHON="$PWD/bare" refuses 1 'no numpy: install it, or name another Python' \
    steptape bench plugin
