#!/bin/sh
# tests/scripts/setup_gpu.sh -- scripts/setup gpu installs what is missing by apt, takes cuDNN's headers from wheels where
# apt does not know them, and names in one line what it cannot get; `make CUDA=1` takes cuDNN where its headers are, says
# so, and says why where they are not. apt-get, apt-cache, pip and nvcc are stand-ins that write down how they are called.
work=${WORK:-$(mktemp -d)}
tree=$PWD bad=0
python=$(command -v python3)
mkdir -p "$work/bin" "$work/scripts" "$work/cuda/include" "$work/cuda/bin"
# the machine's own headers are out of sight
sed "s|/usr/local/include /usr/include|$work/none|" scripts/setup > "$work/scripts/setup"
chmod +x "$work/scripts/setup"
stand_in() { cat > "$work/bin/$1"; chmod +x "$work/bin/$1"; }
stand_in id <<'SH'
#!/bin/sh
echo "${ROOT:-0}"
SH
stand_in nvcc <<'SH'
#!/bin/sh
echo 'Cuda compilation tools, release 12.9, V12.9.1'
SH
stand_in apt-cache <<'SH'
#!/bin/sh
case " $KNOWN " in *" $2 "*) ;; *) exit 100 ;; esac
SH
stand_in apt-get <<'SH'
#!/bin/sh
echo "apt-get $*" >> "$CALLS"
for p; do case $p in
libnccl-dev) touch "$INCLUDE/nccl.h" ;;
libcudnn9-dev-cuda-12) touch "$INCLUDE/cudnn.h" ;;
esac; done
SH
stand_in python3 <<'SH'
#!/bin/sh
[ "$2" = pip ] || exec "$PYTHON_REAL" "$@"
[ "$PIP" = 1 ] || exit 1
echo "pip $*" >> "$CALLS"
mkdir -p x/include build/cudnn/wheels && touch x/include/cudnn_frontend.h
cd x && "$PYTHON_REAL" -m zipfile -c ../build/cudnn/wheels/a.whl include
SH
export CALLS="$work/calls" INCLUDE="$work/cuda/include" PYTHON_REAL="$python" CUDA_HOME="$work/cuda" PATH="$work/bin:$PATH"
unset CUDNN_INC CUDNN_FRONTEND_INC NVCC
check() { [ "$2" = "$3" ] || { echo "$1: '$2', not '$3'"; bad=1; }; }
setup() { # NAME CODE VARIABLE=VALUE ...: runs scripts/setup gpu; its words in $said, the calls in $calls
    name=$1 code=$2
    shift 2
    : > "$CALLS"
    said=$(cd "$work" && env "$@" scripts/setup gpu 2>&1)
    check "$name: code" $? "$code"
    calls=$(cat "$CALLS")
}
have() { for h; do touch "$INCLUDE/$h"; done; }

have cuda_runtime.h cublasLt.h nvrtc.h
setup nothing 1 KNOWN= PIP=0
check nothing "$(echo "$said" | grep -c 'missing for GPUs: nccl.h cudnn.h cudnn_frontend.h; change: .* apt-get install libnccl-dev libcudnn9-dev-cuda-12 libcudnn-frontend-dev ')" 1
check 'nothing: calls' "$calls" ''
export KNOWN='libnccl-dev libcudnn9-dev-cuda-12'
setup user 1 ROOT=7 PIP=0
check 'user: calls' "$calls" ''
setup both 0 PIP=1
check 'both: apt' "$(echo "$calls" | grep -c 'apt-get .* install .* libnccl-dev libcudnn9-dev-cuda-12$')" 1
check 'both: pip' "$(echo "$calls" | grep -c '^pip -m pip download .* nvidia-cudnn-frontend$')" 1
check 'both: header' "$(ls "$work/build/cudnn/include")" cudnn_frontend.h
setup again 0 PIP=0
check 'again: calls' "$calls$said" ''

# what make takes
build() { make -n CUDA=1 NVCC=nvcc BUILD="$work/b" "$@" "$work/b/train" > "$work/said" 2>&1; }
takes() { # NAME FILE WORDS
    check "$1: file" "$(grep -o 'attention/attention_[cn][a-z]*\.[a-z]*\.o' "$work/said" | grep -v time | sort -u)" \
        "attention/attention_$2.o"
    grep -q "attention on a GPU: $3" "$work/said" || { echo "$1: $(grep 'on a GPU' "$work/said")"; bad=1; }
}
cd "$tree" || exit 2
build CUDNN_GOT="$work/build/cudnn" && takes auto cudnn.cpp 'cuDNN where it can'
build CUDNN_GOT="$work/build/cudnn" CUDNN=0 && takes off none.c 'our own kernels (CUDNN=0)'
build CUDNN_PATHS="$INCLUDE" && takes lacks none.c 'our own kernels, no cuDNN: no cudnn_frontend.h (scripts/setup gpu)'
build CUDNN_PATHS="$INCLUDE" CUDNN=1 && { echo "CUDNN=1 builds without cuDNN"; bad=1; }
grep -q 'no cudnn_frontend.h; change: scripts/setup gpu' "$work/said" || { cat "$work/said"; bad=1; }
exit $bad
