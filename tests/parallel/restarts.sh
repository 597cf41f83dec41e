#!/bin/sh
# tests/parallel/restarts.sh [N] -- scripts/launch --restarts: runs whose ranks are killed, stopped or crash at random
# instructions end by themselves with the bytes of an undisturbed run; the same death twice ends with 93; a configuration
# error, a signal and the last restart end as without; nothing is left. With N: that many disturbed runs.
set -u
work=${WORK:-$(mktemp -d)} launch=${SCRIPTS:-$PWD/scripts}/launch train=${TRAIN:-$PWD/$BUILD/train} faulty=$PWD/$BUILD/test_faults
. tests/tiny.sh
. tests/parallel/same.sh
. tests/parallel/planned.sh
tiny "$work/tiny.yaml" model.num_layers=4 model.hidden_dropout=0.1 train.global_batch_size=8 train.train_iters=12 \
    optimizer.lr_decay_style=cosine checkpoint.save_interval=3
errors() { grep -c '^error\[' "$work/log"; }
restarted() { grep -c '^restart [0-9]* of [0-9]*: code [0-9]*, .*; [0-9.]* s lost; goes on after ' "$work/log"; }

# disturbed NAME SEED SETTING... -- three faults at random instructions, the later ones perhaps some ms after it: a run
# may be over by then
disturbed() {
    name=$1 seed=$2; shift 2
    faults=$(awk -v seed="$seed" 'BEGIN {
        srand(seed); n = split("F B S F B save", site, " "); m = split("kill kill kill segv", how, " ")
        for (i = 0; i < 3; i++) { at = site[1 + int(rand() * n)]
            print int(rand() * 4), at, at == "save" ? 3 * (i + 1) : 2 + 3 * i + int(rand() * 4), (i > 0) * int(rand() * 2) * int(rand() * 700), how[1 + int(rand() * m)] } }')
    run 0 "$faults\n" 9 "$@"
    same "$name" "$work/run" "seed $seed ($name)"
    [ "$(errors)" = 0 ] && [ "$(restarted)" -ge 1 ] || fail "seed $seed: $(errors) error lines, $(restarted) restarts"
    total=$((total + $(restarted)))
}

