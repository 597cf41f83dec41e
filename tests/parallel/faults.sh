#!/bin/sh
# tests/parallel/faults.sh killed|wrong|long -- jobs of four ranks in which one rank is lost or reads other input.
#   killed  SIGKILL in a forward, a backward, a message, a reduction, an update and a save. All ranks end, one error
#           line names the rank and its instruction, the exit code is 7. The run resumed from its newest checkpoint
#           ends with the bytes of the undisturbed run.
#   wrong   corpora, checkpoints and configurations that one rank cannot use; signals to the launcher
#   long    as killed, with every rank at every site in two layouts
set -u
work=${WORK:-$(mktemp -d)} launch=$PWD/scripts/launch bad=0
. tests/tiny.sh
. tests/parallel/same.sh
real=${TRAIN:-$PWD/$BUILD/train} faulty=$PWD/$BUILD/test_faults
"$real" tokenize src -o "$work/corpus" > /dev/null 2>&1 || exit 1
tiny "$work/tiny.yaml" model.num_layers=4 model.hidden_dropout=0.1 train.global_batch_size=8 train.train_iters=12 \
    optimizer.lr_decay_style=cosine checkpoint.save_interval=4
model='tensor_model_parallel_size=2 pipeline_model_parallel_size=2'
data='pipeline_model_parallel_size=2 data_parallel_sharding_strategy=optim_grads overlap_grad_reduce=true'

fail() { bad=$((bad + 1)); echo "$*"; sed 's/^/    /' "$work/log" | grep -v ' iteration  ' | tail -n 8; }
errors() { grep -c '^error\[' "$work/log"; }

# ---- killed

# undisturbed NAME SETTING... -- trains the run NAME without a fault
undisturbed() {
    name=$1; shift
    "$launch" -n 4 "$work/tiny.yaml" "$@" save="$work/$name" > "$work/log" 2>&1 || fail "the undisturbed run: $?"
}

since_death() { echo "$(date +%s.%N) $(date -r "$work/faults/died" +%s.%N)" | awk '{print int(($1 - $2) * 1000)}'; }
alive() { # the ranks of the job that still run
    for pid in "$work"/faults/[0-9]*; do
        grep -qs '^State:.[^ZX]' "/proc/${pid##*/}/status" && echo "${pid##*/}"
    done
}

# killed RANK SITE ITERATION MICROSECONDS NAME SETTING... -- kills RANK that long after SITE begins, resumes, compares
killed() {
    rank=$1 site=$2 iteration=$3 delay=$4 name=$5; shift 5
    what="rank $rank killed $delay us after the start of $site of iteration $iteration ($name)"
    rm -rf "$work/faults" "$work/run"
    mkdir "$work/faults"
    TRAIN=$faulty FAULT="$rank $site $iteration $delay" FAULT_DIR=$work/faults \
        "$launch" -n 4 "$work/tiny.yaml" "$@" save="$work/run" > "$work/log" 2>&1
    rc=$?
    [ -f "$work/faults/died" ] || { fail "$what: it did not die"; return; }
    while took=$(since_death) && [ -n "$(alive)" ] && [ "$took" -le 60000 ]; do sleep 0.05; done
    slowest=$((took > slowest ? took : slowest))
    [ -z "$(alive)" ] || fail "$what: a rank is left"
    at=$([ "$delay" = 0 ] && echo "$site[0-9/]*[^ ]* of iteration $iteration;" || echo '.* of iteration [0-9]*;')
    [ $rc = 7 ] && [ "$(errors)" = 1 ] &&
        grep -q "^error\[rank-lost\].* rank $rank tp .* died in $at.*change: " "$work/log" ||
        fail "$what: code $rc, $took ms, $(errors) error lines"
    "$launch" -n 4 "$work/tiny.yaml" "$@" save="$work/run" load=latest > "$work/log" 2>&1 || fail "$what: resuming: $?"
    grep -q '^loaded .*resuming after iteration [48]' "$work/log" || fail "$what: nothing was resumed"
    same "$name" "$work/run" "$what"
    cases=$((cases + 1))
}

