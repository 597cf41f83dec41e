#!/bin/sh
# tests/plan/score.sh -- published runs beside their predictions: average errors within what the project promises, one row
# beside `train plan`, and tables with mistakes.
work=${WORK:?} tables=configs/published
fail() { echo "# $1"; [ ! -f "$work/err" ] || sed 's/^/#   /' "$work/err"; exit 1; }

# within TABLE MACHINE PERCENT [SET]: the average error of the rows (of a set) is no more than PERCENT
within() {
    "$TRAIN" score "$tables/$1.csv" --machine "$2" > "$work/out" 2> "$work/err" || fail "$1"
    line=$(grep "^${4:+$4: }[0-9]* rows: average" "$work/out") || fail "$1: no average"
    echo "# $1 ${4-}: $line"
    echo "$line" | awk -v most="$3" '{ sub(/.*average /, ""); exit !($1 <= most) }' || fail "$1: $line; at most $3 %"
}
within selective-2022 a100-80gb-2022 2
within sc21 a100-80gb-2022 4
within llmc-a100 a100-80gb 4
within nemo-2024-h100 h100-mcore-2024 8 'kept out'
within nemo-2024-h100 h100-mcore-2024 8 tuned
within nemo-2025-h100 h100-mcore-2024 8
within grok1-h100 h100-mcore-2024 8
within gridiron-h200 h200 4 BF16
within gridiron-h200 h200 12 FP8

# A row is what `train plan` predicts of the same keys; a measured time of twice that is an error of -50 %.
machine=a100-80gb
"$TRAIN" plan $tables/base-gpt3.yaml --world 16 --machine $machine num_layers=4 hidden_size=1024 num_attention_heads=16 \
    tensor_model_parallel_size=2 micro_batch_size=2 global_batch_size=64 --json > "$work/plan.json" 2> "$work/err" ||
    fail "plan"
step=$(sed -n 's/.*"step_ms": \([0-9.e+-]*\).*/\1/p' "$work/plan.json")
cp $tables/base-gpt3.yaml "$work/base.yaml"
head='name,world,config,step_s,num_layers,hidden_size,num_attention_heads,tensor_model_parallel_size,global_batch_size'
{
    echo "# a comment"
    echo "$head,set"
    echo "\"half, \"\"quoted\"\"\",16,base.yaml,$(awk -v s="$step" 'BEGIN { printf "%.12g", s / 500 }'),4,1024,16,2,64,\"\""
} > "$work/rows.csv"
"$TRAIN" score "$work/rows.csv" --machine $machine micro_batch_size=2 --json > "$work/out" 2> "$work/err" || fail "one row"
error=$(sed -n 's/.*"error_percent": \([0-9.e+-]*\).*/\1/p' "$work/out")
awk -v e="$error" 'BEGIN { exit !(e > -50.000001 && e < -49.999999) }' || fail "half as long as measured: $error %"
grep -Fq '"name": "half, \"quoted\""' "$work/out" || fail "a quoted cell"

# a name and a set that are not UTF-8, with a character that a terminal obeys
{ sed -n 2p "$work/rows.csv"; printf 'caf\351 \033m,16,base.yaml,1,4,1024,16,2,64,d\351t\n'; } > "$work/latin.csv"
"$TRAIN" score "$work/latin.csv" --machine $machine micro_batch_size=2 --json > "$work/latin" 2> "$work/err" || fail "Latin-1"
grep -q '"name": "caf? ?m"' "$work/latin" && [ "$(grep -c '"d?t"' "$work/latin")" = 2 ] || fail "Latin-1: $(cat "$work/latin")"
"$TRAIN" score "$work/latin.csv" --machine $machine micro_batch_size=2 > "$work/latin" 2> "$work/err" || fail "Latin-1 as text"
! LC_ALL=C grep -q "$(printf '\033')" "$work/latin" || fail "a control character"

# as spreadsheets write it: a byte-order mark, and two characters at the end of a line
{ printf '\357\273\277'; sed -e 1d -e 's/$/\r/' "$work/rows.csv"; } > "$work/marked.csv"
"$TRAIN" score "$work/marked.csv" --machine $machine micro_batch_size=2 --json > "$work/again" 2> "$work/err" ||
    fail "a byte-order mark"
diff "$work/out" "$work/again" > "$work/err" || fail "a byte-order mark: other numbers"

