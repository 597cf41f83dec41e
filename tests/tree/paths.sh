#!/bin/sh
# tests/tree/paths.sh -- every path into one of our folders that a tracked text file names exists: in READMEs,
# comments, scripts, tests. A path is checked up to the first `*`, `{`, `%`, `$` or `\`. scripts/README.md
# names every script. README.md has an example of every command, and about the right lengths in its reading
# order.
set -u
work=${WORK:?}
git ls-files > "$work/files" 2> /dev/null && [ -s "$work/files" ] || { echo "no list of files"; exit 77; }
named='(^|[^A-Za-z0-9_./$}*-])(src|parallel|kernels|configs|scripts|tests|data)/[A-Za-z0-9_./-]*'
# Files that a reader or a test makes, and names that stand for any file.
made='^(configs/(mine|gpt)\.yaml|configs/machines/(NAME|local)\.yaml|tests/ROOM/.*)$'
grep -v '^tests/golden/.*\(safetensors\|bin\|idx\)$' "$work/files" | xargs awk \
    -v named="$named" -v made="$made" '
    {
        line = $0
        gsub(/\$\{?(top|here|PWD)\}?\/|\.\.\//, "", line)
        while (match(line, named)) {
            path = substr(line, RSTART, RLENGTH)
            line = substr(line, RSTART + RLENGTH)
            sub(/^[^a-z]/, "", path)
            open = line ~ /^[*{%$\\]/ || path ~ /_$/        # a pattern: its beginning must exist
            if (!open) sub(/[.\/-]+$/, "", path)
            if (path !~ made) print path (open ? "*" : "") "\t" FILENAME ":" FNR
        }
    }' | sort -u > "$work/paths"
{
    while IFS="$(printf '\t')" read -r path place; do
        # shellcheck disable=SC2086
        set -- $path
        [ -e "$1" ] || [ -e "$1.idx" ] || echo "$place: there is no $path"
    done < "$work/paths"
    git ls-files scripts | sed 's,^scripts/,,; /README/d' | while read -r name; do
        grep -qF "\`$name\`" scripts/README.md || echo "scripts/README.md: does not name $name"
    done
    sed -n 's/^COMMAND(\([a-z]*\),.*/\1/p' src/commands/commands.def | grep -v '^run$' | while read -r name; do
        grep -qE "^\|.*\`(./train|scripts/launch -n 4) $name" README.md || echo "README.md: no example of $name"
    done
    # | 1 | `FILE` | lines | ...
    sed -n 's/^| [0-9] | `\([^`]*\)` | \([0-9]*\) |.*/\1 \2/p' README.md | while read -r file lines; do
        n=$(wc -l < "$file")
        [ $((n * 5)) -ge $((lines * 4)) ] && [ $((n * 4)) -le $((lines * 5)) ] ||
            echo "README.md: $file has $n lines, not about $lines"
    done
} > "$work/bad"
echo "$(wc -l < "$work/paths") paths"
cat "$work/bad"
[ ! -s "$work/bad" ]
