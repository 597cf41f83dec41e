#!/bin/sh
# tests/commands/modes.sh -- files and folders follow the umask: corpora, run directories, checkpoints, logs,
# caches, exports and reports of a sweep have exactly the modes 0666 and 0777 without the umask's bits.
set -eu
work=${WORK:?}

if [ $# = 1 ]; then         # MASK: runs every command that writes, in this folder
    umask "$1"
    mkdir corpus
    "$TRAIN" tokenize "$TEXT" -o corpus/corpus
    set -- tiny.yaml data_path=corpus/corpus
    "$TRAIN" "$@" save=new/run tensorboard_dir=boards/here
    "$TRAIN" "$@" save=new/run load=latest train_iters=4 async_save=true
    "$TRAIN" export new/run -o exports/one
    "$TRAIN" import exports/one -o imports/one
    "$TRAIN" dump "$@" -o first.safetensors
    "$TRAIN" schedule "$@" --svg pipe.svg --trace pipe.json
    "$TRAIN" bubble "$@" --simulate --p 2 --m 4 --csv cells.csv
    "$TRAIN" sweep "$@" --world 1 --machine "$MACHINE" --measure 1 --steps 2 --rounds 1 -o sweep
    exit 0
fi
export TEXT="$PWD/parallel" MACHINE="$PWD/configs/machines/h100.yaml"
script=$PWD/tests/commands/modes.sh
cat > "$work/tiny.yaml" <<YAML
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 2, seq_length: 16, position_embedding_type: rope,
  normalization: RMSNorm, activation: swiglu, add_bias_linear: false, untie_embeddings_and_output_weights: true}
data: {tokenizer_type: byte, split: '90, 10, 0'}
train: {micro_batch_size: 1, global_batch_size: 2, train_iters: 2, eval_interval: 2, eval_iters: 1}
optimizer: {lr: 0.01}
precision: {cpu_isa: ${ISA:-auto}}
log: {log_interval: 1, trace_steps: [1, 2]}
YAML

for mask in 000 002 077; do
    top=$work/$mask
    mkdir "$top"
    cp "$work/tiny.yaml" "$top"
    (cd "$top" && sh "$script" $mask) > "$work/log" 2>&1 || { tail -n 5 "$work/log"; exit 1; }
    file=$(printf %o $((0666 & ~0$mask))) folder=$(printf %o $((0777 & ~0$mask)))
    wrong=$(find "$top" -mindepth 1 ! -name tiny.yaml \( -type f ! -perm "$file" -o -type d ! -perm "$folder" \) \
        -printf '%M %P\n')
    [ -z "$wrong" ] || { echo "umask $mask: not $file and $folder:"; echo "$wrong"; exit 1; }
    echo "umask $mask: $(find "$top" -mindepth 1 -type f | wc -l) files of mode $file"
done
