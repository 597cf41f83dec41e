#!/bin/bash
# tests/same.sh OLD [NEW] -- checks that a refactoring changes nothing a user sees. The executables OLD and NEW (by default
# $TRAIN or ./train) make the same runs, and their output is compared byte for byte: files of checkpoints, metrics.jsonl,
# config.yaml, standard output, dumps, tables, help, error texts and exit codes. Times, dates, ids, the build's name and
# measured memory are taken out first; pictures and pages are not compared. `make test-same OLD=PATH`.
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
old=${1:?usage: tests/same.sh OLD_TRAIN [NEW_TRAIN]} new=${2:-${TRAIN:-$top/train}}
work=${WORK:-$(mktemp -d)}
[ -n "${WORK:-}" ] || trap 'rm -rf "$work"' EXIT

number='[0-9.eE+-]*'
hide() { # takes out what differs between two runs of one executable: times, dates, ids, build, memory
    sed -E "s/ \[20[-0-9]+ [0-9:.]+\]//
        s/(elapsed time per iteration \(ms\)|throughput per GPU \(TFLOP\/s\/GPU\)|tokens\/s|memory \(GiB\)|time left): [^|]*/\1/g
        s/(tokenize \[)?=*\] *100%.*|in $number s, $number MB\/s//g
        s/bubble of iteration.*//
        /iteration [0-9]+ waits for the checkpoint/d
        s/(\"(elapsed_ms|goodput|tokens_per_second|tflops_per_device|mfu|memory_bytes|(data|forward|backward|optimizer|checkpoint|eval)_ms)\": )[^,}]*/\1/g
        s/(\"?run_id\"?|\"id\"|\"build\"|\"hash\"|build|run id)( *:? *)(\"[^\"]*\"|[0-9a-f]{16})(.?)$/\1\2\4/
        s/\"run_id\": ?\"[0-9a-f]*\"//g
        s/\"(started|ended|created|time)\": ?[\"0-9.:TZ +-]*//g
        s/gridiron [0-9a-f]{7,}(-dirty)?/gridiron BUILD/g" "$@"
}

# row NAME RANKS WORDS... -- runs `train WORDS...`; its output goes to NAME.out and NAME.err, its exit code to NAME.code
row() {
    local name=$1 ranks=$2
    shift 2
    if [ "$ranks" = 1 ]; then "$train" "$@"; else TRAIN=$train tree/scripts/launch -n "$ranks" "$@"; fi \
        > "$name.out" 2> "$name.err" < /dev/null
    echo "$?: $*" > "$name.code"
}
run() { # NAME RANKS WORDS...: trains tiny.yaml with the words on the command line and saves to NAME
    local name=$1 ranks=$2
    shift 2
    row "$name" "$ranks" tiny.yaml save="$name" "$@"
}

tiny() {
    cat << 'YAML'
model: {num_layers: 4, hidden_size: 32, num_attention_heads: 4, seq_length: 32}
data: {data_path: corpus, tokenizer_type: byte, split: '90, 10, 0'}
train: {micro_batch_size: 1, global_batch_size: 8, train_iters: 4, eval_interval: 2, eval_iters: 2}
optimizer: {lr: 0.01, lr_decay_style: cosine, lr_warmup_iters: 1}
log: {log_interval: 1}
YAML
}

# ---- thirty runs

runs() {
    local tp=tensor_model_parallel_size pp=pipeline_model_parallel_size by=pipeline_schedule \
          vpp=num_virtual_stages_per_pipeline_rank zero=data_parallel_sharding_strategy \
          untied=untie_embeddings_and_output_weights=true still="hidden_dropout=0 attention_dropout=0"
    row corpus 1 tokenize tree/tests/golden/llama.yaml tree/tests/model tree/tests/scripts/launch.sh -o corpus --threads 2
    row llama-in 1 import tree/tests/golden/llama -o llama-in
    row gpt2-in 1 import tree/tests/golden/gpt2 -o gpt2-in
    run one 1
    run fp64 1 params_dtype=fp64 $untied log_params_norm=true log_num_zeros_in_grad=true
    run bf16 1 params_dtype=bf16 optimizer=sgd sgd_nesterov=true lr_decay_style=WSD lr_wsd_decay_iters=2 cpu_isa=avx2
    run fp16 1 params_dtype=fp16 initial_loss_scale=1e9 step_batch_size_schedule="'0:2 128:4'" global_batch_size=null
    row llama 1 tree/tests/golden/llama.yaml data_path=tree/tests/golden/corpus load=llama-in save=llama
    row gpt2 2 tree/tests/golden/gpt2.yaml data_path=tree/tests/golden/corpus load=gpt2-in save=gpt2 params_dtype=fp64
    run tp2 2 $tp=2
    run tp4-sequence 4 $tp=4 sequence_parallel=true params_dtype=bf16 activation=swiglu normalization=RMSNorm
    run dp2-zero0 2 overlap_grad_reduce=true optimizer=lars
    run dp2-zero1 2 $zero=optim optimizer=lamb
    run dp2-zero2 2 $zero=optim_grads overlap_grad_reduce=true params_dtype=bf16
    run dp4-zero3 4 $zero=optim_grads_params overlap_param_gather=true overlap_grad_reduce=true $untied
    run pp2 2 $pp=2
    run pp2-gpipe 2 $pp=2 $by=gpipe params_dtype=fp64 num_layers_in_first_pipeline_stage=1
    run pp2-interleaved 2 $pp=2 $by=interleaved $vpp=2
    run pp4-zb-h1 4 $pp=4 $by=zb-h1 $untied
    run pp2-zb-h2 2 $pp=2 $by=zb-h2 params_dtype=bf16
    run pp2-zb-v 2 $pp=2 $by=zb-v
    run pp2-v-half 2 $pp=2 $by=v-half $untied
    run pp2-v-min 2 $pp=2 $by=v-min params_dtype=fp16 initial_loss_scale=1024
    run pp2-dualpipev 2 $pp=2 $by=dualpipev
    run pp2-zb-auto 2 $pp=2 $by=zb-auto pipeline_max_activations=3
    printf '0F0,0F1,0I0,0F2,0W0,0B1,0F3,0I2,0F4,0W2,0B3,0F5,0I4,0F6,0W4,0B5,0F7,0I6,0W6,0B7\n' > custom.csv
    printf '1F0,1I0,1F1,1W0,1B1,1F2,1I2,1F3,1W2,1B3,1F4,1I4,,1F5,1W4,1B5,1F6,1I6,1F7,1W6,1B7\n' >> custom.csv
    run pp2-custom 2 $pp=2 $by=custom pipeline_schedule_file=custom.csv
    run tp2-pp2 4 $tp=2 $pp=2 sequence_parallel=true recompute_granularity=selective trace_steps='[2]'
    run pp2-dp2-zero3 4 $pp=2 $by=zb-v $zero=optim_grads_params $still rank_order=tp-cp-ep-pp-dp
    run recompute 1 recompute_granularity=full recompute_method=uniform recompute_num_layers=2 position_embedding_type=rope \
        num_query_groups=2 window_size=9 reset_attention_mask=true reset_position_ids=true
    run offload 2 $zero=optim optimizer_cpu_offload=true cpu_offloading_num_layers=2 optimizer_offload_fraction=0.5
    run stopped 1 exit_interval=2 async_save=true save_interval=1 save_keep_last=2
    cp -r stopped resumed
    run resumed 1 load=latest
    cp -r stopped resharded
    run resharded 4 load=latest $tp=2 $pp=2 $by=interleaved $vpp=2
    run eight 8 $tp=2 $pp=2 $by=interleaved $vpp=2 $zero=optim_grads_params sequence_parallel=true params_dtype=bf16
}

# ---- commands that read the runs, and tables

reads() {
    local two="tensor_model_parallel_size=2 pipeline_model_parallel_size=2"
    row dump 1 dump tiny.yaml -o dump.safetensors params_dtype=fp64
    row dump-four 4 dump tiny.yaml -o dump-four.safetensors $two load=tp2
    row dump-hf 1 dump tree/tests/golden/llama.yaml data_path=tree/tests/golden/corpus load=llama --names hf -o dump-hf.safetensors
    row verify 4 verify tiny.yaml $two params_dtype=fp64 pipeline_schedule=zb-v --json
    row eval 1 eval load=one --json
    row eval-two 2 eval tiny.yaml load=tp2 --split train --json tensor_model_parallel_size=2
    row generate 1 generate load=one --prompt 'set -' --tokens 24 --temperature 0.9 --top-k 20 --top-p 0.95
    row generate-two 2 generate load=pp2 --prompt 'run' --tokens 16 --temperature 0 pipeline_model_parallel_size=2
    row export 1 export llama -o hf-llama
    row export-shards 1 export gpt2 -o hf-gpt2 --shard-bytes 20000
    row inspect-corpus 1 inspect corpus --json
    row inspect-checkpoint 1 inspect tp2-pp2/checkpoints/iter_0000004
    row inspect-hf 1 inspect hf-llama --json
    row inspect-run 1 inspect resumed --json
}

tables() {
    local name chunks large=configs/gpt-39b.yaml \
          parts="tensor_model_parallel_size=8 pipeline_model_parallel_size=4 num_virtual_stages_per_pipeline_rank=2"
    for name in a100-80gb h100 h200; do
        row "plan-$name" 1 plan $large $parts --world 512 --machine $name --json
        row "plan-explain-$name" 1 plan $large $parts --world 512 --machine $name --explain
    done
    row plan 1 plan tiny.yaml --world 8 tensor_model_parallel_size=2 pipeline_model_parallel_size=2 --json
    row plan-fp8 1 plan configs/llama-1.1b.yaml --world 16 --machine h100 --json pipeline_model_parallel_size=2 fp8=hybrid device=cuda
    row plan-zb-auto 1 plan configs/llama-1.1b.yaml --world 2 --machine h100 pipeline_model_parallel_size=2 pipeline_schedule=zb-auto
    row plan-offload 1 plan configs/gpu/7b.yaml --world 8 --machine h100 --explain
    row sweep 1 sweep tiny.yaml --world 8 --machine h100 --json --csv sweep.csv
    for name in gpipe 1f1b interleaved zb-h1 zb-h2 zb-v v-half v-min dualpipev zb-auto; do
        chunks=
        [ $name != interleaved ] || chunks=num_virtual_stages_per_pipeline_rank=2
        set -- tiny.yaml pipeline_model_parallel_size=2 pipeline_schedule=$name $chunks
        row "schedule-$name" 1 schedule "$@" --world 2 --csv "schedule-$name.csv" --trace "schedule-$name.trace"
        row "schedule-json-$name" 1 schedule "$@" --world 4 data_parallel_sharding_strategy=optim_grads_params --json
    done
    row bubble 1 bubble tiny.yaml --simulate --schedules 1f1b,interleaved,zb-h1,zb-h2,zb-v,v-half,v-min,zb-auto,gpipe,dualpipev \
        --p 2,4 --m 8,16 --v 1,2 --csv bubble.csv clock_p2p_ms=0.1
    for name in controllable_memory megatron_sc21 zero_bubble; do
        row "bubble-$name" 1 bubble configs/bubble/$name.yaml --simulate --json
    done
}

helps() {
    local name
    row help 1 help
    row help-keys 1 help keys
    for name in run plan schedule bubble sweep tokenize generate eval import export dump verify inspect help \
                model parallel precision log clock lr split pipeline_schedule cpu_isa optimizer nothing; do
        row "help-$name" 1 help $name
        row "help-$name-flag" 1 $name --help
    done
}

# ---- refused input

errors() {
    local two="tensor_model_parallel_size=2 pipeline_model_parallel_size=2"
    row error-none 1
    row error-command 1 trian tiny.yaml
    row error-file 1 none.yaml
    row error-keys 1 tiny.yaml lerning_rate=3 num_layers=many hidden_size=30 lr=-1
    row error-flag 1 schedule tiny.yaml --jason
    row error-value 1 plan tiny.yaml --world
    row error-world 1 plan tiny.yaml --world 3 tensor_model_parallel_size=2
    row error-machine 1 plan tiny.yaml --machine h1000
    row error-ranks 3 tiny.yaml $two save=error
    row error-alone 2 export one -o error
    row error-rules 1 schedule tiny.yaml --world 2 pipeline_schedule=interleaved pipeline_model_parallel_size=2 global_batch_size=3
    row error-layers 1 schedule tiny.yaml --world 8 pipeline_model_parallel_size=8
    row error-zb-v 1 schedule tiny.yaml --world 4 pipeline_model_parallel_size=4 pipeline_schedule=zb-v
    row error-moe 1 plan tiny.yaml num_moe_experts=4 context_parallel_size=2
    row error-schedules 1 bubble tiny.yaml --simulate --schedules 1f1b,two --p 0
    row error-corpus 1 tiny.yaml data_path=none save=error
    row error-load 1 tiny.yaml load=none save=error
    row error-again 1 tiny.yaml save=one
    row error-resume 1 tiny.yaml save=one load=latest hidden_size=64 seed=2
    row error-device 1 tiny.yaml device=cuda save=error
    row error-memory 1 tiny.yaml hidden_size=65536 num_layers=10000 save=error
    row error-import 1 import tree/README.md -o error
    row error-export 1 export none -o error
    row error-inspect 1 inspect none
    row error-generate 1 generate --prompt x
    row error-nan 2 tiny.yaml save=nan init_method_std=1000 lr=1000 clip_grad=0 optimizer=sgd train_iters=9 tensor_model_parallel_size=2
    cp -r one torn
    truncate -s -9 torn/checkpoints/iter_0000004/manifest.json
    row error-torn 1 tiny.yaml save=torn load=latest
    row inspect-torn 1 inspect torn --json
}

# record FOLDER EXECUTABLE -- makes all runs in FOLDER, under the same names for both executables; then takes out what is
# not compared
record() {
    local file
    mkdir -p "$1/bin"
    cp "$2" "$1/bin/train" && cd "$1" || exit 2
    train=bin/train
    ln -s "$top" tree
    ln -s "$top/configs" configs
    tiny > tiny.yaml
    runs
    reads
    tables
    helps
    errors
    for file in */trace.json; do # of a trace only the names of its instructions are compared
        grep -o '"name":"[^"]*","cat":"[A-Z]*"' "$file" > "$file.names"
    done
    rm -rf bin tree configs torn
    find . \( -name .lock -o -name '*.html' -o -name 'events.out.tfevents.*' -o -name run.json -o -name trace.json \) -exec rm {} +
    for file in *.out *.err $(find . -name '*.jsonl' -o -name config.yaml -o -name manifest.json); do
        hide "$file" > hidden
        mv hidden "$file"
    done
}

(record "$work/old" "$old") &
(record "$work/new" "$new")
wait
[ "$(cat "$work"/new/{one,eight,llama,resharded}.code | cut -c 1-2 | tr -d '\n')" = 0:0:0:0: ] || { echo "the runs do not run"; exit 1; }
diff -rq "$work/old" "$work/new" > "$work/differ" || {
    while read -r line; do
        echo "$line"
        case $line in
        *.out\ differ | *.err\ differ | *.code\ differ | *.jsonl\ differ | *.csv\ differ | *.yaml\ differ)
            # shellcheck disable=SC2046
            diff $(echo "$line" | sed -E 's/Files (.*) and (.*) differ/\1 \2/') | cut -c 1-240 | head -n 12 ;;
        esac
    done < "$work/differ"
    echo "$(wc -l < "$work/differ") of $(find "$work/new" -type f | wc -l) files differ"
    exit 1
}
echo "the same $(find "$work/new" -type f | wc -l) files, of $(find "$work/new" -name '*.code' | wc -l) commands"
