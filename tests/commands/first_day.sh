#!/bin/sh
# tests/commands/first_day.sh -- questions, mistypings and habits from other programs of a new user. Every
# mistake ends with its exit code and one line that says what to write instead.
set -u
launch=$PWD/scripts/launch
cd "$WORK" || exit 1
cat > c.yaml <<YAML
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 2, seq_length: 16}
data: {data_path: corpus, split: '90, 10'}
train: {micro_batch_size: 2, train_iters: 4, eval_interval: 2, eval_iters: 1}
optimizer: {lr: 1e-3}
log: {log_interval: 1}
precision: {cpu_isa: ${ISA:-auto}, threads: 1}
YAML
yes '{"text": "It was a bright cold day in April, and the clocks were striking thirteen."}' | head -n 100 > text.jsonl
"$TRAIN" tokenize text.jsonl -o corpus > tokenized 2>&1 || { cat tokenized; exit 1; }
mkdir folder
bad=0 n=0

# says CODE TEXT ARGUMENTS...: `train ARGUMENTS` ends with CODE and its output has TEXT (a pattern of grep
# -E). A command that fails prints one line `error[ID] ...; change: ...`, without a C file's name.
says() {
    code=$1 text=$2
    shift 2
    timeout 240 "$TRAIN" "$@" > out 2>&1 < /dev/null
    rc=$?
    n=$((n + 1))
    why=
    [ $rc = "$code" ] || why="exit $rc, not $code"
    grep -Eq -- "$text" out || why="$why; nothing like '$text'"
    if [ "$code" != 0 ] && [ "$code" != 1 ]; then
        [ "$(grep -c '^error\[' out)" = 1 ] || why="$why; not one error line"
        grep '^error\[' out | grep -q '; change: ' || why="$why; no change:"
    fi
    ! grep -Eq '[a-z_]+\.[ch]:[0-9]+:' out || why="$why; a C file's name"
    [ -z "$why" ] && return
    bad=$((bad + 1))
    echo "train $*: $why"
    head -n 5 out | sed 's/^/    /'
}

# questions
says 2 'train help'
says 0 '^gridiron ' --version
says 2 'train --version' version
says 2 'train --version' -v
says 2 'one thing at a time' help plan schedule
says 0 'tensor_model_parallel_size' help keys
says 0 'params_dtype=bf16' help bf16
says 0 'activation=swiglu' help swiglu
says 0 'step_batch_size_schedule=' help rampup_batch_size
says 0 'data_parallel_sharding_strategy=optim' help use_distributed_optimizer
says 0 'params_dtype=fp16' help --fp16
says 0 '^tensor_model_parallel_size' help tensor-model-parallel-size
says 2 'did you mean `lr`' help lrr
says 0 'train run' c.yaml --help
for command in run plan schedule bubble sweep tokenize generate eval import export dump verify inspect help; do
    says 0 "^train $command " $command --help
    says 0 "^train $command " $command -h
done
says 0 '\[--seed N\] \[--json\]$' help generate
# of several ranks one answers
for question in --version --help "eval --help" "c.yaml -h"; do
    # shellcheck disable=SC2086
    "$TRAIN" $question > alone 2>&1
    # shellcheck disable=SC2086
    TRAIN=$TRAIN "$launch" -n 2 $question > out 2>&1 && cmp -s alone out && continue
    bad=$((bad + 1))
    echo "scripts/launch -n 2 $question:"
    head -n 5 out
done
says 0 '\[--tokenizer byte\]$' help tokenize
"$TRAIN" help keys > keys
while read -r key; do
    grep -Eq "^ +$key " keys || { echo "help keys lacks $key"; bad=$((bad + 1)); }
done <<KEYS
$(sed -n 's/^| `\([a-z0-9_]*\)` .*/\1/p' "$OLDPWD/configs/OPTIONS.md")
KEYS

# half a rank, half a token
says 2 '--world 1.5 is not a whole number in \[1, ' plan c.yaml --world 1.5
says 2 '--steps 2.5 is not a whole number' sweep c.yaml --world 1 --measure 1 --steps 2.5
says 2 '--tokens 1.9 is not a whole number' generate c.yaml --tokens 1.9
says 2 '--threads 1.5 is not a whole number' tokenize text.jsonl -o other --threads 1.5

