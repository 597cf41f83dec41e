#!/bin/sh
# tests/scripts/readme.sh [long] -- every command that a README prints runs as printed, in order, in a fresh
# copy of the tree with its own corpora, and ends with 0. Figures that a README prints below a command are
# those that the command prints. Rows of tests/scripts/readme.rows shorten commands, prepare their inputs, or
# leave commands out with a reason; a row that matches no command is a failure. `long` (make test-readme) runs
# the commands of rows `short` as printed.
#
# A command is a line of a fenced or indented block, or `code` in a line of text, that begins with one of our programs and
# has an argument: a bare name, such as `scripts/launch`, is a reference, which tests/tree/paths.sh looks for.
set -u
long=${1:-short}
if [ -z "${WORK:-}" ]; then
    WORK=$(mktemp -d) || exit 2
    trap 'rm -rf "$WORK"' EXIT
fi
top=$PWD tree=$WORK/tree bin=$WORK/bin
mkdir -p "$tree" "$bin"
git ls-files > "$WORK/files" 2> "$WORK/log" && [ -s "$WORK/files" ] ||
    find . -path ./build -prune -o -path ./runs -prune -o -path ./corpus -prune -o -path ./.git -prune -o -type f -print > "$WORK/files"
tar -cf - -T "$WORK/files" | tar -xf - -C "$tree" && cp "${TRAIN:-./train}" "$tree/train" &&
    mkdir "$tree/build" && cp build/loopback.so "$tree/build" || exit 1
