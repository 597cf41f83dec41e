#!/bin/sh
# tests/seeds.sh [PATTERN] -- plants the bugs of tests/seeds one by one and runs the test that must catch each. The test has
# to pass on the source as it is, and to fail with the bug. A copy of the seed's file is changed in another folder (its
# text must occur exactly once), compiled as make would, and linked in front of the archive; the tree is not changed.
# A row that is to catch a bug of a script takes the scripts from the folder SCRIPTS, if that is set.
#
# tests/seeds.sh --texts: checks only that every text and every row still exists.
set -u
CDPATH='' cd "$(dirname "$0")/.." || exit 2
build=${BUILD:-build/cpu} pattern=${1:-.}
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

# Writes the changed copy of a seed's file: `-` lines are the text to find, the `+` lines after them replace it.
plant() { # name, file, output
    awk -v name="$1" -v file="$2" '
        function apply(   at) {
            if (old == "") return
            at = index(text, old)
            if (!at || index(substr(text, at + 1), old)) {
                print "not there exactly once in " file ":\n" old > "/dev/stderr"
                failed = 1
            } else
                text = substr(text, 1, at - 1) new substr(text, at + length(old))
            old = new = ""
        }
        FILENAME == file { text = text $0 "\n"; next }
        /^[-+] / {
            if (!mine) next
            if (/^- / && plus) { apply(); plus = 0 }
            if (/^- /) old = old (old == "" ? "" : "\n") substr($0, 3)
            else { new = new (plus ? "\n" : "") substr($0, 3); plus = 1 }
            next
        }
        { mine = $1 == name && $2 == file }
        END { apply(); if (!failed) printf "%s", text; exit failed }' "$2" tests/seeds > "$3"
}

# Prints the test programs that a row of tests/table runs, itself or in its script, and train.
programs() {
    row=$(awk -v row="$1" '$1 == row' tests/table)
    script=$(echo "$row" | grep -o 'tests/[a-z_]*/[a-z_]*\(\.sh\)\?' | head -1)
    { echo "$row"; [ -f "$script" ] && cat "$script"; } | grep -o 'test_[a-z_]*' | sort -u |
        while read -r p; do set -- tests/*/"$p.c"; [ -f "$1" ] && echo "$p"; done
    echo train
}

# Compiles every object of the seed's file and links the programs of the row with them, by make's own commands. Of a
# script: completes the folder of scripts around it.
compile() { # file, folder, row
    case $1 in scripts/*)
        chmod --reference="$1" "$2/$1" && cp -rn scripts "$2" && ln -s "$PWD/build" "$2/build"
        return ;;
    esac
    commands=$work/commands
    targets=$(programs "$3" | sed "s,^,$build/,")
    # shellcheck disable=SC2086
    make -n -W "$1" $targets | sed -e ':join' -e '/\\$/{N;s/\\\n//;b join' -e '}' |
        sed 's/^echo [^;]*; //; s/ -Werror / /; /-c src\/config\/config_help.c/d' > "$commands"
    case $1 in *.h) sed -n 's/.* -c \([^ ]*\.c\) -o .*/\1/p' "$commands" | sort -u | while read -r c; do
                        mkdir -p "$2/$(dirname "$c")"; cp "$c" "$2/$c"; done ;; esac
    grep -- ' -c [^ ]*\.c -o ' "$commands" | sed "s, -c , -c $2/,; s, -o $build/, -o $2/o/," > "$2/compile"
    sed -n 's/.* -o \([^ ]*\)$/\1/p' "$2/compile" | while read -r o; do mkdir -p "$(dirname "$o")"; done
    xargs -P 2 -d '\n' -n 1 sh -c < "$2/compile" || return 1
    objects=$(sed -n 's/.* -o \([^ ]*\)$/\1/p' "$2/compile" | tr '\n' ' ')
    [ -n "$objects" ] || return 1
    grep -- " $build/gridiron.a .*-o " "$commands" |
        sed "s, $build/gridiron.a , $objects$build/gridiron.a ,; s, $build/${1%.c}.o , ,; s, -o $build/, -o $2/," > "$2/link"
    xargs -P 2 -d '\n' -n 1 sh -c < "$2/link" || return 1
    for target in $targets; do
        [ -x "$2/${target##*/}" ] || { echo "no $target"; return 1; }
    done
}

caught=0 missed=0
passes() { # row: passes as the source is, without a seed
    grep -qx "$1" "$work/passed" 2> /dev/null && return 0
    BUILD=$build tests/run "^$1\$" > "$work/log" 2>&1 && echo "$1" >> "$work/passed"
}
grep -v '^[-+#]' tests/seeds | grep . > "$work/list"
if [ "$pattern" = --texts ]; then
    while read -r name file row; do
        plant "$name" "$file" "$work/text" && ! cmp -s "$file" "$work/text" && grep -q "^$row " tests/table ||
            { echo "not ok - $name"; missed=$((missed + 1)); }
    done < "$work/list"
    echo "$(wc -l < "$work/list") texts, $missed gone"
    exit $((missed > 0))
fi
make -s tests train || exit 2
grep -E "$pattern" "$work/list" > "$work/some" || { echo "no seed has a line with $pattern"; exit 2; }
mv "$work/some" "$work/list"
while read -r name file row; do
    seed=$work/$name why='' built=$work/$name scripts=''
    case $file in scripts/*) built=$build scripts=$seed/scripts ;; esac
    mkdir -p "$seed/$(dirname "$file")"
    if ! passes "$row"; then
        why="$row fails without the bug"
    elif ! plant "$name" "$file" "$seed/$file" 2> "$work/log"; then
        why="its text is gone"
    elif ! compile "$file" "$seed" "$row" > "$work/log" 2>&1; then
        why="it does not compile"
    elif BUILD=$(realpath --relative-to=. "$built") \
        TRAIN=$built/train SCRIPTS=$scripts tests/run "^$row\$" < /dev/null > "$work/log" 2>&1; then
        why="$row does not see it"
    fi
    if [ -z "$why" ]; then
        caught=$((caught + 1))
        saw=$(grep -m 1 -E 'CHECK|error\[|BUG|differ|other bits|rc 124' "$work/log" |
            sed -E 's/^[# ]*//; s/CHECK\(worst.*0\.1\) //; s/^tests\///' | cut -c 1-110)
        echo "ok - $name: caught by $row: $saw"
    else
        missed=$((missed + 1))
        echo "not ok - $name: $why"
        tail -n 15 "$work/log" | cut -c 1-300 | sed 's/^/#   /'
    fi
    rm -rf "$seed"
done < "$work/list"
echo "$caught caught, $missed not"
[ $missed = 0 ] && [ $caught -gt 0 ]
