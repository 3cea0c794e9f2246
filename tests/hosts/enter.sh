#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# enter.sh HOST COMMAND...: runs a command on one of the hosts of run.sh, as ssh would.
host=$1
shift
exec nsenter -t "$(cat "$TRIMTAB_HOSTS/$host")" --net --uts --ipc --mount --wd="$PWD" sh -c "$*"
