#!/usr/bin/env bash
# Installs this checkout's last commit on every host of the slice, and starts
# the training on every host. It goes on by itself; see watch.sh.
#
# usage: run.sh SETTINGS [--dry-run]
#
# The same again after the slice was preempted and created anew: the run goes
# on from the checkpoints in `output`. Refused while a training runs there.
# --dry-run prints the commands and runs none.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$0")/common.sh"
parse "$@"
repository=$(cd "$(dirname "$0")/.." && pwd)
archive=$repository/build/keras_albert.tar.gz

run mkdir -p "$repository/build"
run git -C "$repository" archive --format=tar.gz "--output=$archive" HEAD
run gcloud compute tpus tpu-vm scp "$archive" "$name:keras_albert.tar.gz" \
  "--zone=$zone" "--project=$project" --quiet --worker=all
# The lock is worker.sh's, and held while a training runs.
on_hosts all "flock --nonblock .keras_albert.lock true ||\
 { echo 'error: a training runs on this host' >&2; exit 3; };\
 rm -rf keras_albert && mkdir keras_albert &&\
 tar -xzf keras_albert.tar.gz -C keras_albert &&\
 bash keras_albert/tpu/worker.sh install $route"
# Before the start, so that the status of an earlier start is not taken for that
# of this one.
if [[ $dry_run == yes ]]; then
  echo "echo running | gcloud storage cp - $output/status"
else
  echo running | gcloud storage cp - "$output/status"
fi
on_hosts all "ROUTE=$route DATA=$data VALIDATION=$validation OUTPUT=$output\
 bash keras_albert/tpu/worker.sh start $([[ ${#train[@]} == 0 ]] || printf '%q ' "${train[@]}")"
