#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh HOSTS RANKS RATE PROGRAM [ARGUMENTS...]: a program under Open MPI's mpiexec on several
# hosts, RANKS processes on each, on this machine alone. A host is a process in network, host name,
# IPC and mount namespaces of its own, with a /dev/shm of its own, on a virtual switch; RATE is what
# its link carries (such as 4gbit), or "full". All of it goes when the script ends. Exit status 77,
# "skipped" for ctest, where this is not allowed or there is no Open MPI.
set -euo pipefail
hosts=$1 ranks=$2 rate=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)

skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" -eq 0 ] || skip "namespaces need root"
for tool in ip tc unshare nsenter mpiexec; do
  command -v "$tool" >/dev/null || skip "there is no $tool"
done
mpiexec --version 2>/dev/null | grep -q "Open MPI\|OpenRTE" || skip "mpiexec is not Open MPI's"

work=$(mktemp -d)
pids=()
clean_up() {
  if [ ${#pids[@]} -gt 0 ]; then kill "${pids[@]}" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap clean_up EXIT

# new_namespaces NAME UNSHARE-OPTIONS...: a process that keeps them, its id in the file NAME; it
# says when it is ready.
new_namespaces() {
  local name=$1
  shift
  unshare "$@" sh -c 'hostname "$1" 2>/dev/null
    { [ "$1" = switch ] ||
      { mount --make-rprivate / && mount -t tmpfs -o mode=1777 tmpfs /dev/shm; }; } &&
    ip link set lo up && touch "$2/$1.ready" && exec sleep 100000' - \
    "$name" "$work" >"$work/$name.log" 2>&1 &
  pids+=($!)
  echo $! >"$work/$name"
  for ((i = 0; i < 100; ++i)); do
    [ -e "$work/$name.ready" ] && return 0
    kill -0 "${pids[-1]}" 2>/dev/null || break
    sleep 0.1
  done
  skip "namespaces are refused: $(cat "$work/$name.log")"
}
in_net() { nsenter -t "$(cat "$work/$1")" -n "${@:2}"; }

new_namespaces switch --net --uts
in_net switch ip link add bridge type bridge 2>"$work/log" ||
  skip "bridges are refused: $(cat "$work/log")"
in_net switch ip link set bridge up
list=
for ((h = 0; h < hosts; ++h)); do
  name=host$h
  new_namespaces "$name" --net --uts --ipc --mount
  in_net switch ip link add "$name" type veth peer name eth0 netns "$(cat "$work/$name")" ||
    skip "virtual links are refused"
  in_net switch ip link set "$name" master bridge up
  in_net "$name" ip address add "10.77.0.$((h + 1))/24" dev eth0
  in_net "$name" ip link set eth0 up
  if [ "$rate" != full ]; then
    in_net "$name" tc qdisc add dev eth0 root tbf rate "$rate" burst 1mb latency 50ms ||
      skip "tc tbf is refused"
  fi
  list+=${list:+,}$name:$ranks
done

export TRIMTAB_HOSTS=$work OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
passed=()
for name in "${!TRIMTAB_@}"; do passed+=(-x "$name"); done
"$here/enter.sh" host0 mpiexec --host "$list" --map-by "ppr:$ranks:node" --oversubscribe \
  --bind-to none --mca plm_rsh_agent "$here/enter.sh" --mca plm_rsh_no_tree_spawn 1 \
  --mca btl tcp,self,vader --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 \
  --mca mpi_yield_when_idle 1 "${passed[@]}" "$@"
