#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh RANKS PROGRAM [ARGUMENTS...]: a program on that many processes of this host, for the tests.
# Exit status 77, which ctest takes for "skipped", where there is no mpiexec. More ranks than cores
# are meant: the ranks must not spin. MPIEXEC is that of the MPI which the program was built with,
# if it is not `mpiexec`.
ranks=$1
shift
mpiexec=${MPIEXEC:-mpiexec}
command -v "$mpiexec" >/dev/null || { echo "skipped: there is no $mpiexec"; exit 77; }
options=()
if "$mpiexec" --version 2>/dev/null | grep -q "Open MPI\|OpenRTE"; then
  options=(--oversubscribe --bind-to none --mca mpi_yield_when_idle 1
    --mca btl_base_warn_component_unused 0)
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
exec "$mpiexec" "${options[@]}" -n "$ranks" "$@"
