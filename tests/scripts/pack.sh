#!/bin/sh
# tests/scripts/pack.sh -- archives of scripts/gpu_pack in a bare Debian that has Python and nothing else of what the
# programs were built with: no compiler, no MPI, no ssh, no YAML, JSON or hash library, no CUDA. The archive for a GPU
# (ARCHS, 90a) has at most 16 MiB, Python unpacks it there, and ldd finds every library of every program, plugin and
# library in it, but for NVIDIA's. The archive of the emulated device passes scripts/gpu_test there, whole, as root. Ends
# with 77 without root, debootstrap, Debian, nvcc or xz. Packages come from this machine's apt sources. Takes 10 minutes
# and 1.5 GB below TMPDIR.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/scripts/debian.sh
command -v "${NVCC:-nvcc}" > /dev/null || skip "nvcc is missing; change: install the CUDA toolkit, or NVCC=PATH/bin/nvcc"
command -v xz > /dev/null || skip "xz is missing; change: as root, apt-get install xz-utils"
work=$(mktemp -d) || exit 2
root=$work/root most=$((16 << 20))
leave() { umount "$root/proc" "$root/dev/shm" 2> /dev/null; rm -rf --one-file-system "$work"; }
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
fail() { echo "FAIL: $*"; exit 1; }
step() { printf '\n## %s (%s s)\n' "$*" "$(($(date +%s) - began))"; }
began=$(date +%s)
inside() { chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/bin:/bin:/usr/sbin:/sbin "$@"; }

# libraries in a folder of the root that the loader does not find. They come from the driver, the toolkit or PyTorch on a
# machine with a GPU: libcuda, cuBLASLt, cuDNN, NCCL and NVRTC.
missing() {
    inside "$1/with" sh -c 'for p in bin/* build/*/* $(find lib -name "*.so*"); do
            case $(head -c 4 "$p" | tail -c 3) in ELF) ldd "$p" 2>&1 | sed "s|^|$p: |" ;; esac
        done' 2> /dev/null > "$work/ldd"
    [ "$(wc -l < "$work/ldd")" -ge 500 ] || fail "ldd says only $(wc -l < "$work/ldd") lines of $1"
    grep -e 'not found' -e 'No such file' "$work/ldd" |
        grep -v -E ': +lib(cuda|cublasLt|cudnn|nccl|nvrtc)\.so\.[0-9]+ => not found' | sort -u
}
unpack() { # FILE FOLDER
    mkdir -p "$root/$2" && mv "$1" "$root/$2/pack.tar.xz"
    inside sh -c "cd $2 && python3 -m tarfile -e pack.tar.xz && rm pack.tar.xz" || fail "Python does not unpack $1"
    lost=$(missing "$2/gridiron-gpu")
    [ -z "$lost" ] || { echo "$lost"; fail "libraries are missing in the archive"; }
    printf '%s lines of ldd, nothing missing\n' "$(wc -l < "$work/ldd")"
}

step "a bare Debian with Python"
bare_debian "$root" "$work/log" python3
for what in gcc ld mpirun ssh nvcc; do
    inside sh -c "command -v $what" > /dev/null && fail "the bare Debian has $what"
done
mkdir -p "$root/proc" "$root/dev/shm"
mount -t proc proc "$root/proc" && mount -t tmpfs shm "$root/dev/shm" || skip "root may not mount here"

step "the archive for a GPU, ARCHS=${ARCHS:-90a}"
scripts/gpu_pack "$work/gpu.tar.xz" || fail "scripts/gpu_pack: $?"
size=$(stat -c %s "$work/gpu.tar.xz")
[ "$size" -le "$most" ] || fail "it has $size bytes, more than $most"
unpack "$work/gpu.tar.xz" /root/gpu
inside /root/gpu/gridiron-gpu/with build/cuda/train --version || fail "build/cuda/train --version: $?"

step "the archive of the emulated device"
EMULATED=1 PRESET=0 scripts/gpu_pack "$work/emulated.tar.xz" || fail "scripts/gpu_pack: $?"
unpack "$work/emulated.tar.xz" /root/emulated
inside EMULATED=1 /root/emulated/gridiron-gpu/with scripts/gpu_test --minutes 30 > "$work/said" 2>&1
code=$?
cat "$work/said"
[ "$code" = 0 ] || fail "scripts/gpu_test: $code"
grep -q ' passed, 0 failed, 0 not run' "$work/said" || fail "scripts/gpu_test could not run a row"
step "done"
