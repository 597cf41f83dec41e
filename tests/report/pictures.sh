#!/bin/sh
# tests/report/pictures.sh -- the pictures that a page's script draws from the page's data, as chromium leaves them: a traced
# run of 2 ranks, a run of one step, one of 20,000 steps, and a sweep. Nothing is drawn at no place, nothing is left out.
set -e
command -v chromium > /dev/null || { echo "no chromium"; exit 77; }
work=${WORK:?} launched=$TRAIN
. tests/tiny.sh
# drawn FILE: the page as it is shown, a tag a line, without scripts; a script that fails leaves curves out
drawn() {
    chromium --headless=new --no-sandbox --user-data-dir="$work/profile" --dump-dom "file://$1" 2> "$work/err" |
        awk 'BEGIN { RS = "</script>" } { sub(/<script.*/, ""); gsub(/></, ">\n<"); print }' > "$work/page"
    grep -q '</footer>\|</table>' "$work/page" || { echo "no page: $(tail -n 1 "$work/err")"; exit 77; }
    ! grep -n 'NaN\|Infinity\|undefined' "$work/page" || { echo "$1: drawn at no place"; exit 1; }
}
# has N TEXT: N lines of the page have the text
has() { [ "$(grep -c -- "$2" "$work/page")" = "$1" ] || { echo "$(grep -c -- "$2" "$work/page") of $1 $2"; exit 1; }; }

"$TRAIN" tokenize src/report -o "$work/corpus" > /dev/null 2>&1
tiny "$work/tiny.yaml" train.global_batch_size=4 train.train_iters=5 'log.trace_steps=[5]' train.eval_interval=2 \
    train.eval_iters=1
TRAIN=$launched scripts/launch -n 2 "$work/tiny.yaml" save="$work/pp2" pipeline_model_parallel_size=2 > "$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
drawn "$work/pp2/report.html"
has 2 '<rect class="floor"'
has 16 '<rect class="F"'                   # 4 microbatches on 2 ranks, and the same replayed
has 16 '<rect class="B"'
has 2 '<rect class="S"'
has 16 '<title>F[0-3].0: '
has 7 '<svg viewBox'                       # the loss over iterations, tokens and time, and four other curves
has 6 '<path class="line a"'
has 6 '<path class="dots a"'
has 3 '<path class="dots b"'
has 1 '<td>rank 1</td>'
has 1 'style="height:.*min-width:[0-9.]*px"'

mkdir "$work/one" "$work/long" "$work/moe"
echo '{"iteration": 3, "lm_loss": 2, "moe_load_max_over_mean": 2, "moe": {"layers": [1, 4],
"load_max_over_mean": [2, 1], "load": [[0, 6, 3, 3], [3, 3, 3, 3]]}}' | tr '\n' ' ' > "$work/moe/metrics.jsonl"
echo >> "$work/moe/metrics.jsonl"
echo '{"iteration": 1, "lm_loss": 2}' > "$work/one/metrics.jsonl"
awk 'BEGIN { for (i = 1; i <= 20000; i++) {
    loss = i == 7000 ? "1e300" : i > 9000 && i < 9500 ? "null" : 2 + 50 / i
    printf "{\"iteration\": %d, \"lm_loss\": %s, \"elapsed_ms\": 10, \"forward_ms\": 4}\n", i, loss } }' \
    > "$work/long/metrics.jsonl"
"$BUILD/test_report" report "$work/one" "$work/long" "$work/moe"
drawn "$work/moe/report.html"
has 8 '<rect class="field [ab]"'
has 1 '<rect class="field b".*fill-opacity="1.000"'
has 1 '<rect class="field a".*fill-opacity="1.000"'
has 6 '<rect class="field a".*fill-opacity="0.000"'
has 1 'layer 1, expert 1: 2 times the mean<'
has 1 '<text class="r soft".*dx="-8">4<'
has 1 'more tokens; most: <b>2 times<'
drawn "$work/one/report.html"
has 1 '<path class="dots a" d="M500.0 500.0h0"'
drawn "$work/long/report.html"
has 4 '<path class="line faint a"'         # over iterations, time, log iterations, the last three quarters
has 1 '>log iterations<'
has 5 '<path class=" [a-z]*" d="M.*Z"'     # the phases of a step
has 0 '<path class="dots'
has 3 '>nothing was recorded<'             # learning rate, gradient norm, throughput

"$TRAIN" sweep "$work/tiny.yaml" --machine h100 --world 2 -o "$work/sweep" > "$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
drawn "$work/sweep/sweep.html"
has 24 '<rect class="a"'
has 24 '<title>predicted [0-9.]* ms'