# Tokens a second of the whole job: 64 samples of 2,048 tokens in the step's time are an error of 0.
{
    echo "$head" | sed 's/step_s/tokens_per_second/'
    echo "same,16,base.yaml,$(awk -v s="$step" 'BEGIN { printf "%.12g", 64 * 2048 / s * 1000 }'),4,1024,16,2,64"
} > "$work/rows.csv"
"$TRAIN" score "$work/rows.csv" --machine $machine micro_batch_size=2 --json > "$work/out" 2> "$work/err" || fail "tokens"
error=$(sed -n 's/.*"error_percent": \([0-9.e+-]*\).*/\1/p' "$work/out")
awk -v e="$error" 'BEGIN { exit !(e > -1e-6 && e < 1e-6) }' || fail "tokens a second: $error %"

# refused LINES WORDS: the table ends with 2, one error line that says WORDS
refused() {
    printf '%b\n' "$1" > "$work/rows.csv"
    "$TRAIN" score "$work/rows.csv" --machine $machine > "$work/out" 2> "$work/err"
    [ $? = 2 ] || fail "not refused: $1"
    [ "$(grep -c '^error\[' "$work/err")" = 1 ] && grep -q "^error\[score\].*$2.*change: " "$work/err" || fail "$1: no word of $2"
}
row='x,16,base.yaml,1,4,1024,16,2,64'
refused "$head,hiden_size\n$row,3" "column 'hiden_size' is none"
refused "$head,world\n$row,3" "column 'world' stands there twice"
refused "$head,hidden_size\n$row,3" "column 'hidden_size' stands there twice"
refused "name,world,step_s\nx,1,1" "no column 'config'"
refused "name,world,config\nx,1,base.yaml" "what was measured"
refused "name,world,config,step_s,tokens_per_second\nx,1,base.yaml,1,1" "two columns with what was measured"
refused "$head\n$row,5" "10 cells under 9 columns"
refused "$head\nx,16.5,base.yaml,1,4,1024,16,2,64" "world '16.5' is no number of ranks"
refused "$head\nx,16,base.yaml,0,4,1024,16,2,64" "step_s '0' is no number above 0"
refused "$head\n\"x,16,base.yaml,1,4,1024,16,2,64" "a quote is not closed"
refused "$head\n\"x\"\",16,base.yaml,1,4,1024,16,2,64" "a quote is not closed"
refused "$head\n\"x\"y,16,base.yaml,1,4,1024,16,2,64" "behind a quoted cell"
refused "$head\nx,16,base.yaml,1,4,1024,16,3,64" "rows.csv:2: the list above is about this row, x"
refused "# nothing" "no rows"

# other software recomputes whole layers, where ours leave out a last product; and makes no copies of FP8 weights again for
# want of room, as ours does where it is short
step() { "$TRAIN" plan "$work/layers.yaml" --json "$@" | sed -n 's/^ *"step_ms": \([0-9.]*\),*$/\1/p' | head -n 1; }
cat > "$work/layers.yaml" <<YAML
model: {num_layers: 8, hidden_size: 8192, num_attention_heads: 64, seq_length: 2048, vocab_size: 1024}
data: {tokenizer_type: none}
train: {micro_batch_size: 1, global_batch_size: 8}
precision: {params_dtype: bf16}
YAML
for machine in h100 h100-mcore-2024; do
    full=$(step --machine $machine recompute_granularity=full recompute_method=uniform recompute_num_layers=1)
    echo "$machine $full $(step --machine $machine)"
done > "$work/ratios"
awk '{ r[$1] = $2 / $3 } END { exit !(r["h100-mcore-2024"] > r["h100"] + 0.02) }' "$work/ratios" || fail "$(cat "$work/ratios")"
for machine in h100 h100-mcore-2024; do
    for gib in 110 400; do
        printf 'machine: {like: %s}\ndevice: {memory_gib: %s}\n' $machine $gib > "$work/m.yaml"
        step --machine "$work/m.yaml" fp8=hybrid
    done
done | tr '\n' ' ' > "$work/steps"
awk '{ exit !($1 > $2 && $3 == $4) }' "$work/steps" || fail "FP8 with little and much memory: $(cat "$work/steps")"
"$TRAIN" score $tables/sc21.csv > "$work/out" 2> "$work/err"
[ $? = 2 ] && grep -q '^error\[usage\].*--machine is missing' "$work/err" || fail "no machine"
exit 0
