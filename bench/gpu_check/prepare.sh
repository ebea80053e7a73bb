#!/bin/sh
# Collects what run.py needs on a machine with a GPU and without a package index: bench/gpu_check/prepare.sh FOLDER
#
# FOLDER gets wheels of what a machine with torch and transformers still lacks to export, run, serve and compare, without ONNX
# Runtime, which does not fit; the kernels' test programs, where nvcc is, with those of the plugins where TensorRT's headers
# are (TENSORRT_ROOT, or where CMake finds them); the commit; and bundles: of the example model in float32, in int8 and int4
# with float32 and float16, and of a small one with latent attention. Run it where there is an index and h2o-edge is installed
# (PYTHON), then take the checkout and FOLDER along.
# PYTHON_VERSION, PLATFORM and GLIBC (35 for 2.35) say what the wheels are for, ARCHITECTURE which GPU, MOST_MIB what
# checkout and FOLDER may take together. h2o-edge itself is one of the wheels if PYTHON has that version; else build it there.
set -eu
folder=$1
repo=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
version=${PYTHON_VERSION:-3.12}
platform=${PLATFORM:-x86_64}
architecture=${ARCHITECTURE:-90}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
git -C "$repo" rev-parse HEAD >"$folder/commit"

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

if command -v nvcc >/dev/null; then
  build="$repo/build/gpu_check"
  # Programs and libraries lie in one folder there.
  cmake -S "$repo" -B "$build" -DH2O_CUDA=ON -DH2O_CUDA_TESTS=ON -DH2O_TENSORRT=OFF -DH2O_CUDA_ARCHITECTURES="$architecture-real" \
    -DCMAKE_BUILD_RPATH='$ORIGIN' -DPython_EXECUTABLE="$(command -v "$python")" >&2
  cmake --build "$build" --target h2o_cuda_test --parallel >&2
  cp "$build"/plugins/kernels/cuda/libh2o_cuda.so "$build"/plugins/kernels/cuda/tests/h2o_cuda_test "$folder"
  if cmake "$build" -DH2O_TENSORRT=ON >&2 && cmake --build "$build" --target h2o_trt_plugins h2o_trt_conformance --parallel >&2
  then cp "$build"/plugins/tensorrt/h2o_trt_conformance "$build"/plugins/tensorrt/libh2o_trt_plugins.so "$folder"
  else echo "TensorRT's headers were not found: set TENSORRT_ROOT. Plugins will not be checked." >&2
  fi
  if "$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')"; then
    "$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$repo" -C cmake.define.H2O_CUDA=ON \
      -C "cmake.define.H2O_CUDA_ARCHITECTURES=$architecture-real"
  fi
fi

export_to() {
  from=$1 name=$2
  shift 2
  "$python" -m h2o_cli.export "$from" -o "$folder/$name" "$@" >&2
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
