#!/usr/bin/env bash
# What runs on each host of a slice: TPU VM, or pod of gke-jobset.yaml.
#
# usage: worker.sh install jax|tf   makes ~/keras_albert_venv_jax or _tf (on a VM)
#        worker.sh start OPTION...  trains, detached; adds to ~/keras_albert.log
#        worker.sh train OPTION...  trains; host 0 writes OUTPUT/status at the end
#        worker.sh --help | --dry-run train OPTION...
#
# OPTIONs are those of `keras-albert pretrain` but for --data, --validation and
# --output. From the environment: ROUTE (jax or tf), DATA, VALIDATION (may be
# empty), OUTPUT (gs:// folders), PUSH_EVERY (seconds between two uploads, 120).
#
# The run is in a local folder. OUTPUT is the truth: the folder is made anew
# from it at the start, and host 0 uploads what is complete. A checkpoint's
# manifest.json is uploaded last; without it there is no checkpoint.
# --dry-run prints the commands of a run, and runs none.
set -euo pipefail
work=$HOME/keras_albert_work # the same each time: run.json keeps data's path
run=$work/run
export KERAS_BACKEND

die() {
  echo "error: $*" >&2
  exit 2
}

main() {
  local dry_run=no
  if [[ ${1:-} == --dry-run ]]; then
    dry_run=yes
    shift
    [[ ${1:-} == train ]] ||
      die "--dry-run is for train. Received: '--dry-run ${1:-}'."
  fi
  case ${1:-} in
    install) install_route "${@:2}" ;;
    start)
      # What ended an earlier start stays in the log.
      echo "== $(date -u +%FT%TZ) start" >>~/keras_albert.log
      setsid nohup bash "$0" train "${@:2}" >>~/keras_albert.log 2>&1 \
        </dev/null &
      ;;
    train)
      check_environment
      if [[ $dry_run == yes ]]; then
        print_run "${@:2}"
      else
        train "${@:2}"
      fi
      ;;
    --help | -h) sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p;}' "$0" ;;
    *) die "expected install, start, train or --help. Received:" \
      "'${1:-}'. See worker.sh --help." ;;
  esac
}

install_route() {
  local folder
  folder=$(cd "$(dirname "$0")" && pwd)
  [[ ${1:-} =~ ^(jax|tf)$ ]] ||
    die "expected install jax or install tf. Received: 'install ${1:-}'."
  # Both routes in one environment would break each other's libraries.
  local venv=$HOME/keras_albert_venv_$1
  # The images have Python 3.10; uv brings 3.11.
  python3 -m pip install --quiet --user uv
  [[ -d $venv ]] || python3 -m uv venv --quiet --python 3.11 "$venv"
  VIRTUAL_ENV=$venv python3 -m uv pip install --quiet \
    --requirement "$folder/requirements-$1.txt"
  VIRTUAL_ENV=$venv python3 -m uv pip install --quiet --no-deps \
    --reinstall "$folder/.."
}

check_environment() {
  local each
  for each in ROUTE DATA OUTPUT; do
    [[ -n ${!each:-} ]] || die "$each is not set. Give it in the" \
      "environment; see worker.sh --help."
  done
  case $ROUTE in
    jax) KERAS_BACKEND=jax ;;
    tf) KERAS_BACKEND=tensorflow ;;
    *) die "ROUTE must be jax or tf. Received: '$ROUTE'." ;;
  esac
  # On a pod the image has the package already.
  local venv=$HOME/keras_albert_venv_$ROUTE
  [[ ! -d $venv ]] || PATH=$venv/bin:$PATH
}

command_line() {
  pretrain=(keras-albert pretrain --data "$work/data" --output "$run")
  [[ -z ${VALIDATION:-} ]] || pretrain+=(--validation "$work/validation")
  pretrain+=("$@")
}

