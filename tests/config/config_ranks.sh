#!/bin/sh
# tests/config/config_ranks.sh -- the configuration of four launched ranks. A rank with another configuration
# is named, with the first key that differs, before any group depends on the key. Errors are printed once.
set -u
real=$TRAIN bad=0
printf 'one two three four five six seven eight nine ten\n%.0s' $(seq 200) > "$WORK/text"
"$real" tokenize "$WORK/text" -o "$WORK/corpus" > /dev/null 2>&1 || exit 1
cat > "$WORK/good.yaml" <<YAML
model: {num_layers: 4, hidden_size: 32, num_attention_heads: 4, seq_length: 16}
data: {data_path: $WORK/corpus}
train: {micro_batch_size: 2, global_batch_size: 16, train_iters: 1}
optimizer: {lr: 1e-3}
parallel: {pipeline_model_parallel_size: 2}
precision: {cpu_isa: ${ISA:-auto}}
checkpoint: {save: $WORK/run}
YAML
cat > "$WORK/train" <<SH
#!/bin/sh
[ "\${OMPI_COMM_WORLD_RANK:-0}" = 2 ] && set -- "\$@" \$ODD
exec "$real" "\$@"
SH
chmod +x "$WORK/train"

# expect CODE TEXT ARGUMENTS...: four ranks end with CODE, with TEXT and one error line (none when CODE is 0).
# ODD holds arguments that rank 2 alone reads too.
expect() {
    code=$1 says=$2; shift 2
    TRAIN="$WORK/train" timeout 240 scripts/launch -n 4 "$WORK/good.yaml" "$@" > "$WORK/out" 2>&1
    rc=$?
    errors=$(grep -c '^error\[' "$WORK/out")
    wanted=$([ "$code" = 0 ] && echo 0 || echo 1)
    if [ $rc != "$code" ] || [ "$errors" != "$wanted" ] || ! grep -q "$says" "$WORK/out"; then
        echo "exit $rc, $errors error lines with ODD='$ODD' $*; expected $code and '$says':"
        cat "$WORK/out"
        bad=$((bad + 1))
    fi
}

export ODD=''
expect 0 'layers 2 to 3, loss'
expect 2 'hidden_size: 34 is not a multiple of num_attention_heads 4' hidden_size=34
expect 2 '2 problems in' hidden_size=34 global_batch_size=7
ODD='lr=2e-3'
expect 2 'configuration of rank 2 is not that of the others: lr is 0.002 on rank 2 and 0.001 on rank 0'
ODD='tensor_model_parallel_size=2'
expect 2 'rank 2 .* tensor_model_parallel_size is 2 on rank 2 and 1 on rank 0'
ODD='rank_order=pp-dp-ep-cp-tp'
expect 2 'rank_order is pp-dp-ep-cp-tp on rank 2'
ODD='hidden_size=34'
expect 2 'rank 2: 1 problem in .* and rank 0 has not ended the job; the first: hidden_size: 34 is not'
[ $bad = 0 ]