runs "${1:-2}"
echo "# $i runs, $total restarts"
# shellcheck disable=SC2086
if [ -z "${1:-}" ]; then
    run 93 '3 B 5 0\n3 B 5 0\n' 5 $model                # the same death twice
    [ "$(errors)" = 1 ] && grep -q '^error\[crash-loop\] died twice .* rank 3 tp .* died in B0.0 of iteration 5.*; change: ' \
        "$work/log" && [ "$(restarted)" = 1 ] || fail "crash loop"
    eval "$(grep '^cause()' "${launch}_restarts")"       # another rank or the launcher tells of one death
    place='rank 3 tp 1 cp 0 dp 0 pp 1' what='died in B0.0 of iteration 5; change: see what killed it'
    [ "$(cause "error[rank-lost] [rank 0 tp 0 cp 0 dp 0 pp 0] $place (process 31) $what")" = \
        "$(cause "error[rank-lost] $place (signal 9) $what")" ] || fail "two lines of one death"
    eval "$(sed -n '/^states()/,/^}/p;/^newest()/p' "${launch}_restarts")"     # a save that is not whole is no state to go on from
    copies() { :; }
    for half in iter_0000003.tmp iter_0000006.damaged; do
        mkdir -p "$work/half/checkpoints/$half" && : > "$work/half/checkpoints/$half/manifest.json"
    done
    [ -z "$(states "$work/half")" ] || fail "goes on after $(states "$work/half")"
    many=$work/many/checkpoints                         # names that are too long together for the arguments of a program
    seq -f "$many/iter_%07.0f" 1 4000 | xargs mkdir -p
    seq -f "$many/iter_%07.0f/manifest.json" 1 4000 | xargs touch
    [ "$(ulimit -s 512; newest "$work/many")" = 4000 ] || fail "does not see the newest of 4000 checkpoints"
    rm -r "$work/many"
    run 0 '3 B 5 0 die\n3 B 6 0 die\n' 5 $model        # the same line, but at another step
    [ "$(restarted)" = 2 ] || fail "two steps of one error line"
    run 93 '3 B 5 0 die\n3 B 5 0 die\n' 5 $model       # the same line at the same step
    grep -q '^error\[crash-loop\] died twice in the same way at step 5: error\[memory\]' "$work/log" || fail "one step"
    run 0 '3 B 5 0 job\n3 B 6 0 job\n' 5 $model        # launch_job, which keeps the step, is killed
    [ "$(restarted)" = 2 ] || fail "launch_job killed at two steps"
    same model "$work/run" "launch_job killed at two steps"
    eval "$(sed -n '/^record()/,/^}/p' "${launch}_restarts")"      # behind a line that a full disk has cut
    mkdir "$work/cut" && printf '{"time": 1, "co' > "$work/cut/restarts.jsonl"
    (run=$work/cut rc=7 line=; record 1.5 4; record 2.5 null)
    [ "$(sed -n '2,$p' "$work/cut/restarts.jsonl" | "$PYTHON" -c 'import json, sys; print([json.loads(l)["lost_s"] for l in sys.stdin])')" = '[1.5, 2.5]' ] ||
        fail "a failure behind a cut line: $(cat "$work/cut/restarts.jsonl")"
    eval "$(grep '^age()' "${launch}_restarts")"        # a file server whose clock is ahead
    touch -d '+1 hour' "$work/ahead"
    [ "$(age "$work/ahead")" = 0 ] || fail "a file of the next hour is $(age "$work/ahead") s old"
    # the time before a restart, which waits for 1 s, counts; then an hour is over
    echo "[ \"\$OMPI_COMM_WORLD_RANK\" != 0 ] || echo \"\$GRIDIRON_AGE\" > '$work/age'; GRIDIRON_AGE=3600" > "$work/before.2"
    # shellcheck disable=SC2086
    run 75 '1 F 2 0\n' 3 $data exit_duration_in_mins=60
    awk '{ exit $1 < 1 }' "$work/age" && grep -q '^stopped at exit_duration_in_mins with a checkpoint: iteration 1 of 12' "$work/log" ||
        fail "exit_duration_in_mins after a restart: $(cat "$work/age")"
    ranks=1                                             # the launcher alone sees these: two steps of one cause
    run 0 '0 B 5 0\n0 B 6 0\n' 5
    [ "$(grep -c '^restart .* rank 0 .*died in B0.0 of iteration [56]; .* goes on after iteration 3 ' "$work/log")" = 2 ] ||
        fail "two steps of a rank that has no other beside it"
    ranks=4
    run 93 '3 B 5 0\n2 F 5 0\n1 B 4 0\n0 F 5 0\n' 9 $model        # three restarts without a new step
    causes='1: code 7, .* rank 2 .*; 2: code 7, .* rank 1 .*; 3: code 7, .* rank 0 '
    [ "$(errors)" = 1 ] && [ "$(restarted)" = 3 ] && grep -q "^error\[crash-loop\] three restarts .*the furthest: 5); $causes.*; change: " \
        "$work/log" || fail "three restarts without a new step"
    [ "$(grep -c 'goes on after iteration 3 at once' "$work/log")" = 1 ] &&
        [ "$(sed -n 's/^restart .* iteration 3 in \(.*\) s$/\1/p' "$work/log" | tr '\n' ' ')" = '1 2 ' ] || fail "the waits"
    run 7 '3 B 5 0\n2 F 5 0\n' 1 $model                 # no restart is left
    [ "$(errors)" = 1 ] && grep -q '^error\[rank-lost\].* rank 2 .*change: ' "$work/log" || fail "the last restart"
    run 2 '' 3 $model seq_length=30 sequence_parallel=true num_attention_heads=3
    [ "$(restarted)" = 0 ] || fail "a configuration error was started again"
    run 0 '1 F 2 0\n0 B 5 0 stop\n' 3 $data hang_timeout=2     # before the first save: from the beginning; a hang
    same data "$work/run" "before the first save"
    [ "$(restarted)" = 2 ] || fail "a death and a hang"
    grep -q 'goes on after the beginning' "$work/log" || fail "before the first save"
    top=$PWD                                            # a folder whose name looks like an option, from its checkpoint
    cd "$work" || exit 1
    run 0 '1 F 5 0\n' 3 $data save=-run
    grep -q 'goes on after iteration 3 at once' "$work/log" || fail "a name with a dash"
    same data ./-run "a name with a dash"
    cd "$top" || exit 1
    # before the first save of a run that begins with a checkpoint of another, or with its own empty folder: in place
    for from in "load=$work/data train_iters=18 save_interval=6" "load=$work/data finetune=true save_interval=6" "load=$work/run"; do
        case $from in
        *train_iters*) name=longer plan='1 F 14 0\n0 B 15 0\n' ;;
        *finetune*)    name=tuned plan='1 F 2 0\n0 B 5 0\n' ;;
        *)             name=data plan='1 F 2 0\n0 B 3 0\n' ;;
        esac
        # shellcheck disable=SC2086
        [ $name = data ] || "$launch" -n 4 "$work/tiny.yaml" $data save="$work/$name" $from > "$work/log" 2>&1 || fail "$from: $?"
        # shellcheck disable=SC2086
        run 0 "$plan" 3 $data $from
        same $name "$work/run" "$from"
        [ "$(restarted)" = 2 ] && [ "$(wc -l < "$work/run/restarts.jsonl")" = 2 ] || fail "$from: the failures"
        for aside in "$work"/run.*; do [ ! -e "$aside" ] || fail "$from: $aside"; done
        rm -rf "$work"/run.*
    done
    # a file server that is away for some time: the same death again and again, also of a start that cannot read its files, is
    # no crash loop until the time is over; a run that has not begun, or another cause, ends at once
    away='0 start 0 0 eio\n'
    ranks=2
    "$launch" -n 2 "$work/tiny.yaml" save="$work/two" > "$work/log" 2>&1 || fail "two ranks: $?"
    run 0 "1 B 5 0\n$away$away$away" 9
    same two "$work/run" "a file server that is away"
    [ "$(sed -n 's/^restart .*Input.output error.* iteration 3 in \(.*\) s$/\1/p' "$work/log" | tr '\n' ' ')" = '1 2 4 ' ] ||
        fail "the waits for a file server"
    GRIDIRON_OUTAGE_SECONDS=1 run 93 "1 B 5 0\n$away$away$away$away" 9
    grep -q '^error\[crash-loop\] died twice .*Input/output error; change: ' "$work/log" || fail "away for longer than that"
    for wrong in 2 3 4; do
        # rank 0 alone: the other might be ended before it has counted this start
        says="[ \"\$OMPI_COMM_WORLD_RANK\" != 0 ] || { echo 'error[made-up] cannot read it: Stale file handle; change: it' >&2; exit $wrong; }"
        echo "$says" > "$work/before.2"
        run 0 '1 B 5 0\n' 9
        [ "$(restarted)" = 2 ] || fail "code $wrong of a file server that is away"
    done
    echo "$says" > "$work/before.1"
    run 4 '' 9
    echo "echo 'error[made-up] wrong; change: it' >&2; exit 4" > "$work/before.2"
    run 4 '1 B 5 0\n' 9
    "$train" plan /proc/self/mem > "$work/log" 2>&1            # a configuration that opens and cannot be read
    grep -q '^error\[config\] /proc/self/mem: cannot be read: Input/output error; change: ' "$work/log" || fail "no reason in the line"
    run 0 '0 B 5 0 disk\n0 B 5 0 disk\n' 9 save_interval=null save_at_end=false hang_timeout=2
    [ "$(grep -c '^restart .* a disk or file system does not answer; ' "$work/log")" = 2 ] || fail "a file server that does not answer"
    # the lock of a start that is over stays for some time, as that of a host that is lost does; another job's ends this one
    held="[ \"\$OMPI_COMM_WORLD_RANK\" != 0 ] || { flock '$work/run/.lock' sh -c ': > $work/held; exec sleep 60' > '$work/out' 2>&1 &
        until [ -e '$work/held' ]; do sleep 0.05; done; }"
    echo "$held" > "$work/before.2"
    run 0 '1 B 5 0\n' 9
    grep -q '^restart 2 of 9: code 4, error\[save\] .*another job (process ' "$work/log" || fail "a lock that stays"
    same two "$work/run" "a lock that stays"
    rm "$work/held"
    echo "[ \"\$OMPI_COMM_WORLD_RANK\" != 0 ] || echo 'process 1 on other' > '$work/run/.lock'; $held" > "$work/before.2"
    run 4 '1 B 5 0\n' 9
    # checkpoints that the launcher could not see, and the ranks can: no other run begins in their place
    mkdir "$work/bin"
    for tool in ls find; do
        printf '#!/bin/sh\n[ ! -e %s ] || case "$*" in */run/*) exit 2 ;; esac\nexec %s "$@"\n' "$work/unseen" \
            "$(command -v $tool)" > "$work/bin/$tool"
        chmod +x "$work/bin/$tool"
    done
    for replaces in true false; do
        : > "$work/unseen"
        echo "rm -f '$work/unseen'" > "$work/before.2"
        PATH=$work/bin:$PATH run 0 '1 B 5 0\n' 9 overwrite=$replaces
        [ ! -e "$work/run.1" ] || fail "the run was moved aside"
        same two "$work/run" "checkpoints that were not seen"
        grep -q '^restart 2 of 9: code 5, error\[run-directory\] .* goes on after iteration 3 at once' "$work/log" || fail "not seen"
    done
    # nor does the line of a failure say so
    echo ": > '$work/unseen'" > "$work/before.2"
    echo "rm -f '$work/unseen'" > "$work/before.3"
    PATH=$work/bin:$PATH run 0 '1 B 5 0\n0 B 6 0\n' 9
    grep -q '^restart 2 of 9: .* goes on after iteration 3 in 1 s' "$work/log" || fail "the line of checkpoints that were not seen"
    # a folder whose file system is not mounted any more: nothing begins in the empty place
    first="[ \"\$OMPI_COMM_WORLD_RANK\" != 0 ] ||"
    for saves in 3 null; do
        echo "$first mv '$work/run' '$work/aside'" > "$work/before.2"
        echo "$first { rm -rf '$work/run'; mv '$work/aside' '$work/run'; }" > "$work/before.3"
        run 0 '1 B 5 0\n' 9 save_interval=$saves
        grep -q '^restart 2 of 9: code 5, error\[run-directory\] .* may not be mounted; ' "$work/log" || fail "not mounted"
        same two "$work/run" "not mounted"
    done
    # a locale whose numbers have a comma, by which mawk reads 0.7 as 0
    if localedef -i de_DE -f UTF-8 "$work/de_DE.UTF-8" > /dev/null 2>&1; then
        LOCPATH=$work LC_ALL=de_DE.UTF-8 run 0 '1 B 5 0\n' 9
        grep -q '"lost_s": [0-9]*[.][0-9]' "$work/run/restarts.jsonl" || fail "a comma: $(cat "$work/run/restarts.jsonl")"
    fi
    # a configuration that is edited while the job runs counts from the next start on, which says so
    ! grep -q 'has changed' "$work/log" || fail "a configuration that has not changed"
    cp "$work/tiny.yaml" "$work/kept.yaml"
    echo "echo '# edited' >> '$work/tiny.yaml'" > "$work/before.1"
    run 0 '1 B 5 0\n1 B 6 0\n' 9
    [ "$(grep -c '^warning: .*tiny.yaml has changed since the last start, .*; change: ' "$work/log")" = 1 ] ||
        fail "a configuration that has changed"
    mv "$work/kept.yaml" "$work/tiny.yaml"
    # nobody reads what is printed: the job goes on, and is started again
    for errors in /dev/null /dev/stdout; do
        rm -rf "$work/run" "$work"/starts.*
        {
            TRAIN=$work/train timeout 280 "$launch" -n 2 --restarts 9 "$work/tiny.yaml" save="$work/run" 2> $errors
            echo $? > "$work/code"
        } | true
        [ "$(cat "$work/code")" = 0 ] || fail "a pipe without a reader: code $(cat "$work/code")"
        same two "$work/run" "a pipe without a reader"
        nothing_left "a pipe without a reader"
    done
    ranks=4
    # FP8 scales of experts: in the first step after the restart the experts of some rank get no tokens
    experts='num_moe_experts=4 moe_router_topk=2 expert_model_parallel_size=2 moe_aux_loss_coeff=0.01'
    fp8="$experts params_dtype=bf16 fp8=hybrid hidden_size=64 moe_ffn_hidden_size=64"
    # shellcheck disable=SC2086
    "$launch" -n 4 "$work/tiny.yaml" $fp8 save="$work/fp8" > "$work/log" 2>&1 || fail "fp8: $?"
    # shellcheck disable=SC2086
    run 0 '2 B 5 0\n' 3 $fp8
    same fp8 "$work/run" "FP8 scales of experts"
    # the kernel's count of processes killed for memory rises: a file of our own in its place
    count=$(sed -n 's,^[0-9]*:memory:\(.*\),/sys/fs/cgroup/memory\1/memory.oom_control,p; s,^0::\(.*\),/sys/fs/cgroup\1/memory.events,p' \
        /proc/self/cgroup | while read -r file; do [ ! -f "$file" ] || echo "$file"; done | head -n 1)
    if [ -n "$count" ] && [ "$(id -u)" = 0 ] && unshare -m true 2> /dev/null; then
        echo 'oom_kill 3' > "$work/count"
        sed -i "2i [ \"\$OMPI_COMM_WORLD_RANK\" != 3 ] || echo 'oom_kill 4' > '$work/count'" "$work/train"
        printf '#!/bin/sh\nmount --bind %s %s && exec "$@"\n' "$work/count" "$count" > "$work/pretend"
        under="unshare -m --propagation private sh $work/pretend"
        run 5 '3 B 5 0\n' 0 $model
        grep -q '^error\[rank-lost\].* rank 3 .*: the kernel has killed for memory on this host; change: ' "$work/log" ||
            fail "killed for memory"
        sed -i 2d "$work/train"
        run 7 '3 B 5 0\n' 0 $model
        ! grep -q 'killed for memory' "$work/log" || fail "not killed for memory"
    fi
fi
[ $bad = 0 ]
