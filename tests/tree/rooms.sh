#!/bin/bash
# tests/tree/rooms.sh -- no room uses a room above it. An include of a higher room's header does not compile
# with make's flags. No object needs a symbol that a higher room defines. The files of parallel/comm need each
# other in no circle. A header that is not public is included by its own room and by tests alone. Needs the
# objects of the build.
set -u
cd "$(dirname "$0")/../.." || exit 2
work=${WORK:-$(mktemp -d)} bad=0
fail() { echo "$*"; bad=$((bad + 1)); }

# The rooms, bottom to top.
rooms="kernels parallel/comm parallel/schedule parallel
       src/io src/config src/corpus src/model src/checkpoint src/report src/run src/plan src/bubble src/commands train.c"
unseen() { # ROOM: prints the rooms below it that it may not see either
    case $1 in
    parallel/schedule) echo parallel/comm ;;
    src/report) printf '%s\n' src/corpus src/model src/checkpoint ;;
    esac
}

# Headers that other rooms may include; all headers of src/io, parallel, parallel/comm and parallel/schedule are public.
public="config.h placement.h config_table.h  corpus.h loader.h tokenizer.h  model.h params.h
        checkpoint.h memory_copies.h source.h safetensors.h huggingface.h  metrics.h trace.h timeline.h losses.h page.h
        run.h kept.h save_time.h start.h balance.h whole.h  predict.h sweep.h score.h advise.h hints.h machine.h calibrate.h joint.h split.h  bubble.h  commands.h"
# Public too: what plan prints, the costs that plan and schedule show, the pictures of schedule and bubble.
public="$public  plan_times.h  run_costs.h  schedule_svg.h  svg.h"

# above ROOM -- prints the rooms that ROOM may not see
above() {
    local room seen=
    for room in $rooms; do
        [ -z "$seen" ] || echo "$room"
        [ "$room" != "$1" ] || seen=1
    done
    unseen "$1"
}

# ---- includes do not compile

debug=0
case ${BUILD:-} in *debug*) debug=1 ;; esac
{
    make -n -B DEBUG=$debug train
    make -n -B DEBUG=$debug CUDA=emulated train
} | sed -n 's/^.*echo "  cc [^;]*; \(.*\) -c \([^ ]*\.c\) -o \([^ ]*\)$/\2 \3 \1/p' | sed 's/ -MM\?[DP]//g' | sort -u |
    awk '{ room = $1 ~ /^kernels/ ? "kernels" : $1; if (room != "kernels") sub("/[^/]*$", "", room); print room, $0 }' \
    > "$work/commands"
[ "$(wc -l < "$work/commands")" -gt 200 ] || fail "make -n names only $(wc -l < "$work/commands") compilations"

for room in $rooms; do # one header of each room
    echo "$room $(git ls-files "$room/*.h" | grep -E "^$room/[^/]*$" | head -n 1 | xargs -r basename)"
done > "$work/headers"


# plant ROOM FILE COMMAND... -- COMMAND, which compiles FILE, finds a header of ROOM and none of higher rooms
compile() { echo "#include \"$1\"" | "${@:2}" -E -x c - -o /dev/null 2> "$work/err"; }
plant() {
    local room=$1 file=$2 other header
    shift 2
    header=$(sed -n "s,^$room ,,p" "$work/headers")
    [ -z "$header" ] || compile "$header" "$@" || fail "$file: does not see its own $header: $(cat "$work/err")"
    for other in $(above "$room"); do
        header=$(sed -n "s,^$other ,,p" "$work/headers")
        [ -n "$header" ] || continue
        if compile "$header" "$@"; then
            fail "$file: an include of $other/$header compiles"
        else
            grep -q "fatal error: $header: No such file" "$work/err" || fail "$file: $(cat "$work/err")"
        fi
    done
}
# one file for each room and each list of -I folders
awk '{
    key = $1
    for (i = 4; i <= NF; i++) if ($i ~ /^-I/ || $(i - 1) ~ /^-i/) key = key " " $i
    if (!seen[key]++) print }' "$work/commands" > "$work/chosen"
while read -r room file _ command; do
    # shellcheck disable=SC2086
    plant "$room" "$file" $command
done < "$work/chosen"

# ---- links

awk '{ print $1, $3, $2 }' "$work/commands" | while read -r room object file; do
    [ ! -e "$object" ] || echo "object $room $object $file"
done > "$work/objects"
[ "$(wc -l < "$work/objects")" -gt 200 ] || fail "only $(wc -l < "$work/objects") objects: build first"
for room in $rooms; do
    echo "above $room $(above "$room" | tr '\n' ' ')"
done > "$work/links"
cat "$work/objects" >> "$work/links"
cut -d ' ' -f 3 "$work/objects" | xargs nm -A -P >> "$work/links"
awk -v pairs="$work/pairs" '
    $1 == "above"  { for (i = 3; i <= NF; i++) above[$2, $i] = 1; next }
    $1 == "object" { room[$3 ":"] = $2; file[$3 ":"] = $4; next }
    $3 ~ /^[TDBRVWC]$/ { home[$2] = room[$1]; from[$2] = file[$1] }
    $3 ~ /^[Uw]$/ { uses[$1 " " $2] = room[$1] }
    END {
        for (u in uses) {
            split(u, p, " ")
            if (uses[u] == "parallel/comm" && home[p[2]] == uses[u]) print file[p[1]], from[p[2]] > pairs
            if ((uses[u], home[p[2]]) in above) { print p[1] " needs " p[2] ", which " home[p[2]] " defines"; bad = 1 }
        }
        exit bad
    }' "$work/links" || bad=1
tsort "$work/pairs" > /dev/null 2> "$work/err" || fail "a circle in parallel/comm: $(tr '\n' ' ' < "$work/err")"

# ---- text

! git grep -n '#include "\.\./' -- '*.[ch]' '*.cu' '*.cuh' '*.cpp' || fail 'includes with "../"'
for header in $(git ls-files 'src/*.h' | grep -v '^src/io/'); do
    name=$(basename "$header")
    case " $public " in *[[:space:]]"$name"[[:space:]]*) continue ;; esac
    git grep -l "#include \"$name\"" -- src parallel kernels train.c | grep -v "^$(dirname "$header")/" |
        sed "s,\$,: includes $header\, which is not public," > "$work/out"
    [ ! -s "$work/out" ] || { cat "$work/out"; bad=1; }
done
[ $bad = 0 ] && echo "$(wc -l < "$work/chosen") lists of folders, $(wc -l < "$work/objects") objects"
