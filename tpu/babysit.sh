#!/usr/bin/env bash
# Brings a run to its end: creates the slice, starts the run, does both again
# after a preemption, starts it again where it stopped, and deletes the slice
# when the run is finished.
#
# usage: babysit.sh SETTINGS [--dry-run]
#
# Ends with 0 when the run is finished; with 1 after `attempts` failures and
# preemptions, and with 2 when the run says that it was given a mistake: both
# leave what there is of the slice, which is paid for until delete.sh. After a
# failure it waits `pause` seconds, doubled each time up to 16 x `pause`. It may
# be stopped and started again at any time. --dry-run prints the commands of a
# run that nothing disturbs, and runs none.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$here/common.sh"
parse "$@"

if [[ $dry_run == yes ]]; then
  tpu_state
  "$here/create.sh" "$settings" --dry-run
  "$here/run.sh" "$settings" --dry-run
  run_status
  host_activity
  "$here/delete.sh" "$settings" --dry-run
  exit
fi

# yes: the slice was just created, so that OUTPUT/status is that of a run on an
# earlier slice, and the run has to be started.
is_new=no
has_started=no failures=0

say() {
  echo "$(date -u +%FT%TZ) $*"
}

# back_off WHY: waits, longer each time; gives up in the end.
back_off() {
  local seconds=$((pause * (1 << (failures < 4 ? failures : 4))))
  failures=$((failures + 1))
  if ((failures >= attempts)); then
    say "error: $1, failure $failures of at most $attempts ('attempts' in" \
      "$settings). Read the log (watch.sh); then babysit.sh again, or" \
      "delete.sh." >&2
    exit 1
  fi
  say "$1; the next attempt in $seconds s"
  sleep "$seconds"
}

create() {
  say "creating $type"
  is_new=yes
  "$here/create.sh" "$settings" || back_off "creating $name failed"
}

start() {
  say "starting the run"
  if "$here/run.sh" "$settings"; then
    is_new=no has_started=yes
    sleep "$pause" # worker.sh needs a moment until it can be seen
  else
    back_off "starting the run failed"
  fi
}

delete() {
  say "the slice is $state: deleting it"
  if ! "$here/delete.sh" "$settings"; then
    back_off "deleting $name failed"
  else
    back_off "the slice was $state"
  fi
}

# Whether host 0 answers that nothing runs there.
is_idle() {
  local answer
  if ! answer=$(host_activity); then
    say "host 0 of $name does not answer; it is asked again" >&2
    return 1
  fi
  grep --quiet --line-regexp idle <<<"$answer"
}

# The slice is there: is the run?
look_after_run() {
  if [[ $is_new == no && ${status:-running} == running ]]; then
    if ! is_idle; then
      sleep "$pause"
      return
    fi
    # Killed, or its host was, before it could write its status? It writes it
    # before it is idle.
    status=$(run_status)
    [[ $status != finished ]] || return 0
    [[ $status != running ]] || status="ended without a status"
  fi
  if [[ $is_new == no && $has_started == yes ]]; then
    if [[ $status == "stopped 2" ]]; then
      say "error: the run was given a mistake, which its log names" \
        "(watch.sh). Correct $settings, then babysit.sh again; or" \
        "delete.sh." >&2
      exit 2
    fi
    back_off "the run has ${status:-no status}"
  fi
  start
}

while true; do
  state=$(tpu_state)
  status=$(run_status)
  if [[ $status == finished ]]; then
    say "the run is finished"
    [[ $state != ABSENT ]] || exit 0
    "$here/delete.sh" "$settings" && exit 0
    back_off "deleting $name failed" # it costs money until it is gone
    continue
  fi
  case $state in
    ABSENT) create ;;
    ACTIVE | READY) look_after_run ;;
    SUSPENDED | FAILED | PREEMPTED | TERMINATED | STOPPED) delete ;;
    *) sleep "$pause" ;; # waiting, provisioning, being deleted, unknown
  esac
done
