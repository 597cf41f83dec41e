#!/bin/sh
# tests/training/flips.sh [N] -- bits that flip in weights, masters and moments. On runs that stand still: every flip is
# found, between updates by the rank's own hashes, before them in replicas; the line names tensor and rank; nothing is
# reported without a flip. In jobs: the run ends with 5, no checkpoint holds the flip, and under --restarts it ends with
# the bytes of an undisturbed one. With N: that many trials over many layouts. Bits that flip in messages: every flip that
# changes a result is found, nothing is reported without one; in a job the run ends with 7.
set -u
work=${WORK:-$(mktemp -d)} launch=$PWD/scripts/launch train=${TRAIN:-$PWD/$BUILD/train} flipping=$PWD/$BUILD/test_flips bad=0
. tests/tiny.sh
. tests/parallel/same.sh
"$train" tokenize src/io -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" model.num_layers=4 train.global_batch_size=8 train.train_iters=12 checkpoint.save_interval=4 \
    fault.sdc_check_interval=1
fail() { bad=$((bad + 1)); echo "$*"; sed 's/^/    /' "$work/log" | grep -v ' iteration  ' | cut -c 1-600 | tail -n 12; }
errors() { grep -c '^error\[' "$work/log"; }

# trials NUMBER RANKS SETTING...
trials() {
    number=$1 ranks=$2; shift 2
    rm -rf "$work/run"
    FLIPS="$number $((seed += 1))" TRAIN=$flipping timeout 250 "$launch" -n "$ranks" "$work/tiny.yaml" train_iters=1 "$@" \
        save="$work/run" > "$work/log" 2>&1 < /dev/null || fail "$ranks $*: $?"
    grep '^flips ' "$work/log" | tee -a "$work/counts" | awk '{ exit !($2 == $4 && $4 == $6 && $2 >= 2 * $8 && $8 > 0 && $10 == 0) }' ||
        fail "$ranks $*: a flip was missed or misnamed, or nothing was reported"
}
seed=0
n=$((${1:-480} / 4))
trials $n 2 params_dtype=bf16
trials $n 4 tensor_model_parallel_size=2 params_dtype=bf16
trials $n 4 data_parallel_sharding_strategy=optim_grads_params num_distributed_optimizer_instances=2 tensor_model_parallel_size=1
trials $n 4 pipeline_model_parallel_size=2 tensor_model_parallel_size=2 sequence_parallel=true
trials 12 4 tensor_model_parallel_size=4 num_query_groups=2      # two ranks have the same keys and values
if [ "${1:-}" ]; then
    trials $n 1
    trials $n 3 global_batch_size=6
    trials $n 4 data_parallel_sharding_strategy=optim overlap_param_gather=true overlap_grad_reduce=true
    trials $n 4 data_parallel_sharding_strategy=optim_grads params_dtype=fp16 optimizer_cpu_offload=true
    trials $n 4 tensor_model_parallel_size=4 num_query_groups=2 add_qkv_bias=true qk_layernorm=true
    trials $n 4 context_parallel_size=2 pipeline_model_parallel_size=2 optimizer=lamb
    trials $n 4 num_moe_experts=4 expert_model_parallel_size=2 moe_router_topk=2 tensor_model_parallel_size=2 sequence_parallel=true
    trials $n 8 num_moe_experts=4 expert_tensor_parallel_size=2 tensor_model_parallel_size=2 sequence_parallel=true moe_router_topk=2
fi
awk '{ f += $2; g += $4; n += $8; a += $10 } END { print "# " f " flips, " g " found; " n " trials without, " a " false alarms" }' "$work/counts"

# messages NUMBER RANKS SETTING... -- flips in what the ranks send each other. When a flip hits depends on how busy the
# machine is, and so does how many change a result: trials go on until a fifth of the flips did
messages() {
    number=$1 ranks=$2; shift 2
    for _ in 1 2 3 4 5 6; do
        rm -rf "$work/run"
        MESSAGES="$number $((seed += 1))" TRAIN=$PWD/$BUILD/test_messages timeout 250 "$launch" -n "$ranks" "$work/tiny.yaml" \
            train_iters=1 comm_checksums=true "$@" save="$work/run" > "$work/log" 2>&1 < /dev/null || fail "messages, $ranks: $?"
        grep '^messages ' "$work/log" | tee -a "$work/sent" | awk '{ exit !($6 == $8 && $10 && $12 == 0) }' ||
            fail "messages, $ranks: a flip was missed, or something was found without one"
        ! awk '/^messages / { exit !($4 && 5 * $6 > $4) }' "$work/log" || return
    done
    fail "messages, $ranks: hardly a flip changed a result"
}
n=$((${1:-240} / 3))
messages $n 2
messages $n 4
GRIDIRON_RANKS_PER_HOST=1 messages $n 3 global_batch_size=6
[ -z "${1:-}" ] || GRIDIRON_RANKS_PER_HOST=2 messages $n 4
awk '{ f += $6; g += $8; n += $10; a += $12 } END { print "# messages: " f " flips that changed a result, " g " found; " n " without, " a " false" }' "$work/sent"