# a flag is no value of another one
says 2 '--machine needs a value, and --json is a flag' plan c.yaml --machine --json
says 2 '--machine needs a value, and --json is a flag' plan --machine --json c.yaml
says 2 '-o needs a value, and --shard-bytes is a flag' export runs -o --shard-bytes 5
says 2 '--svg needs a value' schedule c.yaml --svg
says 2 '--tokens -1 is not a whole number' generate c.yaml --tokens -1

# empty words, as an unset variable in quotes gives them
for command in plan run report replay flight inspect; do
    says 2 "train $command: .*empty" $command ''
done
says 2 '-o needs a value, and this one is empty' import folder -o ''
says 2 'train export: .*empty' export '' -o none
says 2 'train tokenize: .*empty' tokenize text.jsonl '' -o none
[ ! -e none ] && [ ! -e none.bin ] || { echo "something was made of nothing"; bad=$((bad + 1)); }

# habits of Megatron, torchtitan, nanotron, llm.c
says 2 'write `tensor_model_parallel_size=2`' c.yaml --tensor-model-parallel-size 2
says 2 'write `tensor_model_parallel_size=2`' --tensor-model-parallel-size 2 c.yaml
says 2 'write `lr=3`' c.yaml --lr 3
says 2 'write `lr=3`' c.yaml --lr=3
says 2 'write `sequence_parallel=true params_dtype=bf16 num_layers=3`' c.yaml --sequence-parallel --bf16 --n-layer 3
says 2 '`--use-flash-attn`: leave it out' c.yaml --lr 3 --use-flash-attn
says 2 'write `hidden_size=64`' c.yaml --model.hidden_size 64
says 2 'did you mean `hidden_size`' c.yaml --hiden-size 64
says 2 '`train CONFIG.yaml`' --config c.yaml
says 2 '`train CONFIG.yaml`' run --config c.yaml
says 2 'write lr=3' c.yaml lr 3
says 2 'write lr=3' c.yaml lr = 3
says 2 'write lr=3' c.yaml lr: 3
says 2 'params_dtype=bf16' c.yaml bf16=true
says 2 'activation=swiglu' c.yaml swiglu=true
says 2 'data_parallel_sharding_strategy=optim' c.yaml use_distributed_optimizer=true
says 2 "write 'num_layers'" c.yaml n_layer=3
printf 'precision:\n  bf16: true\n' > bf16.yaml
says 2 '^bf16.yaml:2:3: .*params_dtype=bf16' bf16.yaml
printf 'optimizer:\n  lr: 1e-3\n  lr: 2e-3\n' > twice.yaml
printf 'learning_rate: 3e-4\n' > flat.yaml
says 2 "^flat.yaml:1:1: .*write 'lr'" flat.yaml
printf '{"model_type": "llama", "hidden_size": 32}' > config.json
says 2 "hidden_size: belongs into section 'model'" config.json

# values and spellings of other programs
says 2 "did you mean 'bf16'" c.yaml params_dtype=bfloat16
says 2 "did you mean 'fp32'" c.yaml params_dtype=float32
says 2 "did you mean 'swiglu'" c.yaml activation=silu
says 2 "did you mean 'rope'" c.yaml position_embedding_type=rotary
says 2 "did you mean 'cuda'" c.yaml device=gpu
says 2 "did you mean 'none'" c.yaml tokenizer_type=GPT2BPETokenizer
says 2 "unknown key 'optimizer.lr'; write 'lr' .section 'optimizer'" c.yaml optimizer.lr=3
printf 'MODEL_ARGS:\n  --num-layers: 12\n  --bf16: true\n' > megatron.yaml
says 2 "^megatron.yaml:2:3: .*write 'num_layers' .section 'model'" megatron.yaml
says 2 "^megatron.yaml:3:3: .*write params_dtype=bf16" megatron.yaml
says 2 'scripts/launch -n' c.yaml -n 4
says 2 'scripts/launch -n' c.yaml --world 4
says 2 'write `save=out`' c.yaml -o out
says 2 'write `load=latest`' c.yaml --resume
says 2 'train plan CONFIG.yaml' c.yaml --dry-run
says 2 'load=nothing' c.yaml nothing
says 2 'load=folder' eval c.yaml folder

