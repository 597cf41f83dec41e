#!/bin/sh
# tests/plan/sweep.sh -- sweeps of 2 ranks: the number of legal layouts (counted by hand), which layouts are
# measured, what remains when a sweep is stopped, rows of layouts that fail, and the files that a sweep
# writes.
work=${WORK:?}
. tests/tiny.sh
fail() { echo "# $1"; [ ! -f "$work/err" ] || sed 's/^/#   /' "$work/err"; exit 1; }
"$TRAIN" tokenize src/plan/sweep.c -o "$work/corpus" > /dev/null 2>&1 || fail "no corpus"
tiny "$work/tiny.yaml" model.num_layers=4 model.num_attention_heads=2 data.split="'100, 0, 0'" \
    train.global_batch_size=4 train.train_iters=100000 log.log_interval=100
cat > "$work/machine.yaml" <<YAML
machine: {name: for a test}
device: {matmul_tflops: 0.1, matmul_tflops_fp32: 0.1, matmul_efficiency: [1e6, 0.5], attention_forward: 0.5,
         attention_backward: 0.5, memory_gbps: 10, memory_efficiency: [1e6, 1], launch_us: 5, memory_gib: 4,
         reserve_gib: 1}
node: {ranks: 8, link_gbps: 5, link_latency_us: 10}
network: {network_gbps: 5, network_latency_us: 10, overlap: 0}
YAML
# sweep FOLDER ARGS...: runs the command; standard output goes to out, standard error to err
sweep() {
    folder=$1
    shift
    "$TRAIN" sweep "$work/tiny.yaml" --machine "$work/machine.yaml" --world 2 -o "$work/$folder" "$@" > "$work/out" 2> "$work/err"
}
wrote() { folder=$1; shift; "$BUILD/test_sweep" "$work/$folder" "$@" > "$work/log" || { cat "$work/log"; fail "$folder: $*"; }; }
tried() { grep -c "^[0-9]* of [0-9]*, round [0-9]*:" "$work/err"; }
# alive: prints the number of processes of measurements; gone: waits until there is none
goes_on() { cat "$work/$1"/launch.*/run/metrics.jsonl 2> /dev/null | grep -q .; }    # whether a launch has made a step
gone() { for _ in $(seq 600); do [ "$(alive)" = 0 ] && return; sleep 0.1; done; return 1; }
alive() { ps -eo args | grep -F "save=$work/" | grep -vc grep; }

# tensor 2: 2 (sequence parallel) x 3 (micro batches 1, 2, 4) x 3 (recompute); pipeline 2: 3 x 3, and two chunks with 2 or 4
# microbatches: 2 x 3; data 2: 4 (sharding) x 2 x 3
sweep all --json || fail "sweep"
wrote all 57 57 0
head -c 1 "$work/out" | grep -q '{' || fail "--json says more than an object"
cmp -s "$work/out" "$work/all/sweep.json" || "$BUILD/test_sweep" "$work/all" 57 > /dev/null || fail "--json"
# a machine without host_gbps cannot predict the time of offloading
sweep away optimizer_cpu_offload=true && fail "offloading without host_gbps"
grep -q '^error\[machine\].*host_gbps.*optimizer_cpu_offload.*change: add host_gbps' "$work/err" || fail "no word of host_gbps"
# sizes of the command line: what they allow, or nothing; a word that is no size is refused as ever
sweep full recompute_granularity=full || fail "sweep recompute_granularity=full"
wrote full 19 19 0
sweep none tensor_model_parallel_size=3 && fail "three ranks of two"
grep -q '^error\[sweep\] no layout of 2 ranks is legal .* and the sizes given; change: ' "$work/err" || fail "no word of the sizes"
sweep word tensor_model_parallel_size=many && fail "a size of many"
grep -q '^command line: tensor_model_parallel_size: ' "$work/err" && grep -q '^error\[config\]' "$work/err" || fail "no word of many"
sweep zb-v pipeline_schedule=zb-v || fail "sweep zb-v"
wrote zb-v 51 51 0                         # always two chunks
sweep small recompute_granularity=none data_parallel_sharding_strategy=no_shard overlap_grad_reduce=true || fail "sweep small"
wrote small 13 13 0
sweep gather overlap_grad_reduce=true overlap_param_gather=true || fail "sweep gather"
wrote gather 51 51 0                       # 6 fewer, because no_shard gathers nothing
# context 2: 3 kinds (two heads: a2a, too) x 4 x 3 x 3; long sequences are shared out without being asked
sweep context context_parallel_size=2 || fail "sweep context"
wrote context 108 108 0
grep -q ',2,a2a,1,1,[01],[01],2,' "$work/context/sweep.csv" || fail "no a2a"
sweep 'kind #2' context_parallel_size=2 'cp_comm_type=[allgather]' recompute_granularity=none micro_batch_size=1 --measure 1 --rounds 1 \
    --steps 3 || fail "sweep kind"