# job CODE FLIP SETTING... -- four ranks with FLIP in the first start
cat > "$work/train" <<SH
#!/bin/sh
echo >> "$work/starts.\$OMPI_COMM_WORLD_RANK"
[ \$(wc -l < "$work/starts.\$OMPI_COMM_WORLD_RANK") = 1 ] && exec "$flipping" "\$@"
exec "$train" "\$@"
SH
chmod +x "$work/train"
job() {
    code=$1 flip=$2; shift 2
    rm -rf "$work/run" "$work"/starts.*
    FLIP=$flip TRAIN=$work/train timeout 250 "$launch" -n 4 $restarts "$work/tiny.yaml" save="$work/run" "$@" \
        > "$work/log" 2>&1 < /dev/null
    rc=$?
    [ $rc = "$code" ] || fail "$flip $*: code $rc"
    grep -q '^flipped ' "$work/log" || fail "$flip $*: nothing flipped"
}
# computed CODE FAULT WHO SETTING... -- the job ends with CODE and names WHO
computed() {
    code=$1 fault=$2 who=$3; shift 3
    rm -rf "$work/run"
    WRONG=$fault TRAIN=$flipping timeout 250 "$launch" -n 4 "$work/tiny.yaml" save="$work/run" sdc_rerun=true \
        sdc_check_interval=2 "$@" > "$work/log" 2>&1 < /dev/null
    rc=$?
    [ $rc = "$code" ] || fail "$fault $*: code $rc"
    [ $code = 0 ] || grep -q "^error\\[${fault##* }\\] .*iteration 4: $who comput" "$work/log" ||
        fail "$fault $*: another rank is named"
}
host='on host [^ ]*'
model='tensor_model_parallel_size=2 pipeline_model_parallel_size=2'
data='data_parallel_sharding_strategy=optim params_dtype=bf16'
restarts=
# shellcheck disable=SC2086
{
    "$launch" -n 4 "$work/tiny.yaml" $model save="$work/model" > "$work/log" 2>&1 || fail "the undisturbed run: $?"
    "$launch" -n 4 "$work/tiny.yaml" $data save="$work/data" > "$work/log" 2>&1 || fail "the undisturbed run: $?"
    # between two updates, in a state without a replica
    job 5 '3 B 6 .exp_avg 7' $model
    [ "$(errors)" = 1 ] && grep -q '^error\[memory\] .*rank 3 on host .*\.exp_avg has other bytes than iteration 5 left in it' "$work/log" ||
        fail "a moment"
    # long before the check, in a replica: nothing of it is saved
    job 5 '2 F 2 weight 8' sdc_check_interval=100
    [ "$(errors)" = 1 ] && grep -q '^error\[replicas\] .*after iteration 4, rank 2 on host .*group dp' "$work/log" || fail "a replica"
    [ -z "$(ls "$work/run/checkpoints")" ] || fail "a checkpoint holds the flip"
    # a gradient that is not finite for once: the step is, when it runs again
    for fault in "1 B1 6 gradient 3 $model" "2 F 5 gradient 4 $data" "3 R 4 gradient 8 $data"; do
        set -- $fault
        what="$1 $2 $3 $4 $5"; shift 5
        job 16 "$what" "$@"
        tensor=$(sed -n 's/^flipped the gradient of //p' "$work/log")
        [ "$(errors)" = 1 ] && grep -q "^error\[transient\] .*gradient of $tensor was not finite in the share of rank [0-3] on host [^ ]*; run again, the same step is finite" "$work/log" ||
            fail "$what: the gradient of $tensor"
    done
    # a product that is wrong: in the first pass, in the second, each time; a plain run, and one that is not looked at
    computed 0 '9 4 0 none' '' $data
    same data "$work/run" 'a run whose steps are compared'
    # data ranks that add up other numbers of partial sums; pairs that are dropped: nothing is wrong
    computed 0 '9 4 0 none' '' $data tensor_model_parallel_size=2 sequence_parallel=true
    computed 0 '9 4 0 none' '' num_moe_experts=4 expert_model_parallel_size=2 moe_expert_capacity_factor=0.8 \
        moe_token_dispatcher_type=allgather
    computed 0 '1 5 3 transient' '' $model
    computed 16 '0 4 30 transient' "rank 0 $host" $model
    computed 16 '1 4 3 transient' "rank 1 $host" $model
    computed 16 '2 4 40 transient' "rank 2 $host" $data
    computed 17 '2 4 0 persistent' "rank 2 $host" $data
    computed 17 '3 4 0 persistent' "rank 1 $host or rank 3 $host" tensor_model_parallel_size=2 \
        data_parallel_sharding_strategy=optim_grads_params
    restarts='--restarts 2'
    job 0 '1 B1 6 gradient 3' $model
    same model "$work/run" "a gradient that was not finite"
    job 0 '1 F 7 weight 9' $data
    same data "$work/run" "a weight that flipped"
    job 0 '0 B 10 .master 10' $data
    same data "$work/run" "a master that flipped"
    job 0 '2 S 3 .exp_avg_sq 11' $model
    same model "$work/run" "a moment that flipped"
    grep -q '^restart 1 of 2: code 5, error\[memory\] ' "$work/log" && ! grep -q '^restart 2' "$work/log" || fail "restarts"
    # in a message: one line, 7, and the restarted run ends with the same bytes
    sed "s|exec \"[^\"]*test_flips\"|exec \"$PWD/$BUILD/test_messages\"|" "$work/train" > "$work/train.new"
    cat "$work/train.new" > "$work/train"
    rm -rf "$work/run" "$work"/starts.*
    MESSAGE='1 6 3' TRAIN=$work/train timeout 250 "$launch" -n 4 $restarts "$work/tiny.yaml" save="$work/run" $model \
        comm_checksums=true > "$work/log" 2>&1 < /dev/null || fail "a message that flipped: $?"
    same model "$work/run" "a message that flipped"
    grep -q '^restart 1 of 2: code 7, error\[message\] .*group .*, operation .* from rank [0-3] to rank 1 has changed' "$work/log" ||
        fail "a message that flipped"
}
[ $bad = 0 ]
