#!/bin/sh
# tests/cuda/cuda_starts.sh -- the executable built with CUDA=1, on a machine without a driver: it trains on the CPU with
# the bits of a build without CUDA, refuses `device: cuda` with one error line, and links no library of NVIDIA's. Tests
# build/cuda/train when that is newer than its sources, otherwise builds for one kind of GPU in another folder, with the
# compiler's fast way where it has one: nothing runs on a GPU here, and cuda_sass looks at the machine code.
# BUILT=FOLDER: tests FOLDER/train. Ends with 77 (not run) without nvcc or with a usable GPU.
set -e
work=${WORK:?}
command -v "${NVCC:-nvcc}" > /dev/null || { echo "no nvcc: the build with CUDA=1 is not tried"; exit 77; }
folder=${BUILT:-build/cuda}
newer() { find kernels parallel src train.c -name '*.[chd]*' -newer "$1" -print -quit; }
if [ -z "$BUILT" ] && { [ ! -x $folder/train ] || [ -n "$(newer $folder/train)" ]; }; then
    folder=build/cuda-90a
    "${NVCC:-nvcc}" --help | grep -q -e --Ofast-compile && export NVCC_APPEND_FLAGS="-Ofc max"
    make -s -j2 CUDA=1 ARCHS=90a BUILD=$folder $folder/train
fi
built=$PWD/$folder/train
readelf -d "$built" | grep NEEDED > "$work/needed"
grep -E 'libcuda|cublas|nccl|cudnn|nvrtc' "$work/needed" && { echo "$built does not start without it"; exit 1; }
"$TRAIN" tokenize src -o "$work/corpus" > /dev/null 2>&1
cat > "$work/tiny.yaml" <<YAML
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, seq_length: 32, hidden_dropout: 0.1}
data: {data_path: $work/corpus, tokenizer_type: byte, split: '1, 0, 0'}
train: {micro_batch_size: 2, global_batch_size: 4, train_iters: 5}
optimizer: {lr: 0.01, lr_decay_style: constant}
log: {log_interval: 1}
YAML
plain=build/cpu/train                    # a build with sanitizers has other bits
[ -x $plain ] || plain=$TRAIN
for with in "$plain" "$built"; do
    "$with" "$work/tiny.yaml" save="$work/run" save_interval=null save_at_end=false > "$work/log" 2>&1 ||
        { cat "$work/log"; exit 1; }
    grep -o '"lm_loss": *[^,]*' "$work/run/metrics.jsonl" >> "$work/losses"
    rm -r "$work/run"
done
[ "$(wc -l < "$work/losses")" = 10 ] || { cat "$work/losses"; exit 1; }
[ "$(head -n 5 "$work/losses")" = "$(tail -n 5 "$work/losses")" ] || { cat "$work/losses"; exit 1; }
"$built" "$work/tiny.yaml" device=cuda save="$work/run" > "$work/said" 2> "$work/log" && rc=0 || rc=$?
[ $rc != 0 ] || { echo "there is a GPU: what a machine without one says is not tried"; exit 77; }
[ $rc = 5 ] || { echo "ended with $rc, not 5"; cat "$work/log"; exit 1; }
[ "$(grep -c '^error\[cuda\].*no GPU can be used.*; change: device: cpu' "$work/log")" = 1 ] &&
    [ "$(wc -l < "$work/log")" = 1 ] || { echo "not one error line"; cat "$work/log"; exit 1; }
"$built" plan "$work/tiny.yaml" device=cuda > "$work/log" 2>&1 || { echo "no plan"; cat "$work/log"; exit 1; }
# the real libraries, where they are installed, accept the project's calls
home=${CUDA_HOME:-$(dirname "$(dirname "$(command -v "${NVCC:-nvcc}")")")}
if [ -e "$home/lib64/libcublasLt.so" ] && [ -e "$home/lib64/libnccl.so.2" ]; then
    ${CC:-gcc} -std=gnu11 -O1 -Ikernels -Ikernels/cuda -Itests -isystem "$home/include" tests/cuda/check_lt.c \
        kernels/cuda/libraries.c "${BUILD:-build/cpu}/gridiron.a" -o "$work/check_lt" -L"$home/lib64" \
        -lcudart_static -ldl -lrt -lpthread -lm
    LD_LIBRARY_PATH=$home/lib64 "$work/check_lt"
fi
echo "starts without a driver"