wrote 'kind #2' 4 4 1                      # a path that is no plain YAML
sweep long seq_length=8192 tensor_model_parallel_size=1 pipeline_model_parallel_size=1 recompute_granularity=none \
    micro_batch_size=1 || fail "sweep long"
wrote long 16 - 0                          # data 2: 4; context 2: 3 x 4
# experts of one stage of two ranks: ep 1, etp 1; ep 2, etp 1; and with tensor 2 ep 1, etp 2: tensor 2 has 3 x 4
# (sharding of ep 1, etp 1) or 1, data 2 has 2 x 4
experts="num_moe_experts=4 moe_router_topk=2 recompute_granularity=none micro_batch_size=1"
# shellcheck disable=SC2086
sweep experts $experts pipeline_model_parallel_size=1 || fail "sweep experts"
wrote experts 14 14 0
# shellcheck disable=SC2086
# a launch saves nothing, on the disk or in memory: a configuration with memory_save_interval, or whose spikes go
# back to the last save, is measured as others are
sweep expert $experts expert_model_parallel_size=2 pipeline_model_parallel_size=1 --measure 1 --rounds 1 --steps 3 \
    memory_save_interval=1 on_spike=rewind save_interval=10 || fail "sweep expert"
wrote expert 5 5 1
[ "$(grep -c ',2,1,[01],[01],2,' "$work/expert/sweep.csv")" = 5 ] || fail "another ep than 2"
grep -q '^  expert_model_parallel_size: 2$' "$work/out" || fail "the winner does not say its expert ranks"
# nor does it load: experts that begin as copies of a checkpoint's mlp are measured with new ones; its events are its own
"$TRAIN" "$work/tiny.yaml" "save=$work/dense" train_iters=1 > "$work/out" 2> "$work/err" || fail "a dense model"
# shellcheck disable=SC2086
sweep copied $experts expert_model_parallel_size=2 pipeline_model_parallel_size=1 --measure 1 --rounds 1 --steps 3 \
    moe_use_upcycling=true load="$work/dense" tensorboard_dir="$work/events" || fail "sweep copied"
wrote copied 5 5 1
[ ! -e "$work/events" ] || fail "launches write events among those of the user's runs"
# every step has the batch that was predicted, the last one of a schedule: 8 samples are two steps of 4, of which one counts
sweep growing tensor_model_parallel_size=2 recompute_granularity=none micro_batch_size=2 --measure 1 --rounds 1 --steps 3 \
    global_batch_size=null "step_batch_size_schedule='0:2 1K:4'" train_iters=null train_samples=8 || fail "sweep growing"
grep -q '"steps_ms":\[[^,]*\],' "$work/growing/sweep.jsonl" || fail "other batches: $(cat "$work/growing/sweep.jsonl")"
sed 's/memory_gib: 4/memory_gib: 1.001/' "$work/machine.yaml" > "$work/little.yaml"
"$TRAIN" sweep "$work/tiny.yaml" --machine "$work/little.yaml" --world 2 -o "$work/little" > "$work/out" 2> "$work/err" ||
    fail "nothing fits"
