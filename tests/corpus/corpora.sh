#!/bin/sh
# tests/corpus/corpora.sh -- train_data_path, valid_data_path and test_data_path give the numbers of data_path
# and split over the same texts. Every corpus is checked at the start. Settings that do not go together are
# refused.
set -u
cd "$WORK" || exit 1
i=0
while [ $i -lt 40 ]; do
    echo "{\"text\": \"Document $i has its own words: $((i * 7919)) and $((i * i * 31 + 5)), $((i % 7)) of them.\"}"
    i=$((i + 1))
done > ab.jsonl
head -n 20 ab.jsonl > a.jsonl
tail -n 20 ab.jsonl > b.jsonl
for name in a b ab; do
    "$TRAIN" tokenize $name.jsonl -o $name > out 2>&1 || { cat out; exit 1; }
done
# another process may have the same id, in another container: what is there under a name made of it stays
mkdir same
# shellcheck disable=SC2016
sh -c 'echo others > same/c.bin.$$.tmp; cp same/c.bin.$$.tmp same/c.idx.$$.tmp; exec "$@"' sh "$TRAIN" tokenize a.jsonl -o same/c > out 2>&1 ||
    { cat out; exit 1; }
[ "$(cat same/c.*.tmp)" = "$(printf 'others\nothers')" ] || { echo "tokenize has removed what another process writes"; exit 1; }
cmp a.bin same/c.bin && cmp a.idx same/c.idx || exit 1
i=0
while [ $i -lt 200 ]; do printf '`\352'; i=$((i + 1)); done > big     # u16 tokens, each 60000
cat > c.yaml <<YAML
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 2, seq_length: 16}
train: {micro_batch_size: 2, train_iters: 6, eval_interval: 3, eval_iters: 2}
optimizer: {lr: 1e-2}
log: {log_interval: 1}
precision: {cpu_isa: ${ISA:-auto}, threads: 1}
YAML
bad=0
# does CODE TEXT ARGUMENTS...: `train ARGUMENTS` ends with CODE, and its output has TEXT (grep -E)
does() {
    code=$1 text=$2
    shift 2
    timeout 240 "$TRAIN" "$@" > out 2>&1 < /dev/null
    rc=$?
    [ $rc = "$code" ] && grep -Eq -- "$text" out && return
    bad=$((bad + 1))
    echo "train $*: exit $rc, not $code, or nothing like '$text'"
    head -n 5 out | sed 's/^/    /'
}
same() {
    cmp -s "$1" "$2" && [ -s "$1" ] && return
    bad=$((bad + 1))
    echo "$3"
    diff "$1" "$2" | head -n 4
}
numbers() {
    grep -o '"\(iteration\|consumed_samples\|lm_loss\|grad_norm\|valid_loss\)": [^,}]*' "$1/metrics.jsonl"
}

# the same texts give the same numbers by split and by corpora of their own
does 0 finished\|iteration c.yaml data_path=ab split='1, 1' save=shares
does 0 'validation: [0-9]+ tokens' c.yaml train_data_path=a valid_data_path=b test_data_path=b save=own
numbers shares > shares.numbers
numbers own > own.numbers
same shares.numbers own.numbers "corpora of their own train otherwise than shares of one"
[ "$(grep -c valid_loss own.numbers)" = 2 ] || { echo "no evaluations"; bad=$((bad + 1)); }

# a run whose length is no multiple of eval_interval is evaluated at its end, too; one that only pauses, or is shorter, is not
at() { sed -n 's/.*"iteration": \([0-9]*\),.*"valid_loss".*/\1/p' "$1/metrics.jsonl" | tr '\n' ' '; }
does 75 . c.yaml train_data_path=a valid_data_path=b save=odd train_iters=5 eval_interval=2 exit_interval=3
[ "$(at odd)" = '2 ' ] || { echo "evaluated at '$(at odd)', not at 2"; bad=$((bad + 1)); }
does 0 finished c.yaml train_data_path=a valid_data_path=b save=odd load=latest train_iters=5 eval_interval=2
[ "$(at odd)" = '2 4 5 ' ] || { echo "evaluated at '$(at odd)', not at 2 4 5"; bad=$((bad + 1)); }
does 0 finished c.yaml train_data_path=a valid_data_path=b save=late train_iters=5 eval_interval=100
[ -z "$(at late)" ] || { echo "evaluated at '$(at late)' before eval_interval"; bad=$((bad + 1)); }