# files that are no configuration: one problem is reported, not a list of missing keys
printf -- '- model\n- data\n' > list.yaml
: > empty.yaml
printf 'model:\n  num_layers 2\n' > colon.yaml
for file in list empty; do
    says 2 '1 problem in' $file.yaml
done
says 2 "as 'key: value', with a blank behind the colon" colon.yaml

# wrong words, files and folders
says 2 'did you mean `generate`' generat c.yaml
says 2 'did you mean `--json`' plan c.yaml --jsn
says 2 'nofile.yaml: No such file' nofile.yaml
says 2 'is a directory' .
says 2 'no configuration' corpus.bin
says 2 'one configuration' c.yaml c.yaml
says 2 'CONFIG.yaml comes first' lr=3
says 2 'scripts/launch -n 2' c.yaml tensor_model_parallel_size=2
says 3 'train tokenize' c.yaml data_path=nowhere
says 2 'this build' c.yaml pipeline_model_parallel_layout='Ettm|L'
says 2 'no such file' inspect nowhere
says 2 'folder is neither a checkpoint .*, a run directory .* nor of Hugging Face' inspect folder
says 2 'folder is neither' inspect folder --json
says 2 'folder/ is neither' inspect folder/
mkdir corpus
says 0 'kind  *corpus' inspect corpus
rmdir corpus
says 2 "leave it out" inspect corpus --lr 3
! grep -q 'lr=3' out || { echo "inspect takes lr=3"; bad=$((bad + 1)); }
says 2 'no such file' inspect nowhere --json
says 4 'nowhere' export nowhere -o x
# a run directory is named alone, and is none where it holds no run
for command in report flight inspect; do
    says 2 "train $command: .*; change: write folder alone " $command load=folder
done
says 2 "train export: .*; change: write folder alone " export load=folder -o x
says 2 'RUN comes first, then key=value' replay load=folder
says 2 'CONFIG.yaml comes first' plan load=folder
for wrong in nowhere c.yaml folder; do
    says 2 "train replay: $wrong is no run directory" replay $wrong
    says 2 "train report: $wrong is no run directory" report $wrong
done
says 2 "lr: duplicate; first at line" twice.yaml
says 2 'built without CUDA|fused' c.yaml device=cuda attention_backend=fused

# help names what this build refuses
for key in tokenizer_model; do
    says 0 'this build' help $key
done
for key in device fp8 attention_backend distributed_backend; do
    says 0 'CUDA=1' help $key
done

# of a key given twice on the command line the last value counts; eval_iters=0 turns evaluation off
says 0 'validation loss' c.yaml save=last eval_iters=2 eval_iters=1 lr=1 lr=2e-3
grep -q 'lr: 0.002$' last/config.yaml || { echo "lr is not the last"; bad=$((bad + 1)); }
says 0 'iteration +4/' c.yaml save=off eval_iters=0
! grep -q 'validation loss' out || { echo "eval_iters 0 evaluates"; bad=$((bad + 1)); }
says 2 'eval_iters' eval c.yaml load=off eval_iters=0
grep -q '"command": ".*train c.yaml save=off eval_iters=0"' off/run.json || { echo "run.json lacks the command"; bad=$((bad + 1)); }
grep -Eq '"corpus": "[0-9]+ tokens, 1 epoch"' off/run.json || { echo "run.json has no 1 epoch"; bad=$((bad + 1)); }
says 0 ' parameters in 1 file, from ' export last -o exported
says 0 'transformer.wte.weight +F32 +\[257, 32\]' inspect exported/model.safetensors
mkdir last/checkpoints/iter_0000009.tmp
says 0 'unfinished +iter_0000009.tmp' inspect last
says 2 "there is no command and no file .nosuch." nosuch
says 2 'one argument too many' inspect last exported
says 2 '--names hff; change: --names hf' dump c.yaml -o dumped --names hff
says 2 'cannot open the folder nowhere; change: give a run directory' flight nowhere
says 2 'last holds no flight record' flight last
says 2 'sweep --objective costs: expected tokens, cost or energy; change: --objective cost' sweep c.yaml --objective costs
says 2 'sweep --world 2,2: expected numbers of ranks' sweep c.yaml --world 2,2
says 2 'says no batch size' sweep c.yaml --world 2 --machine h100
says 2 'no layout of 7 ranks is legal' sweep c.yaml --world 7 --machine h100 global_batch_size=4
says 2 '--objective cost needs the price of an hour' sweep c.yaml --world 1 --machine h100 global_batch_size=2 \
    --objective cost