# shellcheck disable=SC2086
all_killed() {
    cases=0 slowest=0
    undisturbed model $model
    undisturbed data $data
    if [ "$1" = long ]; then
        for rank in 0 1 2 3; do
            for delay in 0 150 700; do
                for site in F B S save; do
                    killed $rank $site $([ $site = save ] && echo 8 || echo 7) $delay model $model
                    killed $rank $site $([ $site = save ] && echo 8 || echo 7) $delay data $data
                done
                killed $rank R 7 $delay data $data
                killed $rank $([ $rank -lt 2 ] && echo SA || echo RA) 7 $delay model $model
                killed $rank $([ $rank -lt 2 ] && echo RG || echo SG) 7 $delay model $model
            done
        done
    else
        killed 0 F 7 200 model $model
        killed 3 B 6 0 model $model
        killed 1 SA 7 0 model $model
        killed 2 SG 5 100 model $model
        killed 3 R 7 0 data $data
        killed 2 S 7 30 data $data
        killed 0 save 8 0 model $model
        killed 1 save 8 500 model $model
        killed 2 save 12 900 data $data async_save=true
    fi
    echo "# $cases kills, the slowest end took $slowest ms"
}

# ---- wrong

# Makes two folders and a program that starts rank 2 in $work/odd and the others in $work/even: the same relative paths
# lead to different files
two_folders() {
    rm -rf "$work/even" "$work/odd"
    mkdir "$work/even"
    cp "$work/corpus.bin" "$work/corpus.idx" "$work/even"
    sed "s,$work/corpus,corpus," "$work/tiny.yaml" > "$work/even/tiny.yaml"
    cp -r "$work/checkpoints" "$work/even/"
    cp -r "$work/even" "$work/odd"
    cat > "$work/split" <<SH
#!/bin/sh
[ \$OMPI_COMM_WORLD_RANK = 2 ] && cd "$work/odd" || cd "$work/even"
exec "$real" "\$@"
SH
    chmod +x "$work/split"
}

# expect CODE WORDS EXECUTABLE ARGUMENTS... -- the job ends with CODE and one error line that holds WORDS, and never hangs
expect() {
    code=$1 says=$2 exe=$3; shift 3
    TRAIN=$exe timeout 240 "$launch" -n 4 "$@" > "$work/log" 2>&1
    rc=$?
    [ $rc = "$code" ] && [ "$(errors)" = 1 ] && grep -q "^error\[.*$says.*change: " "$work/log" ||
        fail "$*: code $rc not $code, $(errors) error lines, wanted '$says'"
    cases=$((cases + 1))
}
odd() { two_folders; (cd "$work/odd" && eval "$1") || fail "$1"; expect "$2" "$3" "$work/split" tiny.yaml $model $4; }

