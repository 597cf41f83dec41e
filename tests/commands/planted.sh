#!/bin/sh
# tests/commands/planted.sh -- a run directory that somebody else has made: links under the names that are written lead to a
# file of this user, which keeps its bytes; pipes and links to devices under the names that are read are read by nobody;
# copies in a folder that others may enter are not loaded; control characters reach no terminal.
set -u
work=${WORK:-$(mktemp -d)} bad=0
. tests/tiny.sh
"$TRAIN" tokenize README.md -o "$work/corpus" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
tiny "$work/tiny.yaml"
"$TRAIN" "$work/tiny.yaml" save="$work/made" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
echo precious > "$work/secret"
fail() { echo "# $1"; tail -n 3 "$work/log"; bad=1; }
most=8000000
(ulimit -v $most && "$TRAIN" help) > /dev/null 2>&1 || most=unlimited       # with a sanitizer
# planted WHAT NAME COMMAND... -- what the command does when NAME of the run directory is a pipe, or a link to WHAT
planted() {
    what=$1 name=$2; shift 2
    rm -rf "$work/run" && cp -r "$work/made" "$work/run" && rm -f "$work/run/$name" || exit 1
    if [ "$what" = pipe ]; then mkfifo "$work/run/$name"; else ln -s "$what" "$work/run/$name"; fi
    (ulimit -v $most; exec timeout -k 5 60 "$@" > "$work/log" 2>&1)
    rc=$?
    [ $rc -lt 124 ] && ! grep -q '^error\[memory\]' "$work/log" || fail "$name -> $what: $*: code $rc"
    [ "$(cat "$work/secret")" = precious ] || fail "$name -> $what: $*: has overwritten the file behind the link"
    echo precious > "$work/secret"
}
again="$TRAIN $work/tiny.yaml save=$work/run load=latest train_iters=3"
for name in report.html.tmp run.json.tmp config.yaml.tmp checkpoints/latest.tmp metrics.jsonl.tmp metrics.jsonl; do
    # shellcheck disable=SC2086
    planted "$work/secret" $name $again
done
# a user's own link, as to another disk: a run goes on with a file in its place, and a text that is not kept says why
cp "$work/made/metrics.jsonl" "$work/lines"
# shellcheck disable=SC2086
planted "$work/lines" metrics.jsonl $again
[ $rc = 0 ] && cmp -s "$work/made/metrics.jsonl" "$work/lines" && [ "$(grep -c lm_loss "$work/run/metrics.jsonl")" = 3 ] ||
    fail "metrics.jsonl is a link to its lines: code $rc"
planted "$work/secret" samples.jsonl "$TRAIN" generate load="$work/run" --tokens 2
grep -q 'samples.jsonl is a symbolic link' "$work/log" || fail "samples.jsonl: not said that it is a link"
planted "$work/secret" report.html.tmp "$TRAIN" report "$work/run"
for name in run.json trace.json plan.json metrics.jsonl samples.jsonl restarts.jsonl config.yaml; do
    for what in pipe /dev/zero; do
        planted $what $name "$TRAIN" report "$work/run"
        planted $what $name "$TRAIN" inspect "$work/run"
        planted $what $name "$TRAIN" generate load="$work/run" --tokens 2
        # shellcheck disable=SC2086
        planted $what $name $again
    done
done
planted pipe metrics.jsonl "$TRAIN" "$work/tiny.yaml" save="$work/run" overwrite=true
truncate -s 1T "$work/sparse"                        # a file that says it is larger than all memory
for name in run.json trace.json plan.json; do
    planted "$work/sparse" $name "$TRAIN" report "$work/run"
    planted "$work/sparse" $name "$TRAIN" inspect "$work/run"
    # shellcheck disable=SC2086
    planted "$work/sparse" $name $again
done
planted pipe sweep.jsonl "$TRAIN" sweep "$work/tiny.yaml" --world 1 --measure 1 -o "$work/run"

# `train dump -o` writes to a link's file and to a device, as a shell would, and follows no link that it has not been given;
# a pipe is refused. Its ranks write one file
# dumps CODE FILE -- dumps to FILE, with a code
dumps() {
    timeout -k 5 60 "$TRAIN" dump "$work/tiny.yaml" -o "$2" > "$work/log" 2>&1
    rc=$?
    [ $rc = "$1" ] && [ "$(cat "$work/secret")" = precious ] || fail "dump to $2: code $rc"
}
ln -s "$work/secret" "$work/first.tmp"
dumps 0 "$work/first"
ln -s target "$work/link"
dumps 0 "$work/link"
[ -L "$work/link" ] && cmp -s "$work/first" "$work/target" || fail "dump to a link"
mkfifo "$work/pipe"
dumps 5 "$work/pipe"
[ -p "$work/pipe" ] && grep -q 'pipe is a pipe' "$work/log" || fail "dump to a pipe"
if mknod "$work/null" c 1 3 2> /dev/null && (: > "$work/null") 2> /dev/null; then
    dumps 0 "$work/null"
    [ -c "$work/null" ] || fail "dump to a device"
