#!/bin/sh
# tests/cuda/cudnn_graphs.sh -- asks cuDNN, without a GPU, whether it has kernels for the graphs of attention that runs ask
# for (cudnn_graphs.c), and tests the build with CUDNN=1 on a machine without a driver (cuda_starts.sh). CUDNN_INC and
# CUDNN_FRONTEND_INC name the folders of the headers, CUDNN_LIB that of the library (default: beside CUDNN_INC).
# BUILT=FOLDER: builds there. Ends with 77 (not run) without nvcc or without CUDNN_FRONTEND_INC.
set -e
nvcc=$(command -v "${NVCC:-nvcc}") && [ -n "$CUDNN_FRONTEND_INC" ] ||
    { echo "no nvcc or no CUDNN_FRONTEND_INC"; exit 77; }
work=${WORK:?} cuda=${nvcc%/bin/nvcc} lib=${CUDNN_LIB:-${CUDNN_INC%/include}/lib} folder=${BUILT:-build/cuda-cudnn}
make -s -j2 CUDA=1 CUDNN=1 ARCHS=90a BUILD=$folder $folder/train $folder/cudnn_graphs
mkdir -p "$work/stub"                     # the library loads libcuda, though it uses no driver here
ln -sf "$cuda/lib64/stubs/libcuda.so" "$work/stub/libcuda.so.1"
LD_LIBRARY_PATH="$lib:$work/stub:$cuda/lib64:$LD_LIBRARY_PATH" $folder/cudnn_graphs > "$work/graphs" 2>&1 ||
    { tail -n 20 "$work/graphs"; exit 1; }
tail -n 1 "$work/graphs"
BUILT=$folder tests/cuda/cuda_starts.sh
