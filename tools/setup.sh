# SPDX-License-Identifier: Apache-2.0
# Sourced by quickstart.sh and test.sh: installs what the build needs and is not there yet (Debian
# 12 or 13, Ubuntu 24.04), and knows how to build. Touches the network only when something is
# missing.

step() { printf '\n== %s\n' "$*"; }
fail() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# need PACKAGE CHECK...: remembers the package when the check fails.
missing=()
need() {
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}

has_header() { test -e "/usr/include/$1" || test -e "/usr/local/include/$1"; }
has_python_header() {
  python3 -c 'import os, sysconfig
assert os.path.exists(sysconfig.get_path("include") + "/Python.h")'
}
has_mpi() { command -v mpiexec && { command -v mpicxx || command -v mpic++; }; }
has_browser() { command -v chromium || command -v google-chrome; }
has_compiler() { echo 'int main() {}' | c++ -std=c++20 -x c++ -o /dev/null -; }
has_cmake() {
  cmake --version |
    awk 'NR == 1 { split($3, v, "."); exit !(v[1] > 3 || (v[1] == 3 && v[2] >= 25)) }'
}

# want PACKAGE CHECK...: the same for what can be done without.
wanted=()
want() {
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || wanted+=("$package")
}

# install PACKAGE...: false and a message where it can't.
install() {
  [ $# -gt 0 ] || return 0
  if ! command -v apt-get >/dev/null; then
    echo "please install: $* (only apt-get is known to this script)" >&2
    return 1
  fi
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "please install as root: $*" >&2
      return 1
    fi
    sudo=(sudo)
  fi
  step "installing $*"
  # A machine that has just started may be updating itself: wait for the lock.
  local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive
    apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
  "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "$@" >/dev/null
}

need_for_tests() {
  need libgtest-dev has_header gtest/gtest.h
  need python3 command -v python3
  need python3-dev has_python_header
  need python3-venv python3 -c 'import ensurepip'
  # Any MPI that is there will do.
  want libopenmpi-dev has_mpi
  want openmpi-bin has_mpi
  want iproute2 command -v ip  # tests of several hosts are over namespaces
  # Reports are drawn in it. Ubuntu's is a snap, which containers can't start.
  if grep -q '^ID=debian' /etc/os-release 2>/dev/null; then want chromium has_browser; fi
  if [ "$(uname -m)" != aarch64 ]; then
    want g++-aarch64-linux-gnu command -v aarch64-linux-gnu-g++
    want qemu-user command -v qemu-aarch64
  fi
}

# set_up [test|fuzz]
set_up() {
  need g++ has_compiler
  need cmake has_cmake
  need ninja-build command -v ninja
  need nlohmann-json3-dev has_header nlohmann/json.hpp
  need libcli11-dev has_header CLI/CLI.hpp
  need libfmt-dev has_header fmt/core.h
  need liblzma-dev has_header lzma.h
  want libhwloc-dev has_header hwloc.h
  case "${1:-}" in
    test) need_for_tests ;;
    fuzz)
      need_for_tests
      need clang-19 has_fuzzer
      need libclang-rt-19-dev has_fuzzer
      ;;
  esac
  install "${missing[@]}" || fail "installing ${missing[*]} failed"
  install "${wanted[@]}" || echo "going on without ${wanted[*]}"
}

# The clang that fuzzes: libFuzzer comes with it.
fuzz_compiler=clang++-19
has_fuzzer() { echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, long) { return 0; }' |
  "$fuzz_compiler" -fsanitize=fuzzer,address -x c++ -o /dev/null -; }

# behind COMMAND...: runs it with what other processes leave of the processors. With nice alone,
# tests that wait for each other's messages took five times as long beside a build.
behind() {
  if chrt --idle 0 true 2>/dev/null; then chrt --idle 0 "$@"; else nice "$@"; fi
}

# build PRESET "TARGETS..." [cmake options...]: configures and builds in build/PRESET.
build() {
  local preset=$1 targets
  read -ra targets <<<"$2"
  shift 2
  # With a cache too, a target's files are compiled as one: the first build counts here.
  local options=(-DTRIMTAB_FILE_BY_FILE=OFF)
  if command -v ccache >/dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  cmake --preset "$preset" "${options[@]}" "$@" >/dev/null || fail "configuring $preset failed"
  # Tests of an earlier stage that still run come first.
  behind cmake --build --preset "$preset" --target "${targets[@]}" ||
    fail "building $preset failed"
}

# test_python: prints the Python that the package is built for and tested with: a virtual
# environment in build/venv that also sees the packages of the Python that
# tools/find_torch_python.sh finds.
test_python() {
  local base with_torch=1 venv=$PWD/build/venv
  if ! base=$(tools/find_torch_python.sh 2>/dev/null); then base=python3 with_torch=0; fi
  if [ "$(cat "$venv/base" 2>/dev/null)" != "$base $with_torch" ]; then
    {
      step "making $venv from $base"
      rm -rf "$venv"
      "$base" -m venv "$venv" || return
      if [ "$with_torch" -eq 1 ]; then
        "$base" -c 'import site
for path in site.getsitepackages(): print(f"import site; site.addsitedir({path!r})")' \
          >"$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/base.pth"
      fi
      "$venv/bin/python" -m pip install -q -r python/requirements.txt || return
      echo "$base $with_torch" >"$venv/base"
    } >&2
  fi
  echo "$venv/bin/python"
}
