#!/bin/sh
# Make what tests need available: installed already, or from Debian's packages where we may install them.
#
#     tools/need.sh ccache gtest chromium strace aarch64
#
# Fails without GoogleTest alone: without the others tests are skipped, or builds take longer.
set -eu

found() {
    case $1 in
        gtest) [ -f /usr/include/gtest/gtest.h ] || [ -n "${GTest_ROOT:-}" ] || pkg-config --exists gtest 2>/dev/null ;;
        chromium)
            command -v chromium-headless-shell || command -v chromium || command -v chromium-browser ||
                command -v google-chrome
            ;;
        aarch64) command -v aarch64-linux-gnu-g++ ;;
        *) command -v "$1" ;;
    esac >/dev/null
}

package() {
    case $1 in
        gtest) echo libgtest-dev ;;
        aarch64) echo g++-aarch64-linux-gnu ;;
        chromium) echo chromium-headless-shell ;;
        *) echo "$1" ;;
    esac
}

complain() {
    case $1 in
        ccache) return 0 ;;
        gtest)
            echo "GoogleTest is needed for the C++ tests: install libgtest-dev (Debian, Ubuntu) or set GTest_ROOT"
            failed=1
            return 0
            ;;
        chromium) tests="the tests of the server's page" ;;
        strace) tests="the tests of what commands open and whom they call" ;;
        aarch64) tests="the tests that AArch64's kernels compile" ;;
    esac
    echo "$tests are skipped without $1: install $(package "$1") (Debian)"
}

missing=
for name; do
    found "$name" || missing="$missing $(package "$name")"
done
if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get -qq update >/dev/null || true
    for one in $missing; do # a system may lack one of them
        apt-get -qq -y install --no-install-recommends "$one" >/dev/null || true
    done
fi
failed=0
for name; do
    found "$name" || complain "$name" >&2
done
exit $failed
