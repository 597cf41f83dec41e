#!/bin/sh
# tests/cuda/cuda_table.sh -- cublaslt_table on the emulated device: a table of this GPU and release is used, and nothing
# in it timed again; one of another GPU is refused where it is named, and told of where it is found. Two ranks agree.
set -e
work=${WORK:?} program=$PWD/${EMULATED:-build/emulated}/train here=$PWD tables=configs/algorithms
"$TRAIN" tokenize src -o "$work/corpus" > /dev/null 2>&1
cat > "$work/tiny.yaml" <<YAML
model: {num_layers: 1, hidden_size: 64, num_attention_heads: 2, kv_channels: 64, seq_length: 16}
data: {data_path: $work/corpus, tokenizer_type: byte}
train: {micro_batch_size: 1, global_batch_size: 2, train_iters: 1, eval_iters: 0}
optimizer: {lr: 0.01, lr_decay_style: constant}
precision: {params_dtype: bf16, device: cuda, cublaslt_tune: 2}
parallel: {distributed_backend: staged}
checkpoint: {save_at_end: false, save_interval: null}
YAML
run() { # NAME options: trains into the run directory NAME
    name=$1
    shift
    "$program" "$work/tiny.yaml" save="$work/$name" "$@" > "$work/$name.said" 2>&1 || { cat "$work/$name.said"; exit 1; }
}
same() { # FILE: the run has kept this table's entries, times too: it has timed nothing
    cmp "$work/$1/cublaslt.json" "$work/timed/cublaslt.json" || { cat "$work/$1.said"; echo "$1: products were timed"; exit 1; }
}
cd "$work"
run timed
mkdir -p $tables
cp timed/cublaslt.json $tables/emulated.json
run found
same found
run named cublaslt_table="$work/timed/cublaslt.json"
same named
run first cublaslt_tune=1
[ ! -e first/cublaslt.json ] || { echo "cublaslt_tune=1 took algorithms from the table"; exit 1; }
sed 's/ emulated / another GPU /' timed/cublaslt.json > $tables/emulated.json
run other
[ "$(grep -c "^warning: $tables/emulated.json: nothing in it is of .cublaslt .*emulated." other.said)" = 1 ] ||
    { cat other.said; echo "a table of another GPU was passed over in silence"; exit 1; }
"$program" tiny.yaml save="$work/no" cublaslt_table=$tables/emulated.json > said 2>&1 && rc=0 || rc=$?
[ $rc = 2 ] && grep -q '^error\[cublaslt-table\].*; change: ' said || { cat said; echo "not refused: $rc"; exit 1; }
"$program" tiny.yaml save="$work/no" cublaslt_table=none.json > said 2>&1 && rc=0 || rc=$?
[ $rc = 2 ] && grep -q '^error\[cublaslt-table\].*cannot be read' said || { cat said; echo "not refused: $rc"; exit 1; }
cd "$here"
TRAIN=$program scripts/launch -n 2 "$work/tiny.yaml" save="$work/two" tensor_model_parallel_size=2 > "$work/said" 2>&1 ||
    { cat "$work/said"; exit 1; }
[ "$(grep -c '"us"' "$work/two/cublaslt.json")" -gt 3 ] || { echo "two ranks have kept nothing"; exit 1; }
EMULATED=1 OUT="$work/tables" scripts/gpu_algorithms 7b > "$work/said" 2>&1 || { cat "$work/said"; exit 1; }
[ "$(grep -c ' e4m3' "$work/tables/emulated.json")" -gt 3 ] || { cat "$work/said"; echo "no algorithms of FP8"; exit 1; }
