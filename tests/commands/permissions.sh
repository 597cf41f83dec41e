#!/bin/sh
# tests/commands/permissions.sh -- a file or folder that an ordinary user may not read is reported as
# "Permission denied" with its path, and not as a folder without checkpoints, another job, another format, or
# a fresh start. A user who may start no more processes gets one line. A user without a name and HOME may launch. Root may do all that, so the test runs as user
# 65534 then.
set -u
bad=0
as() { "$@"; }
if [ "$(id -u)" = 0 ]; then
    setpriv --reuid=65534 --regid=65534 --clear-groups true 2> /dev/null || { echo "setpriv cannot become another user"; exit 77; }
    as() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
fi
top=$(TMPDIR=/tmp mktemp -d) || exit 1        # others cannot enter the folders above $WORK
trap 'chmod -R u+rwX "$top"; rm -rf "$top"' EXIT
chmod 777 "$top"
mkdir "$top/build" && cp -r scripts "$top" && cp build/loopback.so "$top/build" && chmod -R a+rX "$top/scripts" "$top/build" || exit 1
cp "$TRAIN" "$top/train" && chmod 755 "$top/train" || exit 1
mkdir "$top/text" && cp parallel/*/*.c "$top/text" && chmod -R a+rX "$top/text"
cat > "$top/tiny.yaml" <<YAML
model: {num_layers: 1, hidden_size: 16, num_attention_heads: 2, seq_length: 16}
data: {tokenizer_type: byte, split: '90, 10, 0', data_path: corpus}
train: {micro_batch_size: 1, global_batch_size: 2, train_iters: 2}
optimizer: {lr: 0.01, lr_decay_iters: 8}
precision: {cpu_isa: ${ISA:-auto}}
YAML
chmod a+r "$top/tiny.yaml"
cd "$top" || exit 1
as ./train tokenize text -o corpus > log 2>&1 && as ./train tiny.yaml save=run > log 2>&1 || { cat log; exit 1; }
checkpoint=run/checkpoints/iter_0000002

# denied CODE PATH COMMAND... -- COMMAND without access to PATH ends with CODE and a line with PATH and why
denied() {
    code=$1 path=$2; shift 2
    mode=$(stat -c %a "$path")
    chmod 000 "$path"
    as timeout 240 "$@" > log 2>&1
    rc=$?
    chmod "$mode" "$path"
    [ $rc = "$code" ] && grep -q "${path##*/}.*: Permission denied" log && [ "$(grep -c '^error\[' log)" -le 1 ] &&
        ! grep -Eq 'holds no checkpoint|other job|fresh start|there is no' log && return
    echo "$path: $*: code $rc, wanted $code and its name with Permission denied"
    tail -n 2 log
    bad=$((bad + 1))
}

denied 2 tiny.yaml ./train tiny.yaml save=new
denied 3 corpus.idx ./train tiny.yaml save=new1
denied 3 corpus.bin ./train tiny.yaml save=new2
denied 1 corpus.idx ./train inspect corpus
denied 3 text ./train tokenize text -o again
for path in run run/checkpoints $checkpoint $checkpoint/manifest.json; do
    denied 4 $path ./train tiny.yaml save=new3 load=run
    denied 4 $path ./train export run -o hf
done
denied 4 $checkpoint/model-00000.safetensors ./train eval tiny.yaml load=run eval_iters=1
for path in run/checkpoints $checkpoint $checkpoint/manifest.json; do
    denied 4 $path ./train tiny.yaml save=run load=latest train_iters=4
done
for path in run run/checkpoints; do denied 4 $path ./train inspect run; done
denied 1 $checkpoint/manifest.json ./train inspect run
denied 5 run/metrics.jsonl ./train report run
denied 5 run/config.yaml ./train replay run
denied 5 run/.lock ./train tiny.yaml save=run load=latest train_iters=4
denied 4 run ./train tiny.yaml save=run load=latest train_iters=4

for threads in 1 2; do
    as prlimit --nproc=1 ./train tiny.yaml save=few$threads threads=$threads > log 2>&1
    rc=$?
    [ $rc = 5 ] && [ "$(grep -c '^error\[' log)" = 1 ] && grep -q '^error\[threads*\] .*cannot start .*thread.*; change: ' log && continue
    echo "no more processes, $threads threads: code $rc"
    tail -n 2 log
    bad=$((bad + 1))
done

# containers run programs so; mpirun alone would crash. Such a user can be made by root alone
if [ "$(id -u)" = 0 ]; then
    setpriv --reuid=54321 --regid=54321 --clear-groups env -u HOME TMPDIR="$top" TRAIN="$top/train" \
        scripts/launch -n 2 tiny.yaml save=nobody > log 2>&1 || { echo "no name, no HOME: code $?"; tail -n 2 log; bad=$((bad + 1)); }
fi
[ $bad = 0 ]
