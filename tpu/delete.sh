#!/usr/bin/env bash
# Deletes the slice: nothing is paid for it from then on. The run's checkpoints
# stay in `output`.
#
# usage: delete.sh SETTINGS [--dry-run]
#
# --dry-run prints the command and runs none.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$0")/common.sh"
parse "$@"

if [[ $request == queued ]]; then
  # --force: with the TPU VM that it holds.
  tpu_command queued-resources delete --force
else
  tpu_command tpu-vm delete
fi