does 0 valid_loss eval c.yaml data_path=ab split='1, 1' load=shares --json
grep -o '"valid_loss": [^,]*' out > shares.eval
does 0 valid_loss eval c.yaml valid_data_path=b load=own --json
grep -o '"valid_loss": [^,]*' out > own.eval
same shares.eval own.eval "eval differs"
does 0 test_loss eval c.yaml train_data_path=a test_data_path=b load=own --split test --json
grep -o '"test_loss": [^,]*' out | sed 's/test_/valid_/' > own.test
same shares.eval own.test "eval --split test differs"
does 0 'test loss' eval c.yaml data_path=ab split='2, 1, 1' load=own --split test
does 0 . dump c.yaml data_path='[0.3, a, 0.7, b]' split='1, 0' eval_iters=0 -o one
does 0 . dump c.yaml train_data_path='[0.3, a, 0.7, b]' eval_iters=0 -o two
same one two "the dump of a blend differs"
does 0 . verify c.yaml train_data_path=a valid_data_path=b
does 0 . plan c.yaml train_data_path=a valid_data_path=b

# a run resumes from its own config.yaml; a changed corpus is reported
does 0 'resuming after iteration 6' own/config.yaml load=latest train_iters=8
does 0 'valid_data_path: \[b\] -> \[a\]' own/config.yaml load=latest train_iters=10 valid_data_path=a
grep -q '^  split: null$' own/config.yaml || { echo "config.yaml names a split"; bad=$((bad + 1)); }
grep -q "^  split: '1, 1'$" shares/config.yaml || { echo "config.yaml names no split"; bad=$((bad + 1)); }

# every corpus is checked at the start, even one that is not read
off=eval_iters=0
does 3 '\] valid_data_path: nowhere: No such file' c.yaml train_data_path=a valid_data_path=nowhere $off save=x1
does 3 '\] test_data_path: nowhere: No such file' c.yaml train_data_path=a valid_data_path=b test_data_path=nowhere save=x2
does 3 '\] test_data_path: .*id 60000, the vocabulary' c.yaml train_data_path=a valid_data_path=b test_data_path=raw:big save=x3
does 3 '\] valid_data_path: .*id 60000, the vocabulary' c.yaml train_data_path=a valid_data_path=raw:big save=x4
does 3 '\] test_data_path is empty' eval c.yaml valid_data_path=b load=own --split test
does 2 "'valid', 'test' or 'train'" eval c.yaml valid_data_path=b load=own --split dev

# settings that do not go together
does 2 'train_data_path: .*does not go with data_path' c.yaml data_path=ab train_data_path=a valid_data_path=b
does 2 'test_data_path: .*does not go with data_path' c.yaml data_path=ab test_data_path=b
does 2 'train_data_path: .*does not go with split' c.yaml split='9, 1' train_data_path=a valid_data_path=b
does 2 'train_data_path: missing' c.yaml valid_data_path=b
does 2 'eval_interval: .*valid_data_path, which is absent' c.yaml train_data_path=a
does 0 'iteration +6/' c.yaml train_data_path=a $off save=none

# documents are told apart by the id that is named; one that a corpus lacks is reported once
ids="c.yaml data_path=ab split=2,1 vocab_size=300 tokenizer_type=none"
lacks='warning: ab has no end-of-document, id 299, among its first .*; change: null_tokenizer_eod_id'
for key in reset_attention_mask reset_position_ids eod_mask_loss; do
    does 0 "$lacks" $ids $key=true save=lacks-$key
    [ "$(grep -c warning out)" = 1 ] || { echo "$key: the warning comes again"; bad=$((bad + 1)); }
    does 0 . $ids $key=true null_tokenizer_eod_id=256 save=ends-$key
    ! grep warning out || { echo "$key: warned although 256 is there"; bad=$((bad + 1)); }
    numbers lacks-$key > lacks
    numbers ends-$key > ends
    ! cmp -s lacks ends || { echo "$key does nothing"; bad=$((bad + 1)); }
done
does 0 . $ids save=plain
! grep warning out || { echo "warned although documents are not told apart"; bad=$((bad + 1)); }

echo "$bad wrong"
[ $bad = 0 ]
