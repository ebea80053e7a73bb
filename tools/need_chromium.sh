#!/bin/sh
# Make Chromium available for the tests of the server's page: installed already, or from Debian's packages where we
# may install them. They skip without it, so this never fails.
set -eu
found() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
if found >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get -qq update && apt-get -qq -y install --no-install-recommends chromium >/dev/null || true
    if found >/dev/null; then exit 0; fi
fi
echo "the tests of the server's page are skipped without Chromium: install chromium (Debian)" >&2
