#!/usr/bin/env bash
# Fetches NVRTC, the run-time compiler of CUDA, into target/nvrtc/ so that the kernels can be compiled without a GPU.
# The version is pinned and its checksum is verified. Without a network it says so, and the test that needs it skips.
set -eu
cd "$(dirname "$0")/.."

version="13.5.37"
case "$(uname -s)-$(uname -m)" in
  Linux-x86_64)
    file="nvidia_cuda_nvrtc-$version-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl"
    folder="a9/54/db4e7f650746265f61c05cf1f8f556dd8c6739b58c823fbc9a7d6fda3247"
    sum="86b4d68058807988b7d9af5b44917a0601e9c337f35ccd657bfb3c759ff8d8bc" ;;
  Linux-aarch64)
    file="nvidia_cuda_nvrtc-$version-py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64.whl"
    folder="4e/9f/e8321dfd9dcd923c864213fed3da815da474800ead891a99b6322bdd2039"
    sum="36e4fa2a8ada293f5693d308e531c196ab6f91cf7a0ff479bf96a537d43a6096" ;;
  *) echo "skip: no NVRTC for this system"; exit 0 ;;
esac

into="${CARGO_TARGET_DIR:-target}/nvrtc"
library="$into/nvidia/cu13/lib/libnvrtc.so.13"
if [ -f "$library" ]; then echo "NVRTC $version is in $into"; exit 0; fi
if ! command -v curl >/dev/null 2>&1 || ! command -v python3 >/dev/null 2>&1; then
  echo "skip: fetching NVRTC needs curl and python3"; exit 0
fi

# Fetched and unpacked beside the goal and moved at the end: a broken run leaves nothing that looks complete.
mkdir -p "$into.part"
trap 'rm -rf "$into.part"' EXIT
if ! curl -fsSL --retry 2 --connect-timeout 20 -o "$into.part/nvrtc.whl" \
     "https://files.pythonhosted.org/packages/$folder/$file" 2>/dev/null; then
  echo "skip: NVRTC $version could not be fetched"; exit 0
fi
if ! echo "$sum  $into.part/nvrtc.whl" | sha256sum -c --status; then
  echo "error: the checksum of $file is wrong" >&2; exit 1
fi
python3 -m zipfile -e "$into.part/nvrtc.whl" "$into.part/tree"
rm -rf "$into"
mv "$into.part/tree" "$into"
echo "NVRTC $version is in $into"
