#!/bin/sh
# tests/parallel/memory.sh [N] -- copies in memory (memory_save_interval): runs whose ranks die at random instructions go on
# from memory and end with the bytes of an undisturbed run, at most one finished step is repeated; a damaged or torn copy
# is never loaded; the same copy loads in another layout; the folder goes whatever is killed. With N: that many runs.
set -u
work=${WORK:-$(mktemp -d)} launch=$PWD/scripts/launch train=${TRAIN:-$PWD/$BUILD/train} faulty=$(realpath "$BUILD")/test_faults
. tests/tiny.sh
. tests/parallel/same.sh
export GRIDIRON_SHM="$work/shm"
mkdir "$GRIDIRON_SHM"
. tests/parallel/planned.sh
tiny "$work/tiny.yaml" model.num_layers=4 model.hidden_dropout=0.1 train.global_batch_size=8 train.train_iters=12 \
    optimizer.lr_decay_style=cosine fault.memory_save_interval=1
says() { grep -q "$1" "$work/log" || fail "${2:-$plan}: nothing says $1"; }

# disturbed NAME SEED SETTING... -- three faults at random instructions, each of which repeats one finished step at most
disturbed() {
    name=$1 seed=$2; shift 2
    faults=$(awk -v seed="$seed" 'BEGIN {
        srand(seed); n = split("F B S F B S copy", site, " "); m = split("kill kill kill segv", how, " ")
        for (i = 0; i < 3; i++)
            print int(rand() * 4), site[1 + int(rand() * n)], 3 + 3 * i + int(rand() * 3), int(rand() * 2) * int(rand() * 700), how[1 + int(rand() * m)] }')
    run 0 "$faults\n" 5 "$@"
    same "$name" "$work/run" "seed $seed ($name)"
    sed -n 's/^loaded .*gridiron.*: resuming after iteration \([0-9]*\)$/\1/p' "$work/log" > "$work/after"
    sed -n 's/^restart .* goes on after iteration \([0-9]*\) (memory).*/\1/p' "$work/log" | cmp - "$work/after" ||
        fail "seed $seed: the launcher says otherwise"
    # a fault strikes in the step after its iteration where the time until it is long: then it repeats no more either
    echo "$faults" | paste -d ' ' "$work/after" - | awk -v seed="$seed" '
        $1 + 0 < $4 - 2 { print "seed " seed ": after iteration " $1 ", not " $4 - 2 ": " $0; bad = 1 } END { exit bad }' || fail "seed $seed"
    total=$((total + $(wc -l < "$work/after")))
}

runs "${1:-2}" memory_save_interval=null
echo "# $i runs, $total restarts from memory"
[ -z "${1:-}" ] || exit $bad

# one byte of the newest copy is wrong; it has lost its manifest
cat > "$work/before.2" <<'SH'
if [ "$OMPI_COMM_WORLD_RANK" = 0 ]; then
    file=$(copies | tail -n 1)/optim-00002.safetensors
    at=$(($(wc -c < "$file") - 100))
    printf '\377\376\375\374' | dd of="$file" bs=1 seek=$at conv=notrunc 2> /dev/null
fi
SH
# shellcheck disable=SC2086
run 0 '1 B 7 0\n' 5 $model
says '^warning: .*/iter_000000[56]: optim-00002.safetensors is damaged: .*; taking the newest state before it'
says '^loaded .*resuming after iteration [45]'
same model "$work/run" damaged
echo '[ "$OMPI_COMM_WORLD_RANK" != 0 ] || rm "$(copies | tail -n 1)/manifest.json"' > "$work/before.2"
# shellcheck disable=SC2086
run 0 '1 B 7 0\n' 5 $data
says '^loaded .*resuming after iteration [45]' torn
same data "$work/run" torn