says 2 'calibrate writes what it measures to --machine FILE.yaml' plan c.yaml --calibrate --machine h100

# a bubble of a schedule of batch sizes is that of its first step
printf 'parallel: {pipeline_model_parallel_size: 2}\ntrain: {micro_batch_size: 2, step_batch_size_schedule: "0:12 1K:24"}\n' > b.yaml
says 0 '^ *1f1b +2 +1 +6 ' bubble b.yaml --simulate
says 0 '^ *1f1b +2 +1 +3 ' bubble b.yaml --simulate --m 3
says 0 '^ *1f1b +1 +1 +3 ' bubble c.yaml --real --steps 2 --m 3 step_batch_size_schedule='0:4 1K:8'
says 2 "step_batch_size_schedule's first batch of 13 is no number .*change: give --m" bubble b.yaml --simulate step_batch_size_schedule=0:13
says 2 "step_batch_size_schedule '3:x' is not THRESHOLD:BATCH.*change: give --m" bubble b.yaml --simulate step_batch_size_schedule=3:x
says 2 'no number of microbatches; change: give --m' bubble b.yaml --simulate step_batch_size_schedule=null

# a copy outside the tree has no scripts/launch: it starts its ranks by mpirun, also for root
cp "$TRAIN" lonely
tree=$TRAIN TRAIN=$PWD/lonely
says 0 '^ *gpipe +2 +1 +4 ' bubble b.yaml --real --schedules gpipe --m 4 --steps 2 num_layers=2 hidden_size=32 \
    num_attention_heads=2 seq_length=16 vocab_size=64 tokenizer_type=none params_dtype=fp32 lr=1e-3 threads=1
TRAIN=$tree

# a folder and load=DIR would be two models
says 2 'folder .* and load=off .*; change: give one' eval off load=off
says 2 'folder .* and load=off .*; change: give one' generate off --tokens 2 load=off
says 0 'validation loss' eval off eval_iters=1

# gradients of 16 bits are read as such; layers with experts alone have no FP8; nothing is above the positions
says 0 'all bits equal' verify c.yaml params_dtype=bf16 main_grads_dtype=bf16
says 0 'tensors' dump c.yaml -o grads.safetensors params_dtype=bf16 main_grads_dtype=bf16
# gradients that overflow are written, with a warning
says 0 '^warning: .*gradient of embedding.*not finite even with a loss_scale of .*; change: ' dump c.yaml -o grads.safetensors \
    params_dtype=fp16 loss_scale=1e30
says 0 '33 tensors' dump c.yaml -o grads.safetensors params_dtype=fp16
! grep -q warning out || { echo "dump warns of finite gradients"; bad=$((bad + 1)); }
says 2 'change: fp8=none' experts c.yaml num_moe_experts=4 params_dtype=bf16 fp8=hybrid
says 2 'change: a shorter prompt' generate c.yaml load=off --prompt "$(head -n 3 text.jsonl)" --tokens 5
says 2 'change: a shorter prompt' generate off --prompt "$(head -n 3 text.jsonl)"
says 2 'change: --tokens 13 or a shorter prompt' generate off --prompt abc --tokens 14
# without --tokens as many as the positions leave
says 0 '"tokens":\[([0-9]+,){1,12}[0-9]+\]' generate off --prompt abc --temperature 0 --json
# a text goes on behind a byte 0, which JSON has as U+FFFD, and so do the run's samples
for i in 1 2 3 4 5 6 7 8 9 10; do printf a; head -c 30 /dev/zero; done > zeros.txt
"$TRAIN" tokenize zeros.txt -o zeros > tokenized 2>&1 || { cat tokenized; exit 1; }
grep -q ': 1 document, .* from 1 file, ' tokenized || { echo "no 1 document from 1 file"; bad=$((bad + 1)); }
says 0 finished c.yaml save=zero data_path=zeros split="'1'" eval_interval=null train_iters=40 lr=1e-2 hidden_dropout=0 attention_dropout=0
says 0 '"tokens":\[0,0,0\]' generate load=zero --prompt aa --tokens 3 --temperature 0 --json
for file in out zero/samples.jsonl; do
    sed 's/\xef\xbf\xbd/./g' $file | grep -q '"text":"\.\.\."' || { echo "$file ends at a byte 0"; bad=$((bad + 1)); }