grep -q "none fits" "$work/out" || fail "nothing fits, and nobody says so"

# each layout is measured once; a truncated line of sweep.jsonl costs its own layout alone
two="tensor_model_parallel_size=2 recompute_granularity=none sequence_parallel=false"
# shellcheck disable=SC2086
rounds=1
measured() { sweep m $two --steps 3 --rounds $rounds "$@" || fail "measuring: $*"; }
# the folder has files of its user, whose names are like those of a launch, and a launch of a sweep that was killed
mkdir -p "$work/m/run/mine" "$work/m/launch.mine" "$work/m/launch.0123456789abcdef/run"
echo mine > "$work/m/errors"
measured --measure 2
[ "$(tried)" = 2 ] || fail "2 layouts, tried $(tried)"
wrote m 3 3 2
[ "$(cat "$work/m/errors")" = mine ] && [ -d "$work/m/run/mine" ] || fail "a sweep has removed what others have made"
[ "$(cd "$work/m" && echo launch.*)" = launch.mine ] || fail "launches left: $(ls "$work/m")"
sed -n 's/^  \([a-z_]*\): /\1=/p' "$work/out" > "$work/winner"
[ "$(grep -c . "$work/winner")" = 13 ] || fail "the winner has other keys"
# shellcheck disable=SC2046
"$TRAIN" plan "$work/tiny.yaml" --world 2 $(cat "$work/winner") > /dev/null 2> "$work/err" || fail "the winner is refused"
measured --measure all
[ "$(tried)" = 1 ] || fail "1 of 3 was missing, tried $(tried)"
times='\[[0-9][0-9.e-]*,[0-9][0-9.e-]*\]'     # of two steps: three without the first
grep -c "\"steps_ms\":$times,\"reference_product_ms\":$times,\"reference_copy_ms\":$times" "$work/m/sweep.jsonl" |
    grep -qx 3 || fail "no reference beside each step"
truncate -s -20 "$work/m/sweep.jsonl"
measured --measure all
[ "$(tried)" = 1 ] || fail "a cut line: tried $(tried)"
measured --measure all
[ "$(tried)" = 0 ] || fail "all were known, tried $(tried)"
wrote m 3 3 3
measured --measure 1 seed=7
[ "$(tried)" = 1 ] || fail "another configuration's row was taken"
# shellcheck disable=SC2086
sweep m $two --measure 1 --rounds 1 --steps 4 || fail "more steps"
[ "$(tried)" = 1 ] || fail "a row over fewer steps was taken"

# rounds measure each layout once a round, the median launch counts. Layout 1 has two visits from above (the
# second with --steps 4), layout 2 has one.
rounds=3
measured --measure 2
sed -n 's/^\([0-9]* of 2, round [0-9]*\):.*/\1/p' "$work/err" | tr '\n' ';' > "$work/log"
[ "$(cat "$work/log")" = "2 of 2, round 2;1 of 2, round 3;2 of 2, round 3;" ] || fail "rounds: $(cat "$work/log")"
truncate -s -20 "$work/m/sweep.jsonl"
measured --measure 2
[ "$(tried)" = 1 ] || fail "a cut line of the last round: tried $(tried)"
rounds=1
for odd in 1 4; do                         # of 4 launches one, of 7 four
    for _ in $(seq $((odd > 1 ? 3 : 1))); do
        sed -n '1s/"steps_ms":[^]]*/"steps_ms":[1e6,1e6/p' "$work/m/sweep.jsonl" > "$work/line"
        cat "$work/line" >> "$work/m/sweep.jsonl"
    done
    measured --measure all
    [ "$(tried)" = 0 ] || fail "launches of the file do not count: tried $(tried)"
    slow=$(awk -F, 'NR > 1 && $10 > 1e4' "$work/m/sweep.csv" | wc -l)
    wide=$(awk -F, 'NR > 1 && $30 < 1e4 && $31 > 1e4' "$work/m/sweep.csv" | wc -l)
    [ "$wide" = 1 ] || fail "$wide layouts have launches of 1e6 ms and faster ones"
    [ "$slow" = $((odd > 1)) ] || fail "the median of the launches does not count: $odd slow ones, $slow slow layouts"