unset TRAIN
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1     # for plain mpirun, when the tests run as root
# This make builds nothing: it only checks that the target exists.
cat > "$bin/make" <<MAKE
#!/bin/sh
PATH=$PATH exec make -C "$top" -n "\$@" > /dev/null
MAKE
chmod +x "$bin/make"
PATH=$bin:$PATH
cd "$tree" || exit 1
mkdir -p books letters corpus
for file in parallel/*/*.c; do cp "$file" books/; cp "$file" letters/; done
cp README.md book.txt
awk 'BEGIN {
    for (i = 0; i < 90; i++) text = text "And it came to pass in those days. "
    for (i = 0; i < 4; i++) printf "{\"text\": \"%s\"}\n", text
}' > notes.jsonl
./train tokenize src kernels -o corpus/demo > "$WORK/log" 2>&1 || { cat "$WORK/log"; exit 1; }

# place TAB kind (command, expect) TAB text
commands() {
    awk '
        function emit(kind, text) { gsub(/[ \t]+$/, "", text); if (text != "") printf "%s:%d\t%s\t%s\n", FILENAME, FNR, kind, text }
        function ours(text) {
            return text ~ /^(\.\/train|(scripts|data|tests)\/[a-z_]+(\.sh|\.sbatch)?|make|mpirun|srun|sbatch|cp|mkdir|pip|git|tar|docker|kubectl|ssh-keygen)( |$)/
        }
        function line(text) {
            if (held == "" && !ours(text)) { if (fenced && text != "") emit("expect", text); return }
            sub(/[ \t]+#.*$/, "", text)
            sub(/^ +/, held == "" ? "" : " ", text)
            held = held text
            if (sub(/ *\\$/, "", held)) return
            emit("command", held)
            held = ""
        }
        /^```/ { fenced = !fenced; next }
        fenced { line($0); next }
        /^    / && ours(substr($0, 5)) { line(substr($0, 5)); next }
        {
            n = split($0, code, "`")
            for (i = 2; i <= n; i += 2)
                if (code[i] ~ / / && ours(code[i]) && code[i] !~ /^(cp|mkdir|pip|git|tar|make) [^ ]*$/) emit("command", code[i])
                else if (code[i] ~ /^make [a-z-]+$/) emit("command", code[i])
        }' "$@"
}
# shellcheck disable=SC2046
commands $(grep -E '(^|/)README\.md$' "$WORK/files" | LC_ALL=C sort) > "$WORK/commands"

ran=0 left=0 bad=0
fail() { bad=$((bad + 1)); printf '%s\n' "$*" | tee -a "$WORK/failed"; }
row() { # ACTION COMMAND: prints the texts of this action's rows that match COMMAND, and notes the match
    grep "^$1 " "$top/tests/scripts/readme.rows" | while IFS= read -r entry; do
        entry=${entry#* } pattern=${entry%% :: *}
        printf '%s\n' "$2" | grep -Eq -- "$pattern" || continue
        printf '%s\n' "$pattern" >> "$WORK/matched"
        printf '%s\n' "${entry#* :: }"
    done
}
: > "$WORK/matched"
: > "$WORK/out"
previous=
while IFS="$(printf '\t')" read -r place kind text <&3; do
    case $kind in
    expect)
        previous=expect
        printf '%s\n' "$text" | awk '{ n = split($0, part, /\.\.\./); for (i = 1; i <= n; i++) print part[i] }' > "$WORK/parts"
        tr -s ' ' < "$WORK/out" > "$WORK/said"
        while IFS= read -r part; do
            part=$(printf '%s' "$part" | tr -s ' ' | sed 's/^ //; s/[ ,]*$//')
            [ -z "$part" ] || grep -qF -- "$part" "$WORK/said" || fail "$place: no longer what the command says: $part"
        done < "$WORK/parts" ;;
    command)
        [ "$previous" != expect ] || : > "$WORK/out"
        previous=command
        why=$(row skip "$text")
        if [ -n "$why" ]; then left=$((left + 1)); continue; fi
        first=$(row first "$text")
        edit=$(row edit "$text"; s=$(row short "$text"); [ "$long" = long ] || printf '%s\n' "$s")
        as=$(printf '%s\n' "$text" | sed -E "$edit")
        sh -c "${first:-:}" > "$WORK/log" 2>&1 || { fail "$place: cannot prepare: $first"; tail -n 5 "$WORK/log"; }
        start=$(date +%s)
        sh -c "$as" > "$WORK/one" 2> "$WORK/log" < /dev/null
        rc=$?
        cat "$WORK/one" >> "$WORK/out"
        echo "$place: $(($(date +%s) - start)) s: $as"
        [ $rc = 0 ] || { fail "$place: exit $rc: $text"; tail -n 12 "$WORK/one" "$WORK/log"; }
        ran=$((ran + 1)) ;;
    esac
done 3< "$WORK/commands"

grep -Ev '^(#|$)' "$top/tests/scripts/readme.rows" | while IFS= read -r entry; do
    pattern=${entry#* } pattern=${pattern%% :: *}
    grep -qxF -- "$pattern" "$WORK/matched" || echo "tests/scripts/readme.rows: matches no command: $entry"
done > "$WORK/idle"
[ ! -s "$WORK/idle" ] || fail "$(cat "$WORK/idle")"
# The demo trains in the params_dtype whose timed steps were faster.
awk '/^params_dtype .* ms a step$/ { sub(":", "", $2); ms[$2] = $3 }
     /^training .* iterations in / { sub(":", "", $5); for (t in ms) if (ms[t] < ms[$5]) slow = slow " " $5 }
     END { if (slow) { print "scripts/demo trains in the slower type:" slow; exit 1 } }' "$WORK/out" > "$WORK/one" ||
    fail "$(cat "$WORK/one")"
# A second run keeps the first; a refused argument changes no file.
[ -d runs/demo.1/checkpoints ] || fail "the second scripts/demo has not kept the run of the first"
find runs -type f | sort > "$WORK/before"
scripts/demo micro_batch_size=3 > "$WORK/one" 2> "$WORK/log" && fail "scripts/demo micro_batch_size=3 passed"
grep -q 'micro_batch_size' "$WORK/log" || fail "scripts/demo micro_batch_size=3: $(cat "$WORK/log")"
find runs -type f | sort | cmp -s - "$WORK/before" || fail "scripts/demo micro_batch_size=3 has touched a run"
# a shipped configuration that names `save` would send the runs of its copies into one directory
! grep -rnE '^ *save:|[{,] *save:' configs --include='*.yaml' || fail "a configuration in configs/ names save"
[ $bad = 0 ] || cat "$WORK/failed"       # again, where the end of a long log has them
echo "$ran commands ran, $left left out, $bad failed"
[ $bad = 0 ]