fi
mkdir "$work/0" "$work/1"
printf '#!/bin/sh\ncd "%s/$OMPI_COMM_WORLD_RANK" && exec "%s" "$@"\n' "$work" "$TRAIN" > "$work/apart"
chmod +x "$work/apart"
# apart WORDS -- two ranks in folders of their own, as on hosts that share none, are refused with WORDS
apart() {
    TRAIN=$work/apart scripts/launch -n 2 dump "$work/tiny.yaml" -o x tensor_model_parallel_size=2 > "$work/log" 2>&1
    rc=$?
    [ $rc = 5 ] && grep -q "^error.*$1.*a folder that all hosts share" "$work/log" || fail "dump of two hosts: code $rc"
}
cp "$work/first" "$work/1/x.tmp"
apart 'cannot open x'
cmp -s "$work/first" "$work/1/x.tmp" && [ ! -e "$work/0/x" ] || fail "dump of two hosts has written"
for rank in 0 1; do
    cp "$work/first" "$work/of$rank"
    ln -s "../of$rank" "$work/$rank/x"
done
apart "x on host .* is not rank 0's file"

# what a terminal obeys, in names and texts; a name that is not UTF-8 is a name
for name in "$(printf 'a\033[31m')" "$(printf 'a\377')" "$(printf 'a\302\233b')"; do
    mkdir "$work/odd" && cp -r "$work/made" "$work/odd/$name" || exit 1
    sed -i 's/"id": *"/&\\u001b[31m/' "$work/odd/$name/run.json"
    "$TRAIN" inspect "$work/odd/$name" > "$work/log" 2>&1
    ! LC_ALL=C grep -q "$(printf '\033\\|\302\233')" "$work/log" || fail "inspect prints control characters"
    "$TRAIN" inspect --json "$work/odd/$name" > "$work/log" 2>&1
    grep -q '"kind": "run"' "$work/log" && grep -q '"path"' "$work/log" || fail "inspect --json does not know the run"
    "$TRAIN" report --json "$work/odd/$name" > "$work/log" 2>&1
    grep -q '"run"' "$work/log" || fail "report --json prints no object"
    "$TRAIN" report "$work/odd/$name" > "$work/log" 2>&1 && "$TRAIN" export "$work/odd/$name/checkpoints/iter_0000002" -o "$work/odd/$name/hf" >> "$work/log" 2>&1 &&
        "$TRAIN" import "$work/odd/$name/hf" -o "$work/odd/$name/back" >> "$work/log" 2>&1 || fail "report, export, import: code $?"
    ! LC_ALL=C grep -q "$(printf '\033\|\302\233')" "$work/log" || fail "report, export or import prints control characters"
    rm -r "$work/odd"
done

# a folder of copies in memory that is not this user's alone, where another host has one: no copy in it is loaded
rm -rf "$work/run" && cp -r "$work/made" "$work/run" && mkdir -m 755 "$work/shm" "$work/shm/checkpoints" || exit 1
cp -r "$work/run" "$work/other" &&      # the same run, as whoever may read it could continue it
    "$TRAIN" "$work/tiny.yaml" save="$work/other" load=latest train_iters=3 > "$work/log" 2>&1 &&
    cp -r "$work/other/checkpoints/iter_0000003" "$work/shm/checkpoints" || exit 1
GRIDIRON_SUPERVISED=1 GRIDIRON_MEMORY="$work/shm" timeout 60 "$TRAIN" "$work/tiny.yaml" save="$work/run" load=latest \
    train_iters=5 > "$work/log" 2>&1
rc=$?
[ $rc = 0 ] && grep -q '^loaded .*resuming after iteration 2$' "$work/log" || fail "copies of another user: code $rc"

# what the launcher writes after a death
for name in .flight.new restarts.jsonl; do
    rm -rf "$work/run" && cp -r "$work/made" "$work/run" && ln -s "$work/secret" "$work/run/$name" || exit 1
    : > "$work/log"
    scripts/launch -n 2 --restarts 0 "$work/tiny.yaml" save="$work/run" load=latest train_iters=1000000 log_interval=1000 > "$work/log" 2>&1 &
    job=$!
    until grep -q '^corpus:' "$work/log" || ! kill -0 $job; do sleep 0.05; done
    for pid in $(grep -lsF "save=$work/run" /proc/[0-9]*/cmdline | sed 's,/proc/,,; s,/cmdline,,'); do
        [ "$(cat "/proc/$pid/comm" 2> /dev/null)" != train ] || { kill -KILL "$pid"; break; }
    done
    wait $job
    rc=$?
    [ $rc = 7 ] || fail "a rank was killed: code $rc"
    [ "$(cat "$work/secret")" = precious ] || fail "$name: the launcher has overwritten the file behind the link"
    echo precious > "$work/secret"
done
[ $bad = 0 ]
