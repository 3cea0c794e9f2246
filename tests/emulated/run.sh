#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh CPU LEVELS REFUSED FILTER EMULATOR... EXPERTS_TEST: the kernels on another CPU than this
# one. There must be exactly LEVELS (joined by commas), TRIMTAB_ISA=REFUSED must be refused, and the
# tests of FILTER must pass.
set -euo pipefail
export QEMU_CPU=$1
levels=$2 refused=$3 filter=$4
shift 4

# qemu warns of each feature that it doesn't emulate.
found=$("$@" --gtest_list_tests --gtest_filter='LinearTest.EveryCountOfRows/*' 2>/dev/null |
  sed -n 's,^  [^/]*/\([a-z0-9_]*\).*,\1,p' | paste -sd,)
if [ "$found" != "$levels" ]; then
  echo "on $QEMU_CPU there are the levels $found, expected $levels"
  exit 1
fi
if [ "$refused" != none ]; then
  # This test packs for the level in force.
  test=LinearArgumentsTest.RefusesWhatDoesNotFit
  if output=$(TRIMTAB_ISA=$refused "$@" --gtest_filter=$test 2>&1) ||
    ! grep -q "TRIMTAB_ISA=$refused: choose one of .*has ${levels//,/, }" <<<"$output"; then
    echo "TRIMTAB_ISA=$refused is not refused:"
    echo "$output"
    exit 1
  fi
fi
exec "$@" --gtest_brief=1 --gtest_filter="$filter" 2>&1
