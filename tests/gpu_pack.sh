#!/bin/sh
# tests/gpu_pack.sh -- the folder of scripts/gpu_pack runs from where it is carried to, by what lies in it and the C library.
cd "$(dirname "$0")/.." || exit 2
work=${WORK:-$(mktemp -d)}
[ "${EMULATED:-build/emulated}" = build/emulated ] || { echo "scripts/gpu_pack takes build/emulated, not $EMULATED"; exit 77; }
EMULATED=1 scripts/gpu_pack "$work/made" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
mv "$work/made" "$work/carried"
cd "$work/carried" || exit 2
strays=$(./with sh -c 'for p in bin/* build/emulated/* lib/*.so* lib/plugins/*.so; do ldd "$p"; done' 2> /dev/null |
    awk '$2 == "=>" { print $1, $3 }' | grep -Ev " $PWD/lib/|^lib(c|m|pthread|dl|rt)\.so" | sort -u)
[ -z "$strays" ] || { echo "not of the folder: $strays"; exit 1; }
env -i HOME="$HOME" PATH=/usr/bin:/bin EMULATED=1 ./with scripts/gpu_test --only '^one rank$|^tp 2$|test_cuda_copies|test_cuda_comm, staged'
