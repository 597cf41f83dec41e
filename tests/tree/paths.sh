#!/bin/sh
# tests/tree/paths.sh -- every path into one of our folders that a tracked text file names exists: in READMEs,
# comments, scripts, tests. `*`, `{`, `%` and `$` end what is checked.
set -u
work=${WORK:?}
git ls-files > "$work/files" 2> /dev/null && [ -s "$work/files" ] || { echo "no git: no list of files"; exit 77; }
named='(^|[^A-Za-z0-9_./$}*-])(src|parallel|kernels|configs|scripts|tests|data)/[A-Za-z0-9_./-]*'
# What a reader or a test makes, and names that stand for any.
made='^(configs/(mine|gpt)\.yaml|configs/machines/(NAME|local)\.yaml|tests/ROOM/.*)$'
grep -v '^tests/golden/.*\(safetensors\|bin\|idx\)$' "$work/files" | xargs awk -v named="$named" -v made="$made" '
    {
        line = $0
        gsub(/\$\{?(top|here|PWD)\}?\/|\.\.\//, "", line)
        while (match(line, named)) {
            path = substr(line, RSTART, RLENGTH)
            line = substr(line, RSTART + RLENGTH)
            sub(/^[^a-z]/, "", path)
            open = line ~ /^[*{%$]/ || path ~ /_$/          # a pattern: its beginning is enough
            if (!open) sub(/[.\/-]+$/, "", path)
            if (path !~ made) print path (open ? "*" : "") "\t" FILENAME ":" FNR
        }
    }' | sort -u > "$work/paths"
bad=$(while IFS="$(printf '\t')" read -r path place; do
    # shellcheck disable=SC2086
    set -- $path
    [ -e "$1" ] || [ -e "$1.idx" ] || echo "$place: there is no $path"
done < "$work/paths")
echo "$(wc -l < "$work/paths") paths"
[ -z "$bad" ] || { echo "$bad"; exit 1; }