print_run() {
  command_line "$@"
  echo "gcloud storage rsync $DATA $work/data --recursive"
  [[ -z ${VALIDATION:-} ]] ||
    echo "gcloud storage rsync $VALIDATION $work/validation --recursive"
  echo "gcloud storage rsync $OUTPUT $run"
  printf '%q ' "${pretrain[@]}" | sed 's/ $/\n/'
  echo "gcloud storage rsync $run $OUTPUT"
}

train() {
  local worker pusher stopped=no status=0
  # Held until the end, by what it starts, too: run.sh and babysit.sh ask
  # whether it is free.
  exec 9>"$HOME/.keras_albert.lock"
  flock --nonblock 9 || die "a training runs on this host already. Wait for" \
    "it, or end it with kill."
  if ! worker=$(worker_number) || [[ ! $worker =~ ^[0-9]+$ ]]; then
    echo "error: the number of this host is unknown (TPU_WORKER_ID, or the" \
      "metadata server). Host 0 must be known, as it uploads the run." >&2
    exit 1 # 2 is for mistakes alone
  fi
  # Whatever ends it, host 0 writes a status: babysit.sh waits for that.
  final_status=
  [[ $worker != 0 ]] || trap 'write_status "${final_status:-stopped $?}"' EXIT
  trap 'exit 143' TERM INT
  [[ $ROUTE == jax ]] || prepare_tensorflow
  pull
  command_line "$@"
  "${pretrain[@]}" &
  child=$!
  # SIGTERM, before a preemption: every host saves at the same step and ends.
  trap 'stopped=yes; kill -TERM "$child" 2>/dev/null || true' TERM INT
  rm -f "$work/ended"
  if [[ $worker == 0 ]]; then
    push_now_and_then &
    pusher=$!
  fi
  while true; do # a signal ends the wait, not the child
    status=0
    wait "$child" || status=$?
    kill -0 "$child" 2>/dev/null || break
  done
  if [[ $worker == 0 ]]; then
    touch "$work/ended"
    wait "$pusher" || true # not two uploads at once
    if ! push && ! push; then
      echo "error: the last upload to $OUTPUT failed" >&2
      exit "$((status == 0 ? 1 : status))" # 2 is for mistakes alone
    fi
    final_status="stopped $status"
    [[ ! -f $run/report.json ]] || final_status=finished
    # A run that was asked to stop ends with 0, but there is more to do.
    [[ $final_status == finished || $status != 0 ]] || status=143
  fi
  [[ $stopped == no || $status != 0 ]] || status=143
  exit "$status"
}

write_status() {
  echo "$1" | gcloud storage cp - "$OUTPUT/status" ||
    echo "warning: '$1' could not be written to $OUTPUT/status" >&2
}

# GKE sets the variable; a TPU VM's metadata have the number.
worker_number() {
  if [[ -n ${TPU_WORKER_ID:-} ]]; then
    echo "$TPU_WORKER_ID"
  else
    curl --silent --fail --retry 5 \
      --header 'Metadata-Flavor: Google' http://metadata.google.internal/\
computeMetadata/v1/instance/attributes/agent-worker-number
  fi
}

# What a TensorFlow outside its image needs to find the TPU, as in the published
# examples of TPUStrategy with Keras 3 (keras.io, keras_rs); nothing of it was
# run on a TPU. TensorFlow 2.19.1 knows these flags; without them it chooses the
# bridge for each graph itself. Those examples also give TPUStrategy a
# DeviceAssignment; without one each core is a replica, which is wanted here.
prepare_tensorflow() {
  export PJRT_DEVICE=TPU NEXT_PLUGGABLE_DEVICE_USE_C_API=true
  TF_PLUGGABLE_DEVICE_LIBRARY_PATH=$(python -c \
    'import libtpu; print(libtpu.get_library_path())')
  export TF_PLUGGABLE_DEVICE_LIBRARY_PATH
  local flags=(
    --tf_mlir_enable_mlir_bridge=true
    --tf_mlir_enable_convert_control_to_data_outputs_pass=true
    --tf_mlir_enable_merge_control_flow_pass=true
  )
  export TF_XLA_FLAGS="${flags[*]}${TF_XLA_FLAGS:+ $TF_XLA_FLAGS}"
}

