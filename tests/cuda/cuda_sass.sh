#!/bin/sh
# tests/cuda/cuda_sass.sh attention|memory -- counts in the machine code of our kernels (sass.py), for each of ARCHS (90a).
# attention: no local memory, 16-byte stores, the products and the loads of their operands that each tile takes. memory:
# the kernels around products: norm, activation, rope, loss, embedding, rows, sums, FP8, optimizers: no local memory,
# 16-byte accesses. Heads of 64 and 128 and BF16 alone, which training uses: the rest would take five times as long
# (scripts/ptxas_table shows it). Ends with 77 (not run) without nvcc.
nvcc=$(command -v "${NVCC:-nvcc}") || { echo "no nvcc: the machine code is not counted"; exit 77; }
work=${WORK:?} kind=$1
cp -r kernels/cuda "$work/cuda"
case $kind in
attention)
    files='attention/attention_fwd attention/attention_bwd attention/attention_bwd_keys'
    sed -i 's/run(Head<64>()), run(Head<80>()), run(Head<96>()), run(Head<128>()), run(Head<256>());/run(Head<64>()), run(Head<128>());/' "$work/cuda/attention/attention.cuh"
    sed -i '/open<Half\|<Half> &/d; s/run<Half>/run<Bf16>/' "$work/cuda/attention/"*.cu
    ;;
memory)
    files='norm xent optimizer act colsum fp8 fp8_norm embed rows elementwise rope'
    sed -i '/case F32: run(float()); return;/d; /case F16: run(Half()); return;/d' "$work/cuda/common.cuh" "$work/cuda/fp8.cuh"
    sed -i '/open_type<Half>/d' "$work/cuda/fp8_norm.cu"
    ;;
*) echo "attention or memory, not $kind"; exit 2 ;;
esac
compile() { # ARCH FILE
    "$nvcc" -std=c++17 -O3 -lineinfo -Xptxas -v -gencode "arch=compute_$1,code=sm_$1" -Ikernels -I"$work/cuda" \
        -I"$work/cuda/attention" -I"$work/cuda/ptx" -cubin -o "$work/${2#*/}.$1.cubin" -c "$work/cuda/$2.cu" \
        > "$work/${2#*/}.$1.log" 2>&1
}
for arch in ${ARCHS:-90a}; do
    half=
    for f in $files; do                # two at a time
        if [ -n "$half" ]; then
            compile "$arch" "$f"
            wait "$half"
            half=
        else
            compile "$arch" "$f" & half=$!
        fi
    done
    wait
    for f in $files; do
        f=$work/${f#*/}.$arch
        [ -e "$f.cubin" ] || { cat "$f.log"; exit 1; }
        set -- "$@" "$f.cubin" "$f.log"
    done
done
exec "${PYTHON:-python3}" tests/cuda/sass.py "$@"
