#!/bin/sh
# Make strace available for the tests of what commands open and whom they call: installed already, or from Debian's
# packages where we may install them. They skip without it, so this never fails.
set -eu
found() { command -v strace; }
if found >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get -qq update && apt-get -qq -y install --no-install-recommends strace >/dev/null || true
    if found >/dev/null; then exit 0; fi
fi
echo "the tests of what commands open and whom they call are skipped without strace: install strace (Debian)" >&2
