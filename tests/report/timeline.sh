#!/bin/sh
# tests/report/timeline.sh -- runs of 2 and 4 ranks with trace_steps: every instruction of every rank in the order of its list,
# every message and reduction, on one clock; the report's picture; what is said about reductions under computation.
set -e
work=${WORK:?} launched=$TRAIN
. tests/tiny.sh
"$TRAIN" tokenize src -o "$work/corpus" > /dev/null 2>&1
tiny "$work/tiny.yaml" model.num_layers=4 model.untie_embeddings_and_output_weights=true data.split="'100, 0, 0'" \
    train.global_batch_size=8 train.train_iters=5 'log.trace_steps=[2, 3, 5]'
# traced RANKS NAME MINIMUM key=value ...: MINIMUM is the share of the reductions' bytes that must be under computation
traced() {
    n=$1 name=$2 minimum=$3
    shift 3
    TRAIN=$launched scripts/launch -n "$n" "$work/tiny.yaml" "save=$work/$name" cpu_isa="$ISA" "$@" \
        > "$work/log" 2>&1 ||
        { cat "$work/log"; exit 1; }
    "$TRAIN" schedule "$work/tiny.yaml" --json --world "$n" "$@" > "$work/lists.json"
    "$BUILD/test_timeline" check "$work/$name" "$work/lists.json" 2,3,5 "$minimum" || { echo "$name"; exit 1; }
    page=$work/$name/report.html
    said=$(sed -n 's/^timeline: //p' "$work/log")
    [ -z "$said" ] || grep -qF "$said" "$work/$name/run.json" || { echo "$name: '$said' is not kept"; exit 1; }
    grep -q '\["F",0,0,"F0.0",' "$page" || { echo "$name: no picture"; exit 1; }
    lanes=$(grep -c '{"rank":' "$page")
    [ "$lanes" = "$n" ] || { echo "$name: $lanes lanes"; exit 1; }
    shares=$(grep -cE '"under":(null|[0-9.]+),"context":(null|[0-9.]+),"expert":(null|[0-9.]+),"bars"' "$page") || :
    [ "$shares" = "$n" ] || { echo "$name: $shares lanes have all three shares"; exit 1; }
    grep -c 'lm loss:' "$work/log" | grep -qx 5 || { echo "$name: not one line a step"; exit 1; }
}
# the progress thread is asked for, because ranks without a spare core have none: with it reductions overlap
export GRIDIRON_PROGRESS=1
traced 2 dp2 0 overlap_grad_reduce=true
traced 2 cp2 0 context_parallel_size=2
echo "$said" | grep -q "context group's bytes were moved under computation" || { echo "cp2: nothing said: $said"; exit 1; }
traced 2 ep2 0 expert_model_parallel_size=2 num_moe_experts=4 add_bias_linear=false moe_shared_expert_intermediate_size=16
echo "$said" | grep -q "expert group's bytes were moved under computation" || { echo "ep2: nothing said: $said"; exit 1; }
grep -q '"expert":[0-9]' "$page" && grep -q "expert: 'experts under computation'" "$page" || { echo "ep2: no column"; exit 1; }
unset GRIDIRON_PROGRESS
traced 2 pp2 0 pipeline_model_parallel_size=2 pipeline_schedule=zb-h1
traced 2 zb-auto 0 pipeline_model_parallel_size=2 pipeline_schedule=zb-auto
echo "$said" | grep -q "the schedule's with the same times" || { echo "zb-auto: nothing is replayed: $said"; exit 1; }
traced 4 tp2pp2 0 tensor_model_parallel_size=2 sequence_parallel=true pipeline_model_parallel_size=2
traced 4 zb-v 0 pipeline_model_parallel_size=2 pipeline_schedule=zb-v data_parallel_sharding_strategy=optim_grads_params
traced 4 cp4 0 context_parallel_size=4 'cp_comm_type=[a2a+p2p]' 'hierarchical_context_parallel_sizes=[2, 2]'
# killed FAULT STEPS: rank 0, which writes the file, is killed. The steps that were recorded before are whole, and the
# report has the last of them
killed() {
    rm -rf "$work/killed"
    FAULT=$1 TRAIN=$PWD/$BUILD/test_faults scripts/launch -n 2 "$work/tiny.yaml" "save=$work/killed" \
        pipeline_model_parallel_size=2 overlap_grad_reduce=false train_iters=100000 > "$work/log" 2>&1 && { echo "$1: not killed"; exit 1; }
    "$TRAIN" schedule "$work/tiny.yaml" --json --world 2 pipeline_model_parallel_size=2 > "$work/lists.json"
    "$TRAIN" report "$work/killed" > "$work/said" || { cat "$work/said"; exit 1; }
    "$BUILD/test_timeline" check "$work/killed" "$work/lists.json" "$2" 0 || { echo "killed: $1"; exit 1; }
    grep -q "^losses of iteration ${2##*,}, " "$work/said" || { cat "$work/said"; exit 1; }
}
killed '0 F 3 0' 2
killed '0 F 5 0' 2,3
killed '0 F 7 0' 2,3,5
# ranks 2 and 3 on another host, whose clock runs 1000 s ahead where the kernel lets a process have a clock of its own
if unshare -T --monotonic 1000 true 2> /dev/null; then
    cat > "$work/train" <<SKEWED
#!/bin/sh
[ "\$OMPI_COMM_WORLD_RANK" -lt 2 ] || exec unshare -T --monotonic 1000 "$TRAIN" "\$@"
exec "$TRAIN" "\$@"
SKEWED
    chmod +x "$work/train"
    launched="$work/train"
fi
export GRIDIRON_RANKS_PER_HOST=2
traced 4 hosts 0 pipeline_model_parallel_size=4
