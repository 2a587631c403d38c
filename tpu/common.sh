# Options, settings and checks of the scripts beside it, which source it.
# shellcheck shell=bash

die() {
  echo "error: $*" >&2
  exit 2
}

# The comment at the head of a script is its help.
show_help() {
  sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p;}' "$0"
}

# parse SETTINGS [--dry-run] [--help]: sets `dry_run` and reads the settings.
parse() {
  dry_run=no settings=
  while (($#)); do
    case $1 in
      --help | -h) show_help && exit 0 ;;
      --dry-run) dry_run=yes ;;
      -*) die "unknown option $1. Expected --dry-run or --help." ;;
      *)
        [[ -z $settings ]] || die "one settings file expected. Received:" \
          "$settings, $1. Run the script once for each."
        settings=$1
        ;;
    esac
    shift
  done
  [[ -n $settings ]] || die "no settings file given. Copy tpu/example.env," \
    "fill it in, and give the copy: $0 my-run.env"
  [[ -f $settings ]] || die "$settings: no such file. Copy tpu/example.env" \
    "and fill it in."
  # Nothing comes from the environment by accident.
  name='' project='' zone='' type='' tier=spot request=queued route=jax
  # shellcheck disable=SC2034 # not every script needs all of them
  runtime='' data='' validation='' output='' train=() attempts=20 pause=60
  # shellcheck source=/dev/null
  source "$settings"
  [[ $dry_run == yes ]] || command -v gcloud >/dev/null ||
    die "gcloud is not installed, or not in PATH. See tpu/README.md."
  check_settings
}

# wrong NAME EXPECTED: a setting that does not fit.
wrong() {
  die "$settings: '$1' must be $2. Received: '${!1}'. Change it there."
}

check_settings() {
  local each
  for each in name project zone type data output; do
    [[ -n ${!each} ]] || die "$settings: '$each' is not set. Add a line" \
      "$each=..., as in tpu/example.env."
  done
  [[ $name =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] ||
    wrong name "lower-case letters, digits and hyphens"
  [[ $type =~ ^(v2|v3|v4|v5litepod|v5p|v6e)-[1-9][0-9]*$ ]] ||
    wrong type "an accelerator type such as v5litepod-16 or v6e-8"
  [[ $tier =~ ^(spot|on-demand)$ ]] || wrong tier "spot or on-demand"
  [[ $request =~ ^(queued|direct)$ ]] || wrong request "queued or direct"
  [[ $route =~ ^(jax|tf)$ ]] || wrong route "jax or tf"
  [[ $attempts =~ ^[1-9][0-9]*$ ]] || wrong attempts "a positive integer"
  [[ $pause =~ ^[0-9]+$ ]] || wrong pause "seconds, an integer"
  for each in data validation output; do
    [[ $each == validation && -z $validation ]] ||
      [[ ${!each} =~ ^gs://[^/[:space:]]+/[^[:space:]]*[^/[:space:]]$ ]] ||
      wrong "$each" "gs://BUCKET/FOLDER without a slash at the end"
  done
  [[ $route == jax ]] || ((${type##*-} <= 8)) ||
    wrong type "a slice of one host (size 8 at most) on the route tf"
  check_train
}

check_train() {
  local i distribution=auto # what keras-albert takes where none is given
  for ((i = 0; i < ${#train[@]}; i++)); do
    case ${train[i]} in
      --distribution) distribution=${train[i + 1]:-} ;;
      --distribution=*) distribution=${train[i]#*=} ;;
      --data | --data=* | --validation | --validation=* | --output | --output=*)
        die "$settings: 'train' must not hold ${train[i]%%=*}. Use the" \
          "setting '$(tr -d - <<<"${train[i]%%=*}")', a gs:// folder."
        ;;
      --config | --file | --teacher | --warm-start)
        check_file "${train[i]}" "${train[i + 1]:-}"
        ;;
      --config=* | --file=* | --teacher=* | --warm-start=*)
        check_file "${train[i]%%=*}" "${train[i]#*=}"
        ;;
    esac
  done
  case $route:$distribution in
    jax:auto | jax:data | jax:model | tf:tpu) ;;
    # `none` is one chip of the slice.
    jax:*) die "$settings: --distribution in 'train' must be auto, data or" \
      "model on the route jax. Received: '$distribution'. Leave it out: auto" \
      "takes all chips of the slice." ;;
    # There `auto` looks for a TPU only where TPU_NAME is set.
    tf:*) die "$settings: 'train' must hold --distribution tpu on the route" \
      "tf. Received: --distribution '$distribution' (auto when left out)." \
      "Add it, as in tpu/example-tf.env." ;;
  esac
}

# check_file OPTION PATH: whether the hosts will have the file. They have what
# run.sh installs, the last commit, and what the Hugging Face Hub or Kaggle has.
check_file() {
  local inside=${2#keras_albert/}
  [[ $2 != *://* && $2 != /* ]] || return 0
  if [[ $inside == "$2" ]] || ! git -C "$(dirname "${BASH_SOURCE[0]}")/.." \
    cat-file -e "HEAD:$inside" 2>/dev/null; then
    die "$settings: the hosts have no file '$2', which $1 in 'train' names." \
      "Commit it to this checkout, whose files they have in keras_albert/:" \
      "$1 keras_albert/$inside."
  fi
}

# Runs a command; with --dry-run prints it instead.
run() {
  if [[ $dry_run == yes ]]; then
    printf '%q ' "$@" | sed 's/ $/\n/'
  else
    "$@"
  fi
}

# tpu_command queued-resources|tpu-vm VERB [OPTION...]
tpu_command() {
  run gcloud compute tpus "$1" "$2" "$name" \
    "--zone=$zone" "--project=$project" --quiet "${@:3}"
}

# on_hosts all|0 COMMAND
on_hosts() {
  tpu_command tpu-vm ssh "--worker=$1" "--command=$2"
}

# ACTIVE, SUSPENDED, ...; READY, PREEMPTED, ... of a TPU VM; ABSENT; UNKNOWN
# where it cannot be asked now.
tpu_state() {
  local answer query=(queued-resources describe '--format=value(state.state)')
  [[ $request == queued ]] || query=(tpu-vm describe '--format=value(state)')
  if [[ $dry_run == yes ]]; then
    tpu_command "${query[@]}"
  elif answer=$(tpu_command "${query[@]}" 2>&1); then
    tail -n 1 <<<"$answer"
  elif [[ $answer == *NOT_FOUND* || $answer == *"not found"* ]]; then
    echo ABSENT
  else
    echo "$answer" >&2
    echo UNKNOWN
  fi
}

# The status of the run in OUTPUT: "running", written by run.sh; "finished" or
# "stopped STATUS", written by worker.sh; empty before the first start.
run_status() {
  run gcloud storage cat "$output/status" 2>/dev/null || true
}

# idle or busy: whether anything of worker.sh runs on host 0.
host_activity() {
  on_hosts 0 "flock --nonblock .keras_albert.lock echo idle || echo busy"
}
