#!/bin/sh
# tests/tree/format.sh -- the spacing of every C, C++ and CUDA source is clang-format's, by .clang-format:
# blanks, the indent of statements, braces, single empty lines. Not compared are line breaks (clang-format
# would take apart structs on one line and lists by row), the indent of continued lines, columns set by two
# blanks and more, and macros. Releases of clang-format differ, so one release is used.
set -u
cd "$(dirname "$0")/../.." || exit 2
work=${WORK:-$(mktemp -d)} release=14
clang-format --version 2> /dev/null | grep -q "version $release\." || { echo "no clang-format $release"; exit 77; }
git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' > "$work/files"
[ -s "$work/files" ] || { echo "no list of files"; exit 77; }
xargs clang-format --output-replacements-xml < "$work/files" > "$work/changes" || exit 1
# a line of $work/changes is `<replacement offset='O' length='L'>NEW</replacement>`, in bytes of the file
LC_ALL=C awk -v files="$work/files" '
    function count(s) { return gsub(/\n/, "", s) }
    /^<\?xml/ {                                             # the next file
        getline file < files
        rs = RS; RS = "\001"; getline text < file; RS = rs
        close(file)
        n = split(text, line, "\n")
        at = 1; seen = 0                                    # line and bytes before it
        for (i = 1; i <= n; i++) macro[i] = line[i] ~ /^ *#/ || (i > 1 && macro[i - 1] && line[i - 1] ~ /\\$/)
        next
    }
    /^<replacement / {
        split($0, quoted, "\047")
        offset = quoted[2]; size = quoted[4]
        new = $0; sub(/^[^>]*>/, "", new); sub(/<\/replacement>$/, "", new); gsub(/&#10;/, "\n", new)
        old = substr(text, offset + 1, size)
        while (seen + length(line[at]) + 1 <= offset) seen += length(line[at++]) + 1
        before = substr(text, offset, 1); after = substr(text, offset + size + 1, 4); first = substr(after, 1, 1)
        lines = count(old); wanted = count(new)
        if (old new ~ /[^ \t\n]/ || (macro[at] && lines <= wanted)) next
        if (lines + wanted == 0)              # the last two: clang-format takes pointers for products
            bad = length(old) < 2 && length(new) < 2 && !(old == "" && before == "*") && after !~ /^\(\*/
        else if (lines == wanted) bad = before ~ /[;{}\/]/ && first !~ /[{.]/
        else if (wanted) bad = lines ? lines > wanted : before == ")" && after ~ /^\{\n/
        else bad = after == "else" || (before == ")" && first == "{" && old ~ / /)
        if (bad || old ~ /\t/) print file ":" at + lines ": " line[at + lines]
    }
    END { exit (getline file < files) != 0 }' "$work/changes" > "$work/all" || { echo "files were left"; exit 1; }
uniq "$work/all" > "$work/found"
[ ! -s "$work/found" ] || { echo "spaced unlike clang-format $release:"; sed 's/^/  /' "$work/found"; exit 1; }
