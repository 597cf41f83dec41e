#!/bin/sh
# tests/tree/text.sh -- rules for the sources: a group's size is compared with 1 or 2 only where groups are
# made, nothing strange lies at the top, no line is wider than 110 columns, no function of the product is
# longer than 60 lines, every .c opens with a comment that says what it is, and every exported symbol is used
# by another object. Exceptions are named here.
set -u
cd "$(dirname "$0")/../.." || exit 2
work=${WORK:-$(mktemp -d)} bad=0
fail() { echo "$1"; sed 's/^/  /' "$work/found"; bad=1; }
product='src parallel kernels train.c'

# ---- a layout of one rank is no special case

# parallel/tensor_rows.c, context.c, expert.c and expert_plan.c are code that compares its group's size; config and fit.c
# compare options
# shellcheck disable=SC2086
git grep -nE 'size (==|!=|>|<=|<) [12]\>([^.]|$)|#if.*(defined|ifdef).*CUDA' -- $product |
    grep -vE '^(parallel/comm/|parallel/(grid|data|context|expert|expert_plan|tensor_rows)\.c|parallel/schedule/schedule\.c|src/config/|src/run/fit\.c)' \
    > "$work/found" && fail "asks whether it has one rank"

# ---- what lies at the top: a command that was run there may have left files

git ls-files | grep -vE '/|^(Makefile|(README|SECURITY)\.md|train\.c|\.gitignore|\.clang-format)$' > "$work/found" &&
    fail "not at the top of the tree:"

# ---- width

git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' '*.def' | xargs awk 'length > 110 { print FILENAME ":" FNR }' > "$work/found"
[ ! -s "$work/found" ] || fail "wider than 110 columns:"

# ---- length

# The length of a function is the number of lines between its braces. The exceptions are kernels of one loop
# each, over tiles or pieces of a row that stay in registers.
long="k_attention_bwd k_attention_keys k_attention_fwd k_norm_bwd_x"
# shellcheck disable=SC2086
git ls-files $product | grep -E '\.(c|h|cu|cuh|cpp)$' | xargs awk -v long="$long" '
    BEGIN { split(long, names, " "); for (i in names) known[names[i]] = 1 }
    FNR == 1 { open = 0 }
    /^[A-Za-z_].*\(/ { head = "" }
    !open { head = head $0 }
    /^\{/ { open = FNR }
    /^\}/ {
        if (open && FNR - open - 1 > 60) {
            for (name in known) if (index(head, name "(")) open = 0
            if (open) print FILENAME ":" open ": " FNR - open - 1 " lines"
        }
        open = 0
    }' > "$work/found"
[ ! -s "$work/found" ] || fail "functions of more than 60 lines:"

# ---- the first line

for file in $(git ls-files '*.c' '*.cu' '*.cpp'); do
    read -r line < "$file"
    case $line in '/* '* | '// '*) ;; *) echo "$file: $line" ;; esac
done > "$work/found"
[ ! -s "$work/found" ] || fail "does not open with a comment that says what it is:"

# ---- exported symbols

# symbols of tests alone; training_run is handed down by main, command_run is declared in commands.def
tests_only="alias_at attention_bwd_blocks command_run config_docs config_forget config_hash console_progress_line
            grid_expert_group grid_group interval_parse
            pair_count pairs param_defs params_refresh predict_walked rope_rates
            split_parse st_parse tensorboard_crc32c training_run"
debug=0
case ${BUILD:-} in *debug*) debug=1 ;; esac
{
    make -n -B DEBUG=$debug train tests
    make -n -B DEBUG=$debug CUDA=emulated train cuda-tests
} | sed -n 's/^.*echo "  [cn][cv] [^;]*; .* -c \([^ ]*\) -o \([^ ]*\).*$/\1 \2/p' | sort -u > "$work/objects"
while read -r file object; do
    [ ! -e "$object" ] || echo "$object:" "$file"
done < "$work/objects" > "$work/symbols"
[ "$(wc -l < "$work/symbols")" -gt 200 ] || { echo "only $(wc -l < "$work/symbols") objects: build first"; bad=1; }
sed 's/: .*//' "$work/symbols" | xargs nm -A -P >> "$work/symbols"
awk -v tests_only="$tests_only" '
    BEGIN { n = split(tests_only, names, " "); for (i = 1; i <= n; i++) known[names[i]] = 1 }
    NF == 2 && $1 ~ /\.o:$/ { file[$1] = $2; next }
    { sub(/_(generic|avx2|avx512)_f(32|64)$/, "", $2) }
    $3 ~ /^[TDBRC]$/ && file[$1] !~ /^tests/ && $2 !~ /^_Z/ { home[$2] = file[$1] }
    $3 ~ /^[Uw]$/ { if (file[$1] ~ /^tests/) tested[$2] = 1; else used[$2] = 1 }
    END {
        for (s in home) if (!(s in used) && s != "main") {
            if (s in known) listed[s] = 1
            if (s in known || s ~ /^generate_/) continue         # a row of SCHEDULES, whichever file has it
            if (!(s in tested)) print s " of " home[s] ": no other object uses it; make it static"
            else print s " of " home[s] ": tests alone use it"
        }
        for (s in known) if (!(s in listed)) print s ": its exception serves nothing"
    }' "$work/symbols" | sort > "$work/found"
[ ! -s "$work/found" ] || fail "exported:"
exit $bad
