#!/usr/bin/env bash
# Shows the state of the slice, what the run said last, and its log as it
# grows (host 0; Ctrl-C ends the look, not the run).
#
# usage: watch.sh SETTINGS [--dry-run]
#
# --dry-run prints the commands and runs none.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$0")/common.sh"
parse "$@"

state=$(tpu_state)
status=$(run_status)
if [[ $dry_run == yes ]]; then
  printf '%s\n' "$state" "$status"
else
  echo "slice: $state; run: ${status:-not started}"
  [[ $state =~ ^(ACTIVE|READY)$ ]] || exit 0
fi
on_hosts 0 'tail -n 20 -F keras_albert.log'
