#!/bin/sh
# Collects what run.py needs on a machine without a package index: bench/gpu_check/prepare.sh FOLDER
#
# FOLDER gets wheels of what the runtime imports, TensorRT's headers if this machine has them (TENSORRT_ROOT, or
# where CMake finds them), and the example model as a bundle. Run it where there is an index, then take the checkout
# and FOLDER along: run.py --wheels FOLDER. PYTHON_VERSION and PLATFORM say what the wheels are for.
set -eu
folder=$1
repo=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
version=${PYTHON_VERSION:-3.12}
platform=${PLATFORM:-x86_64}
mkdir -p "$folder"

# Of pip's platform names it takes only those that it is given.
platforms=""
for glibc in 2_28 2_27 2_26 2_24 2_17 2_12 2_5; do platforms="$platforms --platform manylinux_${glibc}_$platform"; done
# shellcheck disable=SC2086 # the list is meant to fall apart into words
"$python" -m pip download --quiet --disable-pip-version-check --dest "$folder" --only-binary=:all: \
  --python-version "$version" --implementation cp $platforms --platform "manylinux2014_$platform" \
  click jinja2 'numpy>=1.23' 'pydantic>=2.6' rich tokenizers 'onnx>=1.17'
# tokenizers would bring clients of a model hub: nothing here asks one.
rm -f "$folder"/huggingface_hub-* "$folder"/hf_xet-*

for root in "${TENSORRT_ROOT:-}" /opt/tensorrt /usr/local/tensorrt /usr; do
  header=$(find "$root/include" -maxdepth 2 -name NvInferRuntime.h 2>/dev/null | head -n 1) || true
  [ -n "$root" ] && [ -n "$header" ] || continue
  mkdir -p "$folder/tensorrt/include"
  cp "$(dirname "$header")"/Nv*.h "$folder/tensorrt/include/"
  break
done
[ -d "$folder/tensorrt" ] || echo "No TensorRT headers were found: set TENSORRT_ROOT. Plugins will not be checked." >&2

[ -f "$folder/bundle/manifest.json" ] ||
  "$python" -c 'import h2o_cli.export as e; e.main()' "$repo/examples/tiny-llama" -o "$folder/bundle" >&2
ls "$folder"