done

# layouts that do not fit are rows and are not tried; memory is for the second largest micro batch of three
room=$(awk -F, 'NR > 1 {print $12}' "$work/m/sweep.csv" | sort -n | sed -n 2p)
sed "s/memory_gib: 4/memory_gib: $(awk "BEGIN {printf \"%.12f\", ($room + 1) / 2^30 + 1}")/" "$work/machine.yaml" > "$work/part.yaml"
# shellcheck disable=SC2086
"$TRAIN" sweep "$work/tiny.yaml" --machine "$work/part.yaml" --world 2 -o "$work/part" $two --measure all --rounds 1 \
    --steps 2 > "$work/out" 2> "$work/err" || fail "one does not fit"
wrote part 3 2 2
grep -q '^2,.*,4,none,.*,"does not fit"' "$work/part/sweep.csv" || fail "no row for what does not fit"
[ "$(tried)" = 2 ] || fail "2 of 3 fit, tried $(tried)"

# a layout that gets less memory than planned does not end the sweep (a sanitizer needs terabytes of
# addresses)
if (ulimit -v 500000 && "$TRAIN" help) > /dev/null 2>&1; then
    # shellcheck disable=SC2086
    (ulimit -v 500000; sweep limit $two hidden_size=1024 --measure 2) || fail "a layout without memory ended the sweep"
    [ "$(grep -c '"error\[memory\]' "$work/limit/sweep.csv")" = 2 ] && [ "$(tried)" = 2 ] || fail "no reason: memory"
    # memory that was short may be there the next time
    # shellcheck disable=SC2086
    sweep limit $two hidden_size=1024 --measure 1 --rounds 1 --steps 2 || fail "limit, again"
    [ "$(tried)" = 1 ] && [ "$(grep -c '"measured"' "$work/limit/sweep.csv")" = 1 ] || fail "short memory: not tried again"
fi

# layouts that fail are rows
# shellcheck disable=SC2086
sweep late $two --measure 1 --rounds 1 --timeout 0.1 --steps 1000 || fail "a late layout ended the sweep"
grep -q "not through after 0.1 s" "$work/late/sweep.csv" || fail "no reason for a late one"
gone || fail "a late job lives on"
# shellcheck disable=SC2086
sweep late $two --measure 1 --rounds 1 --timeout 600 --steps 3 || fail "late, again"
[ "$(tried)" = 1 ] || fail "more time, and not tried again"
# shellcheck disable=SC2086
sweep wrong $two --measure 1 --steps 9 lr=1000 min_lr=1000 clip_grad=0 || fail "a wrong layout ended the sweep"
grep -q '"error\[' "$work/wrong/sweep.csv" || fail "no reason for a failed one"
[ "$(tried)" = 1 ] || fail "what failed was tried again in the second round"
# shellcheck disable=SC2086
sweep wrong $two --measure 1 --steps 9 lr=1000 min_lr=1000 clip_grad=0 || fail "wrong, again"
[ "$(tried)" = 0 ] || fail "a loss that is not finite was tried again"
# a rank that is killed does not end the sweep; the same command tries the layout again
# shellcheck disable=SC2086
"$TRAIN" sweep "$work/tiny.yaml" --machine "$work/machine.yaml" --world 2 -o "$work/killed" $two --measure 1 --rounds 1 --steps 1000 \
    hidden_size=256 seq_length=256 > "$work/out" 2> "$work/err" &
sweep=$!
while kill -0 $sweep 2> /dev/null; do
    goes_on killed && break
    sleep 0.05
done
kill -KILL "$(ps -eo pid,comm,args | awk -v save="save=$work/killed/launch." '$2 == "train" && index($0, save) { print $1; exit }')"
wait $sweep || fail "a killed rank ended the sweep"
grep -q '"error\[' "$work/killed/sweep.csv" || fail "no reason for a killed one"
# shellcheck disable=SC2086
sweep killed $two --measure 1 --rounds 1 --steps 3 hidden_size=256 seq_length=256 || fail "killed, again"
[ "$(tried)" = 1 ] && grep -q '"measured"' "$work/killed/sweep.csv" || fail "a killed layout was not tried again"
# shellcheck disable=SC2086
sweep nothing $two --measure all data_path="$work/nothing"
[ $? = 3 ] && [ "$(tried)" = 0 ] && [ ! -s "$work/nothing/sweep.jsonl" ] || fail "without a corpus there is nothing to measure"
# the corpus is asked for before this machine is measured, which takes minutes
"$TRAIN" sweep "$work/tiny.yaml" --world 2 --measure 1 -o "$work/unread" data_path="$work/nothing" > "$work/out" 2> "$work/err"
[ $? = 3 ] && ! grep -q 'measuring this machine' "$work/err" || fail "the machine is measured for a sweep without a corpus"

# a sweep stopped while it measures the second layout, which does not end by itself, keeps the first and leaves no
# job; the next measures the rest
mkdir "$work/bin"
cat > "$work/bin/mpirun" <<SH
#!/bin/sh
echo >> "$work/jobs"
[ "\$(wc -l < "$work/jobs")" != 2 ] || set -- "\$@" exit_interval=null
exec "$(command -v mpirun)" "\$@"
SH
chmod +x "$work/bin/mpirun"
for signal in TERM KILL; do
    rm -f "$work/jobs"
    # shellcheck disable=SC2086
    PATH=$work/bin:$PATH "$TRAIN" sweep "$work/tiny.yaml" --machine "$work/machine.yaml" --world 2 -o "$work/$signal" $two --measure all --rounds 1 --steps 60 \
        > /dev/null 2> "$work/err" &
    sweep=$!
    while kill -0 $sweep 2> /dev/null; do
        grep -q "^2 of 3, round 1:" "$work/err" && goes_on $signal && break
        sleep 0.05
    done
    kill -$signal $sweep
    wait $sweep
    [ "$(grep -c steps_ms "$work/$signal/sweep.jsonl")" -le 2 ] || fail "$signal came too late for the test"
    gone || fail "a sweep that SIG$signal ended left a job behind"
    before=$(grep -c steps_ms "$work/$signal/sweep.jsonl")
    [ "$before" -ge 1 ] || fail "$signal lost what was measured"
    # shellcheck disable=SC2086
    sweep $signal $two --measure all --rounds 1 --steps 60 || fail "going on after $signal"
    [ "$(tried)" = $((3 - before)) ] || fail "after $signal: $before known, tried $(tried)"
    wrote $signal 3 3 3
done

# a job that would take minutes ends with its sweep
# shellcheck disable=SC2086
"$TRAIN" sweep "$work/tiny.yaml" --machine "$work/machine.yaml" --world 2 -o "$work/slow" $two --measure 1 --steps 1000 \
    hidden_size=256 seq_length=256 > /dev/null 2> "$work/err" &
sweep=$!
while kill -0 $sweep 2> /dev/null; do
    goes_on slow && break
    sleep 0.05
done
[ "$(alive)" -gt 0 ] || fail "no job to be killed"
kill -KILL $sweep
wait $sweep
gone || fail "a long job outlives its sweep"

# refused arguments are reported in one line
refused() {
    sweep refused "$@"
    rc=$?
    [ $rc = 2 ] && [ "$(grep -c '^error\[.*; change: ' "$work/err")" = 1 ] || fail "$*: $rc"
}
refused --measure x
refused recompute_num_layers=2
refused global_batch_size=null
refused global_batch_size=3 pipeline_model_parallel_size=2 num_virtual_stages_per_pipeline_rank=3
exit 0
