#!/usr/bin/env bash
# Asks for a TPU slice: a queued resource, or a TPU VM at once.
#
# usage: create.sh SETTINGS [--dry-run]
#
# SETTINGS is a copy of example.env or example-tf.env. With request=queued it
# returns when the request is in the queue (watch.sh tells its state); with
# request=direct when the TPU VM is there, or fails where there is no capacity.
# From then on the slice is paid for until delete.sh. --dry-run prints the
# command and runs none.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$0")/common.sh"
parse "$@"

image=$runtime
if [[ -z $image ]]; then
  case $route:$type in
    tf:*) image=tpu-vm-tf-2.19.1-pjrt ;;
    jax:v6e-*) image=v2-alpha-tpuv6e ;;
    jax:v5p-*) image=v2-alpha-tpuv5 ;;
    jax:v5litepod-*) image=v2-alpha-tpuv5-lite ;;
    *) image=tpu-ubuntu2204-base ;;
  esac
fi
options=("--accelerator-type=$type")
# The VM reads and writes the bucket.
options+=(--scopes=https://www.googleapis.com/auth/cloud-platform)
[[ $tier == on-demand ]] || options+=(--spot)

if [[ $request == queued ]]; then
  tpu_command queued-resources create "--node-id=$name" \
    "--runtime-version=$image" "${options[@]}"
else
  tpu_command tpu-vm create "--version=$image" "${options[@]}"
fi
