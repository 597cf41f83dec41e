# tests/tiny.sh -- sourced by tests: the configuration of a GPT that trains in an instant on $work/corpus.

# tiny FILE [SECTION.KEY=VALUE ...] -- writes the configuration to FILE; a given key overrides the one here or is added
tiny() {
    tiny_file=$1
    shift
    printf '%s\n' model.num_layers=2 model.hidden_size=32 model.num_attention_heads=4 model.seq_length=32 \
        "data.data_path=$work/corpus" data.tokenizer_type=byte "data.split='90, 10, 0'" \
        train.micro_batch_size=1 train.global_batch_size=2 train.train_iters=2 optimizer.lr=0.01 \
        "precision.cpu_isa=${ISA:-auto}" log.log_interval=1 "$@" | awk '
        {
            dot = index($0, "."); is = index($0, "=")
            section = substr($0, 1, dot - 1); key = substr($0, dot + 1, is - dot - 1)
            if (!(section in keys)) order[++sections] = section
            if (!((section, key) in value)) keys[section] = keys[section] " " key
            value[section, key] = substr($0, is + 1)
        }
        END {
            for (i = 1; i <= sections; i++) {
                n = split(keys[order[i]], names, " ")
                for (k = 1; k <= n; k++)
                    printf "%s%s: %s", k == 1 ? order[i] ": {" : ", ", names[k], value[order[i], names[k]]
                print "}"
            }
        }' > "$tiny_file"
}