done
# a prompt of token ids: the only one for a model whose tokenizer is none, as imported ones
says 0 '"prompt":"aa","tokens":\[0,0,0\]' generate load=zero --prompt-ids 97,97 --tokens 3 --temperature 0 --json
says 2 '--prompt and --prompt-ids' generate load=zero --prompt a --prompt-ids 97
for ids in 97, ,97 97,,98 97x 9.5 257 99999999999999999999 a -- ' '; do
    says 2 '--prompt-ids' generate load=zero --prompt-ids "$ids"
done
says 0 finished c.yaml save=ids vocab_size=300 tokenizer_type=none null_tokenizer_eod_id=299 eval_interval=null \
    hidden_dropout=0 attention_dropout=0
says 3 'change: .*--prompt-ids' generate ids --prompt a
says 3 'change: .*--prompt-ids' generate ids
says 0 '"prompt":"5 6","tokens":\[[0-9]+,[0-9]+\],"text":" [0-9]+ [0-9]+"' generate ids --prompt-ids 5,6 --tokens 2 --json
says 0 '^5 6( [0-9]+){2}$' generate ids --prompt-ids '5, 6' --tokens 2 --temperature 0

# what standard output cannot take is not lost in silence
"$TRAIN" plan c.yaml > /dev/full 2> out
{ [ $? = 5 ] && grep -q '^error.write. standard output.*; change: ' out; } || { echo "a full standard output"; bad=$((bad + 1)); }

# a file that cannot be written whole leaves the one before it; one that can has its mode
"$TRAIN" schedule c.yaml --csv lists.csv > out 2>&1
cp lists.csv before
chmod 600 lists.csv
(trap '' XFSZ; ulimit -f 0; "$TRAIN" schedule c.yaml --csv lists.csv 2>&1) | cat > out
{ grep -q '^error.write. cannot write lists.csv: .*; change: free space' out && cmp -s before lists.csv &&
    [ ! -e lists.csv.tmp ]; } || { echo "a table that could not be written: $(cat out)"; bad=$((bad + 1)); }
(trap '' XFSZ; ulimit -f 8; "$TRAIN" schedule c.yaml global_batch_size=512 --svg new.svg 2>&1) | cat > out
grep -q '^error.write. cannot write new.svg: File too large; change: free space' out || { echo "no reason: $(cat out)"; bad=$((bad + 1)); }
name=$(printf '%0253d' 0)
says 5 "cannot write $name: File name too long; change: --csv" schedule c.yaml --csv "$name"
long=$(printf '%0200d/%0200d/%0200d' 0 0 0)
says 3 '[.][.][.]: No such file or directory; change: ' tokenize "$long/text" -o x
# a byte 0 would end a text for its reader
printf 'name,tokens_per_second\n# a\000b\na,1\n' > zeros.csv
says 2 'zeros.csv:2: a byte 0, so this is no text' score zeros.csv --machine h100
echo earlier > grads.safetensors
(trap '' XFSZ; ulimit -f 1; "$TRAIN" dump c.yaml -o grads.safetensors 2>&1) | cat > out
{ grep -q '^error.dump. .*; change: ' out && grep -q earlier grads.safetensors && [ "$(echo grads.*)" = grads.safetensors ]; } ||
    { echo "a dump that could not be written: $(cat out)"; bad=$((bad + 1)); }
says 0 . schedule c.yaml --csv lists.csv
[ "$(stat -c %a lists.csv)" = 600 ] || { echo "the mode of a table"; bad=$((bad + 1)); }

# the folder of a run is named after its configuration; a name that config.yaml cannot hold is refused
odd=$(printf 'b\377d.yaml')
cp c.yaml "$odd"
export LC_ALL=C                          # grep takes the byte for text
says 2 'save: .* is not UTF-8, .*; give save' "$odd"

echo "$n commands, $bad wrong"
[ $bad = 0 ]
