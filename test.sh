#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and runs every test: the wheel in a fresh environment, C++ and
# Python as they are in that wheel, the tests of many ranks again under the address,
# undefined-behaviour and thread sanitizers, those of models and files under the first two, the
# kernels on emulated CPUs (AArch64, older x86-64), the installed package from a project that uses
# it, and, where torch and transformers are installed, live comparisons with transformers.
#   ./test.sh           everything above
#   ./test.sh --ci      fails where the wheel can't be built because PyPI is out of reach
#   ./test.sh --heavy   leaves out no case under the sanitizers and no check of undefined behaviour,
#                       also fuzzes each reader for a minute (clang), runs the planning commands
#                       under the sanitizers, dispatches 100,000 random batches, and sends more than
#                       2 GiB at once (5 GiB of memory)
set -euo pipefail
cd "$(dirname "$0")"
. tools/setup.sh

heavy=0
ci=0
for argument in "$@"; do
  case "$argument" in
    --heavy) heavy=1 ;;
    --ci) ci=1 ;;
    *) fail "unknown option $argument (there are --heavy and --ci)" ;;
  esac
done

if [ "$heavy" -eq 1 ]; then set_up fuzz; else set_up test; fi

jobs=$(nproc)
# Sanitizers of g++ up to 13 and clang up to 17 fail where addresses are as random as Ubuntu 24.04
# makes them (github.com/google/sanitizers/issues/1716). Containers may forbid to turn that off.
fixed_addresses=()
if setarch -R true 2>/dev/null; then
  fixed_addresses=(setarch -R)
elif [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 0)" -gt 28 ]; then
  echo "if a sanitizer reports an unexpected memory mapping: on the host, as root," \
    "sysctl vm.mmap_rnd_bits=28"
fi

# Many tests wait for messages or for time to pass. They run while the next stage is built, which
# takes what they leave of the processors; finish_tests prints what they said.
running=()
# start_tests NAME COMMAND...: runs the command in the background.
start_tests() {
  local log=build/$1.log
  shift
  "$@" >"$log" 2>&1 &
  running+=("$! $log")
}
# finish_tests: waits for the tests in the background and fails if one of them did.
finish_tests() {
  local test pid log failed=0
  for test in "${running[@]}"; do
    read -r pid log <<<"$test"
    wait "$pid" || failed=1
    cat "$log"
  done
  running=()
  [ "$failed" -eq 0 ] || fail "tests failed"
}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

for sanitizer in asan tsan; do
  step "building under $sanitizer"
  suites=(multirank)
  # Models and files share nothing between threads that layers do not, and all dispatchers exchange
  # rows in the tests of layers too.
  if [ "$sanitizer" = asan ] || [ "$heavy" -eq 1 ]; then suites+=(matrix python model files); fi
  options=()
  if [ "$sanitizer" = asan ] && [ "$heavy" -eq 1 ]; then
    suites+=(planning_commands)
  elif [ "$sanitizer" = asan ]; then
    # Without the checks of every pointer, which AddressSanitizer mostly makes too: with them the
    # compiler takes half as long again.
    behaviour=bool,bounds,builtin,enum,integer-divide-by-zero,return,shift,signed-integer-overflow
    options=(-DTRIMTAB_SANITIZE="address,$behaviour,unreachable")
  fi
  build "$sanitizer" "${suites[*]/#/tests_}" "${options[@]}"
  finish_tests
  step "testing under $sanitizer, while the next stage is built"
  start_tests "$sanitizer" "${fixed_addresses[@]}" ctest --preset "$sanitizer" -j "$jobs" \
    -L "^($(IFS='|'; echo "${suites[*]}"))"
done

if [ "$heavy" -eq 1 ]; then
  step "fuzzing"
  build fuzz fuzzers -DCMAKE_CXX_COMPILER="$fuzz_compiler"
  for source in tests/fuzz/fuzz_*.cc; do
    reader=$(basename "$source" .cc)
    reader=${reader#fuzz_}
    found=build/fuzz/found/$reader
    mkdir -p "$found"
    dictionary=()
    if [ -e "tests/fuzz/$reader.dict" ]; then dictionary=(-dict="tests/fuzz/$reader.dict"); fi
    "${fixed_addresses[@]}" "build/fuzz/tests/fuzz/fuzz_$reader" -max_total_time=60 -timeout=10 \
      -print_final_stats=1 -verbosity=0 -print_funcs=0 -artifact_prefix="$found/crash-" \
      "${dictionary[@]}" "$found" "tests/fuzz/corpus/$reader"
  done
fi

if [ "$(uname -m)" != aarch64 ]; then
  step "building the AArch64 kernels for an emulator"
  if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then
    build aarch64 "experts_test attention_test"
    start_tests aarch64 ctest --preset aarch64 -j "$jobs" \
      -R "^((experts|attention)_on_.*|kernel_codegen)\$"
  else
    echo "no g++-aarch64-linux-gnu and qemu-user: left out"
  fi
fi

step "the wheel, built and installed as a user does"
result=0
behind tests/wheel/run.sh build/wheel || result=$?
finish_tests
if [ "$result" -eq 77 ] && [ "$ci" -eq 0 ]; then
  echo "the wheel and the tests of the Python package are left out:" \
    "they need packages from PyPI (python/requirements.txt)"
elif [ "$result" -ne 0 ]; then
  fail "the wheel does not work"
else
  package_python=$(test_python) || fail "python/requirements.txt can't be installed"
fi

step "building the tests"
# They are linked with the very modules of the wheel.
objects=
if [ "$result" -eq 0 ]; then objects=$PWD/build/wheel/objects; fi
build dev all -DTRIMTAB_OBJECTS="$objects"
finish_tests
step "testing"
start_tests dev ctest --preset dev -j "$jobs"
if [ "$result" -eq 0 ]; then
  step "the Python package, as it is in the wheel ($package_python)"
  export PYTHONPATH=$PWD/build/wheel/package
  # In the foreground: in the background a shell lets processes ignore Ctrl-C.
  "$package_python" -m pytest -q -rs python/tests
fi
if python=$(tools/find_torch_python.sh); then
  step "live comparison with transformers ($python)"
  "$python" -m pytest -q -rs tests/live
else
  echo "the live comparison with transformers is left out"
fi
finish_tests
if [ "$heavy" -eq 1 ]; then
  step "all cases under the sanitizers that were sampled above"
  for sanitizer in asan tsan; do
    TRIMTAB_HEAVY=1 "${fixed_addresses[@]}" ctest --preset "$sanitizer" -R "^(layer|attention)_test"
    # A hundred thousand random scenes are for the build without a sanitizer.
    TRIMTAB_HEAVY=1 "${fixed_addresses[@]}" "build/$sanitizer/src/dispatch/dispatch_matrix_test" \
      --gtest_brief=1 --gtest_filter=-*RandomScenes*
  done
  step "every dispatcher with every type of rows, and 100,000 random batches"
  TRIMTAB_HEAVY=1 timeout 3600 build/dev/src/dispatch/dispatch_matrix_test --gtest_brief=1
  step "more than 2 GiB between two hosts"
  TRIMTAB_HEAVY=1 ctest --preset dev -R "^hosts_long_messages\$"
fi