copy_folder() {
  mkdir -p "$2"
  gcloud storage rsync "$1" "$2" --recursive
}

# Makes the run's folder from OUTPUT.
pull() {
  local listing steps step newest kept
  copy_folder "$DATA" "$work/data"
  [[ -z ${VALIDATION:-} ]] || copy_folder "$VALIDATION" "$work/validation"
  # OUTPUT then exists: a listing that fails is an error, not an empty folder.
  echo started | gcloud storage cp - "$OUTPUT/started"
  listing=$(gcloud storage ls "$OUTPUT/**")
  # Only now, as OUTPUT can be read. After failed uploads this folder may have a
  # checkpoint of which there is no copy.
  newest=$(printf '%s\n' "$run"/checkpoints/*/manifest.json |
    steps_in /manifest.json | sed -n 1p)
  steps=$(steps_in /manifest.json <<<"$listing")
  # The names sort as their steps do: all have 8 digits, up to step 99,999,999.
  if [[ -n $newest && $newest > ${steps%%$'\n'*} ]]; then
    kept=$run-$newest
    rm -rf "$kept"
    mv "$run" "$kept"
    echo "warning: $OUTPUT does not have $newest, which an earlier start has" \
      "left here. It is kept in $kept" >&2
  fi
  rm -rf "$run"
  mkdir -p "$run"
  gcloud storage rsync --exclude='^(started|status)$' "$OUTPUT" "$run"
  for step in $steps; do
    copy_folder "$OUTPUT/checkpoints/$step" "$run/checkpoints/$step"
  done
}

# steps_in PATTERN: of a list of paths the names of the checkpoints, newest
# first, that have such a path.
steps_in() {
  sed -nE "s#^.*/checkpoints/(step-[0-9]{8,})$1\$#\1#p" | sort -uVr
}

push_now_and_then() {
  local next=$((SECONDS + ${PUSH_EVERY:-120}))
  # Where this script was killed, it ends with the training.
  while [[ ! -e $work/ended ]] && kill -0 "$child" 2>/dev/null; do
    sleep 0.5
    if ((SECONDS >= next)); then
      push || echo "warning: an upload to $OUTPUT failed; it is tried again" >&2
      next=$((SECONDS + ${PUSH_EVERY:-120}))
    fi
  done
}

# Uploads what is complete. Called where `set -e` does not act: && and ||.
push() {
  local steps step listing
  [[ -d $run ]] || return 0 # nothing was kept
  # First: the log that is uploaded has a row for each of these.
  steps=$(printf '%s\n' "$run"/checkpoints/* | steps_in '') || return 1
  gcloud storage rsync "$run" "$OUTPUT" \
    --exclude='^(\.lock|report\.json|unfinished-.*)$' || return 1
  [[ ! -d $run/tensorboard ]] ||
    gcloud storage rsync "$run/tensorboard" "$OUTPUT/tensorboard" \
      --recursive || return 1
  for step in $steps; do
    { gcloud storage rsync "$run/checkpoints/$step/state" \
      "$OUTPUT/checkpoints/$step/state" --recursive &&
      gcloud storage rsync "$run/checkpoints/$step" \
        "$OUTPUT/checkpoints/$step"; } || return 1
  done
  # Those that the run no longer keeps: manifest first.
  listing=$(gcloud storage ls "$OUTPUT/**") || return 1
  steps=$(steps_in '/.*' <<<"$listing") || return 1
  for step in $steps; do
    [[ -d $run/checkpoints/$step ]] ||
      drop "$OUTPUT/checkpoints/$step" || return 1
  done
  [[ ! -f $run/report.json ]] ||
    gcloud storage cp "$run/report.json" "$OUTPUT/report.json"
}

drop() {
  gcloud storage rm "$1/manifest.json" || true # perhaps it was the last time
  gcloud storage rm "$1" --recursive
}

main "$@"