# shellcheck disable=SC2086
all_wrong() {
    cases=0
    "$launch" -n 4 "$work/tiny.yaml" $model save="$work" > "$work/log" 2>&1 || fail "a run to load from: $?"
    half="truncate -s \$((\$(stat -c %s corpus.bin) / 2))"
    save="save=$work/other"
    odd "printf X | dd of=corpus.bin bs=1 seek=5000 conv=notrunc 2> /dev/null" 3 "rank 2 .*other bytes" \
        "$save"
    odd "$half corpus.bin" 3 "rank 2 .*corpus.bin" "$save"
    odd "rm corpus.idx" 3 "rank 2 .*corpus" "$save"
    odd "sed -i 's/lr: 0.01/lr: 0.02/' tiny.yaml" 2 "rank 2 .*lr is 0.02" "$save"
    odd "rm checkpoints/iter_0000012/model-00002*" 4 "rank 2 .*model-00002" "$save load=."
    odd "cp checkpoints/iter_0000008/manifest.json checkpoints/iter_0000012/" 4 "iter_0000012.*manifest" "$save load=."

    # a missing shard, one too many, one in two places, one of another step: one error line names the shard
    for harm in "rm model-00002.safetensors" "cp optim-00001.safetensors optim-00007.safetensors" \
        "cp model-00000.safetensors model-00001.safetensors" "cp ../iter_0000008/optim-00003.safetensors ."; do
        rm -rf "$work/load"
        mkdir "$work/load"
        cp -r "$work/checkpoints" "$work/load"
        (cd "$work/load/checkpoints/iter_0000012" && $harm) || fail "$harm"
        shard=$(echo "$harm" | sed 's/.*\(\(model\|optim\)-[0-9]*\)[^0-9]*$/\1/')
        expect 4 "$shard" "$real" "$work/tiny.yaml" $model $save load="$work/load"
    done
    rm -rf "$work/other"
    "$launch" -n 4 "$work/tiny.yaml" $model $save load="$work/load" on_corrupt=previous > "$work/log" 2>&1 &&
        grep -q 'resuming after iteration 8' "$work/log" || fail "on_corrupt=previous"

    rm -rf "$work/other"

    # a checkpoint of another model: one error line names every field that differs
    expect 4 "num_layers.*hidden_size.*ffn_hidden_size.*num_attention_heads.*vocab_size.*normal.*activation.*untie" \
        "$real" "$work/tiny.yaml" $model $save load="$work/load" num_layers=2 hidden_size=48 ffn_hidden_size=96 \
        num_attention_heads=2 tokenizer_type=none vocab_size=300 activation=relu normalization=RMSNorm \
        untie_embeddings_and_output_weights=true

    # no checkpoint is whole: on_corrupt=previous, which is set, is not advised again
    for all in "$work"/load/checkpoints/iter_*/manifest.json; do echo x >> "$all"; done
    expect 4 "iter_0000004: manifest.json" "$real" "$work/tiny.yaml" $model $save load="$work/load" on_corrupt=previous
    grep -q '; change: load=DIR, another checkpoint' "$work/log" || fail "on_corrupt=previous is advised again"

    # settings that break rules: one list of all problems, exit code 2
    expect 2 "problems\? in" "$real" "$work/tiny.yaml" tensor_model_parallel_size=3
    expect 2 "problems\? in" "$real" "$work/tiny.yaml" tensor_model_parallel_size=4 sequence_parallel=true \
        seq_length=30 num_attention_heads=6 global_batch_size=7 micro_batch_size=2
    for key in num_attention_heads seq_length global_batch_size; do
        [ "$(grep -c "$key" "$work/log")" -ge 1 ] || fail "$key is not in the list"
    done
    expect 2 "problems\? in" "$real" "$work/tiny.yaml" pipeline_model_parallel_size=4 \
        num_virtual_stages_per_pipeline_rank=3 pipeline_schedule=interleaved global_batch_size=3

    # a signal to the launcher: the run saves, ends with 75 and can be resumed
    mkdir "$work/tmp"
    for signal in USR1 TERM; do
        rm -rf "$work/run"
        : > "$work/log"
        TMPDIR=$work/tmp "$launch" -n 4 "$work/tiny.yaml" $model save="$work/run" train_iters=100000 lr_decay_iters=12 \
            save_interval=7 > "$work/log" 2>&1 &
        job=$!
        # `together`: the launcher knows that the ranks have found each other, and asks them to save at a SIGTERM
        until grep -q 'iteration        9/' "$work/log" && [ -e "$work"/tmp/gridiron.*/together ]; do
            kill -0 $job 2> /dev/null || break
            sleep 0.02
        done
        kill -$signal $job
        wait $job
        rc=$?
        [ $rc = 75 ] || fail "SIG$signal: $rc"
        [ "$(errors)" = 0 ] || fail "SIG$signal: an error line"
        grep -q 'iteration        9/' "$work/log" || fail "SIG$signal came before its time"
        tail -n 1 "$work/run/metrics.jsonl" | grep -q "\"iteration\": $(saved)," || fail "SIG$signal: saved $(saved)"
        "$launch" -n 4 "$work/tiny.yaml" $model save="$work/run" load=latest train_iters=$(($(saved) + 2)) \
            lr_decay_iters=12 > "$work/log" 2>&1 || fail "SIG$signal: the run does not resume: $?"
    done
    echo "# $cases wrong inputs"
}
saved() { ls "$work/run/checkpoints" | sed -n 's/^iter_0*//p' | tail -n 1; }

case $1 in
killed | long) all_killed "$1" ;;
wrong) all_wrong ;;
esac
[ $bad = 0 ]
