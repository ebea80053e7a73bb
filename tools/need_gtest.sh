#!/bin/sh
# Make GoogleTest available: installed already, or from Debian's packages where we may install them.
set -eu
found() { [ -f /usr/include/gtest/gtest.h ] || [ -n "${GTest_ROOT:-}" ] || pkg-config --exists gtest 2>/dev/null; }
if found; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get -qq update && apt-get -qq -y install libgtest-dev >/dev/null && found && exit 0
fi
echo "GoogleTest is needed for the C++ tests: install libgtest-dev (Debian, Ubuntu) or set GTest_ROOT" >&2
exit 1
