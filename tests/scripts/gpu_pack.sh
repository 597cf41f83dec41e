#!/bin/sh
# tests/scripts/gpu_pack.sh -- programs of scripts/gpu_pack's archive run where it is unpacked, with the
# archive's libraries and the C library alone. The archive holds no C++ library, and gives its libraries to
# our programs alone. PRESET=0 packs quickly.
cd "$(dirname "$0")/../.." || exit 2
work=${WORK:-$(mktemp -d)}
[ "${EMULATED:-build/emulated}" = build/emulated ] || { echo "scripts/gpu_pack takes build/emulated, not $EMULATED"; exit 77; }
command -v orted > /dev/null || { echo "scripts/gpu_pack takes Open MPI 4.1, which is not here"; exit 77; }
command -v xz > /dev/null || { echo "xz is missing"; exit 77; }
EMULATED=1 PRESET=0 scripts/gpu_pack "$work/pack.tar.xz" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
[ "$(stat -c %s "$work/pack.tar.xz")" -le $((16 << 20)) ] || { echo "larger than 16 MiB"; exit 1; }
tar -C "$work" -xf "$work/pack.tar.xz" && cd "$work/gridiron-gpu" || exit 2
strays=$(./with sh -c 'for p in bin/* build/emulated/* lib/*.so* lib/plugins/*.so; do ldd "$p"; done' 2> /dev/null |
    awk '$2 == "=>" { print $1, $3 }' | grep -Ev " $PWD/lib/|^lib(c|m|pthread|dl|rt)\.so" | sort -u)
[ -z "$strays" ] || { echo "not of the folder: $strays"; exit 1; }
cxx=$(find . -name 'libstdc++*' -o -name 'libgcc_s*')
[ -z "$cxx" ] || { echo "in the folder: $cxx"; exit 1; }

# our programs get NVIDIA's libraries from the wheels that Python finds; Python does not get them from us
mkdir -p "$work/torch/bin" "$work/wheels/nvidia/cudnn/lib" "$work/x"
touch "$work/wheels/nvidia/cudnn/lib/libcudnn.so.9"
printf '#!/bin/sh\necho %s\n' "$work/wheels/nvidia/cudnn/lib" > "$work/torch/bin/python"
printf '#!/bin/sh\necho "${LD_LIBRARY_PATH:-none} $GRIDIRON_LIBRARIES"\n' > "$work/x/gpu_bench"
chmod +x "$work/torch/bin/python" "$work/x/gpu_bench"
python_path=$(env -u LD_LIBRARY_PATH TORCH="$work/torch" ./with "$work/x/gpu_bench" 2> "$work/said")
program_path=$(TORCH="$work/torch" ./with sh -c 'echo $LD_LIBRARY_PATH' 2> /dev/null)
grep "^with: libcudnn.so.9 of " "$work/said" > /dev/null || { cat "$work/said"; exit 1; }
case $python_path in "none $PWD/lib:"*"$work/wheels/nvidia/cudnn/lib"*) ;; *) echo "Python has $python_path"; exit 1 ;; esac
case $program_path in "$PWD/lib:"*"$work/wheels/nvidia/cudnn/lib"*) ;; *) echo "programs have $program_path"; exit 1 ;; esac
env -i HOME="$HOME" PATH=/usr/bin:/bin EMULATED=1 ./with scripts/gpu_test --only '^tp 2$|test_cuda_copies|test_cuda_comm, staged'
