#!/bin/sh
# tests/kernels/aarch64.sh -- the tests of operations, built by a cross compiler for Arm and run under emulation: NEON,
# and SVE with vectors of 256 bits; FEW (tests/test.h) leaves out what would take minutes. 77: no such compiler or no emulator here.
set -u
cc=${AARCH64_CC:-aarch64-linux-gnu-gcc} bad=0
for tool in "$cc" qemu-aarch64; do
    command -v "$tool" > /dev/null || { echo "no $tool: Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user"; exit 77; }
done
make -s CC="${CCACHE-} $cc" op-tests > "$WORK/log" 2>&1 || { cat "$WORK/log"; exit 1; }
export FEW=1 QEMU_CPU=max,sve-max-vq=2,sve-default-vector-length=32 QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
for test in base pool route numbers fp8 grad 'ops sve256' gemm 'attention generic'; do
    # shellcheck disable=SC2086
    set -- $test
    qemu-aarch64 build/aarch64/test_"$1" ${2-} > "$WORK/log" 2>&1 || { echo "$test:"; tail -n 20 "$WORK/log"; bad=1; }
    ! grep -q 'sve256: not' "$WORK/log" || { echo "$test: no SVE of 256 bits"; bad=1; }
done
exit $bad