# a checkpoint on the disk that is newer than the copies; the copies keep to themselves
# shellcheck disable=SC2086
run 0 '1 B 8 0\n' 5 $model save_interval=5 memory_save_interval=4 save_keep_last=1
says 'goes on after iteration 5 [ai]' disk
same model "$work/run" disk
[ "$(ls "$work/run/checkpoints")" = "iter_0000012
latest" ] || fail "checkpoints: $(ls "$work/run/checkpoints")"

# a rank dies while a save is written from a snapshot: the save is made up for, and kept for good
# shellcheck disable=SC2086
run 0 '0 save 4 0 hold\n' 5 $model save_interval=4 async_save=true save_retain_interval=4
says '^restart 1 of 5: .* goes on after iteration [234] (memory)' held
same model "$work/run" held
[ "$(ls "$work/run/checkpoints")" = "iter_0000004
iter_0000008
iter_0000012
latest" ] || fail "held: $(ls "$work/run/checkpoints")"
# the same where the copy in memory is of the iteration itself: save_interval asks for it only at the second start
echo '[ "$OMPI_COMM_WORLD_RANK" != 0 ] || copies > "$FAULT_DIR/copies"
set -- "$@" save_interval=$(expr "$(copies | tail -n 1)" : ".*iter_0*\([0-9]*\)") async_save=true' > "$work/before.2"
# shellcheck disable=SC2086
run 0 '1 B 9 0\n' 5 $model
newest=$(tail -n 1 "$FAULT_DIR/copies")
[ -d "$work/run/checkpoints/${newest##*/}" ] || fail "not made up for: ${newest##*/}"
same model "$work/run" "made up for"

# no room for copies any more: beside saves on the disk the run goes on without them, and says so now and then
# shellcheck disable=SC2086
run 0 '1 B 3 0 crowd\n' 0 $model save_interval=3
[ "$(grep -c '^warning: copying iteration [0-9]* to memory failed: .*No space left on device; .*; the run goes on' "$work/log")" -le 4 ] ||
    fail "too many warnings"
says '^warning: copying iteration [34] to memory failed: .*No space left on device; .*; writing it again' crowded
same model "$work/run" crowded
# shellcheck disable=SC2086
run 5 '1 B 3 0 crowd\n' 0 $model
says '^error\[save\] .* 3 saves in a row have failed' "crowded, without a disk"

# all copies are lost after a restart: the run begins again, with what it loaded first
# shellcheck disable=SC2086
"$launch" -n 4 "$work/tiny.yaml" $model save="$work/tuned" load="$work/model" finetune=true memory_save_interval=null \
    > "$work/log" 2>&1 || fail "tuned: $?"
# rank 0 alone: another might be ended before it has counted this start
echo '[ "$OMPI_COMM_WORLD_RANK" != 0 ] || { rm -rf "$GRIDIRON_MEMORY"/checkpoints
    echo "error[made-up] nothing is left; change: nothing" >&2; exit 5; }' > "$work/before.2"
# shellcheck disable=SC2086
run 0 '1 B 5 0\n' 5 $model load="$work/model" finetune=true
says '^restart 1 of 5: .* goes on after iteration [34] (memory)' lost
says '^restart 2 of 5: .* goes on after the beginning' lost
same tuned "$work/run" lost

# hosts: one of them loses its folder, and gets its shards and its peer's from others
echo '[ "$OMPI_COMM_WORLD_RANK" != 0 ] || rm -r "$GRIDIRON_MEMORY/host.0"' > "$work/before.2"
# shellcheck disable=SC2086
GRIDIRON_RANKS_PER_HOST=3 run 0 '1 B 7 0\n' 5 $model
says '^loaded .*/host.0/.*resuming after iteration [56]' "two hosts"
same model "$work/run" "two hosts"
echo '[ "$OMPI_COMM_WORLD_RANK" != 0 ] || rm -r "$GRIDIRON_MEMORY/host.2"' > "$work/before.2"
# shellcheck disable=SC2086
GRIDIRON_RANKS_PER_HOST=1 run 0 '1 B 7 0\n' 5 $data
says '^loaded .*/host.0/.*resuming after iteration [56]' "four hosts"
same data "$work/run" "four hosts"

# the same copy in another layout, beside a planned change
echo "set -- \"\$@\" pipeline_model_parallel_size=1 $data" > "$work/before.2"
# shellcheck disable=SC2086
run 0 '1 B 8 0\n' 5 tensor_model_parallel_size=1 pipeline_model_parallel_size=4 memory_save_interval=3
after=$(sed -n 's/^restart .* goes on after iteration \([0-9]*\) (memory).*/\1/p' "$work/log")
mv "$work/run" "$work/changed"
"$launch" -n 4 "$work/tiny.yaml" save="$work/planned" memory_save_interval=null pipeline_model_parallel_size=4 \
    exit_interval="${after:-1}" > "$work/log" 2>&1
[ $? = 75 ] || fail "a planned change after iteration $after"
# shellcheck disable=SC2086
"$launch" -n 4 "$work/tiny.yaml" save="$work/planned" memory_save_interval=null pipeline_model_parallel_size=1 $data load=latest > "$work/log" 2>&1 || fail "planned: $?"
same planned "$work/changed" "another layout"

# refused: without a launcher that restarts, and where the memory file system is too small
"$train" "$work/tiny.yaml" save="$work/run" > "$work/log" 2>&1
[ $? = 2 ] || fail "without a launcher"
says ': memory_save_interval: 1 keeps copies in a folder of scripts/launch --restarts'
if unshare -m true 2> /dev/null; then
    unshare -m sh -c "mount -t tmpfs -o size=400k none '$GRIDIRON_SHM' && exec '$launch' -n 2 --restarts 1 '$work/tiny.yaml' \
        save='$work/small'" > "$work/log" 2>&1
    [ $? = 93 ] && says '^error\[crash-loop\].*memory-room.* needs 2\.[0-9] MB in .*, 3 copies of .*, and 0\.[0-9] MB are free; change: ' small
fi

# killed NAME... -- after SIGKILL to these the folder is gone, at the latest with the next launch
killed() {
    rm -rf "$work/run"
    "$launch" -n 2 --restarts 0 "$work/tiny.yaml" save="$work/run" train_iters=100000 > "$work/log" 2>&1 &
    front=$!
    until ls "$GRIDIRON_SHM"/*/checkpoints/iter_*/manifest.json > /dev/null 2>&1; do
        kill -0 $front 2> /dev/null || { fail "$*: the run has ended"; return; }
        sleep 0.05
    done
    "$launch" -n 1 --restarts 0 help > /dev/null 2>&1           # a launch beside it leaves it alone
    ls -d "$GRIDIRON_SHM"/*/checkpoints > /dev/null 2>&1 || fail "$*: another launch has removed the folder"
    job=$(pgrep -P $front -f launch_job) mpirun=$(pgrep -P "$job" 'mpirun|prterun')
    for name in "$@"; do eval "kill -KILL \$$name"; done
    wait $front 2> /dev/null
    for _ in $(seq 1200); do
        case "$*" in
        "front job") "$launch" -n 1 --restarts 0 help > /dev/null 2>&1 ;;
        esac
        [ -n "$(ls -A "$GRIDIRON_SHM")" ] || break
        sleep 0.05
    done
    [ -z "$(ls -A "$GRIDIRON_SHM")" ] || fail "$* killed: left: $(ls -A "$GRIDIRON_SHM")"
    rm -rf "$TMPDIR"; mkdir "$TMPDIR"
}
killed front
killed job
killed mpirun
killed front job

# other hosts, by a stand-in for ssh: their copies go with ours, also those of a launch that was killed, and nothing else
# does where a name has a space
mkdir -p "$work/other shm/gridiron.$(uname -n).killed" "$work/other"
printf '127.0.0.2 slots=1\n' > "$work/hosts"
printf '#!/bin/sh\nshift\necho "$*" >> %s\nexec sh -c "$*"\n' "$work/reached" > "$work/agent"
chmod +x "$work/agent"
GRIDIRON_SHM="$work/other shm" OMPI_MCA_plm_rsh_agent="$work/agent" GRIDIRON_START_SECONDS=5 \
    "$launch" -n 1 --hosts "$work/hosts" --restarts 0 help > "$work/log" 2>&1
[ -d "$work/other" ] || fail "another folder of other hosts is removed"
[ "$(grep -c "/other shm/gridiron\." "$work/reached")" = 2 ] || fail "copies on other hosts stay: $(cat "$work/reached")"

# another launch takes the new folder for one that was left, and removes it before it is open
mkdir "$work/bin"
cat > "$work/bin/mktemp" <<SH
#!/bin/sh
made=\$($(command -v mktemp) "\$@") || exit
case \$made in "$GRIDIRON_SHM"/*) mkdir "$work/once" 2> /dev/null && rmdir "\$made" ;; esac
echo "\$made"
SH
chmod +x "$work/bin/mktemp"
PATH=$work/bin:$PATH "$launch" -n 1 --restarts 0 help > "$work/log" 2>&1 || fail "a folder that another launch has removed: $(cat "$work/log")"
[ -d "$work/once" ] || fail "no folder was removed"
[ $bad = 0 ]
