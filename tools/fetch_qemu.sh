#!/bin/sh
# Fetch qemu-aarch64 of Debian 13 into build/qemu, for Debian 12, whose own is too early for ONNX Runtime. Nothing is
# installed.
set -eu
mkdir -p build/qemu/lists/partial
cd build/qemu
sed 's/bookworm/trixie/g' /etc/apt/sources.list.d/debian.sources > trixie.sources
debian13() {
    apt-get -q -o Dir::Etc::SourceList="$PWD/trixie.sources" -o Dir::Etc::SourceParts=- -o Dir::State::Lists="$PWD/lists" "$@"
}
debian13 update
debian13 download qemu-user
dpkg -x qemu-user_*.deb .
echo "QEMU=$PWD/usr/bin/qemu-aarch64 make wheel-smoke"
