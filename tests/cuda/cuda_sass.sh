#!/bin/sh
# tests/cuda/cuda_sass.sh -- counts in the machine code of our attention kernels (sass.py): no local memory, 16-byte
# stores, the products and the loads of their operands that each tile takes. Heads of 64 and 128 in BF16, which training
# uses, for each of ARCHS (90a). Ends with 77 (not run) without nvcc.
nvcc=$(command -v "${NVCC:-nvcc}") || { echo "no nvcc: the machine code is not counted"; exit 77; }
work=${WORK:?}
cp -r kernels/cuda/attention "$work/attention"
# these heads and this type alone compile in a fifth of the time
sed -i 's/run(Head<64>()), run(Head<80>()), run(Head<96>()), run(Head<128>()), run(Head<256>());/run(Head<64>()), run(Head<128>());/' "$work/attention/attention.cuh"
sed -i '/open<Half\|<Half> &/d; s/run<Half>/run<Bf16>/' "$work/attention/"*.cu
compile() { # ARCH NAME
    "$nvcc" -std=c++17 -O3 -lineinfo -Xptxas -v -gencode "arch=compute_$1,code=sm_$1" -Ikernels -Ikernels/cuda \
        -I"$work/attention" -Ikernels/cuda/ptx -cubin -o "$work/$2.$1.cubin" -c "$work/attention/$2.cu" \
        > "$work/$2.$1.log" 2>&1
}
for arch in ${ARCHS:-90a}; do
    compile "$arch" attention_fwd & fwd=$!
    compile "$arch" attention_bwd & bwd=$!
    compile "$arch" attention_bwd_keys
    wait $fwd && wait $bwd
    for f in attention_fwd attention_bwd attention_bwd_keys; do
        [ -e "$work/$f.$arch.cubin" ] || { cat "$work/$f.$arch.log"; exit 1; }
        set -- "$@" "$work/$f.$arch.cubin" "$work/$f.$arch.log"
    done
done
exec "${PYTHON:-python3}" tests/cuda/sass.py "$@"
