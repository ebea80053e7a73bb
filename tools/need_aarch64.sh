#!/bin/sh
# Make the cross compiler for AArch64 available for the test that its kernels compile: installed already, or from
# Debian's packages where we may install them. The test skips without it, so this never fails.
set -eu
found() { command -v aarch64-linux-gnu-g++; }
if found >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get -qq update && apt-get -qq -y install --no-install-recommends g++-aarch64-linux-gnu >/dev/null || true
    if found >/dev/null; then exit 0; fi
fi
echo "the test that AArch64's kernels compile is skipped without g++-aarch64-linux-gnu: install it (Debian)" >&2
