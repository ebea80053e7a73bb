#!/bin/sh
# Collects what run.py needs on a machine without a package index: bench/gpu_check/prepare.sh FOLDER
#
# FOLDER gets wheels of what a machine with torch and transformers still lacks to export, run, serve and compare, without ONNX
# Runtime, which does not fit; TensorRT's headers if this machine has them (TENSORRT_ROOT, or where CMake finds them); and
# bundles: of the example model in float32, in int8 and int4 with float32 and float16, and of a small one with latent attention. A trained model's does
# not fit: name its folder with run.py --trained. Run it where there is an index and h2o-edge is installed (PYTHON), then
# take the checkout and FOLDER along: run.py --wheels FOLDER.
# PYTHON_VERSION, PLATFORM and GLIBC (35 for 2.35) say what the wheels are for, MOST_MIB what checkout and FOLDER may take
# together.
set -eu
folder=$1
repo=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
version=${PYTHON_VERSION:-3.12}
platform=${PLATFORM:-x86_64}
mkdir -p "$folder"

# Of pip's platform names it takes only those that it is given.
platforms=""
for glibc in $(seq "${GLIBC:-35}" -1 5); do platforms="$platforms --platform manylinux_2_${glibc}_$platform"; done
# numpy, safetensors and tokenizers come with torch and transformers.
wanted=$("$python" -c '
from importlib.metadata import requires
for line in requires("h2o-edge"):
    package, _, marker = (part.strip() for part in line.partition(";"))
    needed = not marker or "serve" in marker or "export" in marker
    if needed and not package.startswith(("numpy", "safetensors", "tokenizers", "torch", "transformers")):
        print(package.replace(" ", ""))
')
# shellcheck disable=SC2086 # the lists are meant to fall apart into words
"$python" -m pip download --quiet --disable-pip-version-check --dest "$folder" --only-binary=:all: \
  --python-version "$version" --implementation cp $platforms --platform "manylinux2014_$platform" $wanted
rm -f "$folder"/numpy-*.whl

for root in "${TENSORRT_ROOT:-}" /opt/tensorrt /usr/local/tensorrt /usr; do
  header=$(find "$root/include" -maxdepth 2 -name NvInferRuntime.h 2>/dev/null | head -n 1) || true
  [ -n "$root" ] && [ -n "$header" ] || continue
  mkdir -p "$folder/tensorrt/include"
  cp "$(dirname "$header")"/Nv*.h "$folder/tensorrt/include/"
  break
done
[ -d "$folder/tensorrt" ] || echo "No TensorRT headers were found: set TENSORRT_ROOT. Plugins will not be checked." >&2

export_to() {
  from=$1 name=$2
  shift 2
  "$python" -c 'import h2o_cli.export as e; e.main()' "$from" -o "$folder/$name" "$@" >&2
}
[ -f "$folder/bundle/manifest.json" ] || export_to "$repo/examples/tiny-llama" bundle
for weights in int8 int4; do
  integers="$weights calibrate=none" # it takes minutes, and GPU and CPU are compared by the same integers
  [ -f "$folder/$weights/manifest.json" ] || export_to "$repo/examples/tiny-llama" "$weights" --weights "$integers"
  [ -f "$folder/half-$weights/manifest.json" ] ||
    export_to "$repo/examples/tiny-llama" "half-$weights" --weights "$integers" --dtype float16
done
if [ ! -f "$folder/latent/manifest.json" ]; then
  checkpoint=$(mktemp -d)
  trap 'rm -rf "$checkpoint"' EXIT
  (cd "$repo" && "$python" -m bench.gpu_check.latent_model examples/tiny-llama "$checkpoint") >&2
  export_to "$checkpoint" latent
fi
ls "$folder"

mib=$(( ($(git -C "$repo" ls-files -z | (cd "$repo" && xargs -0 du -cb --) | awk '/total$/ { sum += $1 } END { print sum }') \
  + $(du -sb "$folder" | cut -f1)) / 1048576 ))
echo "The checkout's files and $folder take $mib MiB."
[ "$mib" -le "${MOST_MIB:-64}" ] || { echo "That is more than ${MOST_MIB:-64} MiB." >&2; exit 1; }
