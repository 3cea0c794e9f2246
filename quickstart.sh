#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh machine to a real mixture-of-experts model decoding on four ranks. Options go to
# `trimtab run`, in place of those below.
set -euo pipefail
cd "$(dirname "$0")"
. tools/setup.sh

set_up
step "building (Release)"
build release all
if ldd build/release/cli/trimtab | grep -q libmpi; then
  echo "built with MPI: mpiexec -n 4 build/release/cli/trimtab run ... makes each process a rank"
else
  echo "built without MPI, as none is installed (Debian: libopenmpi-dev openmpi-bin):" \
    "ranks are threads"
fi
[ $# -gt 0 ] || set -- --ranks 4 --steps 160 --temperature 0.7
step "build/release/cli/trimtab run models/tiny-moe $*"
exec build/release/cli/trimtab run models/tiny-moe "$@"
