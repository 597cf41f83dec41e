# tests/parallel/same.sh -- sourced by tests: whether a run that was disturbed ended as an undisturbed one did.

kept() { # DIRECTORY: the lines of metrics.jsonl without times and rates
    sed -E 's/, "(comm|stragglers)": .*(, "run_id")/\2/; s/"(elapsed_ms|goodput|tokens_per_second|tflops_per_device|mfu|memory_bytes|[a-z]+_ms|run_id)": *[^,}]*,? ?//g' \
        "$1/metrics.jsonl"
}

# same NAME DIRECTORY WHAT -- the run in DIRECTORY has the checkpoint and metrics of the undisturbed run NAME
same() {
    for newest in "$work/$1"/checkpoints/iter_*; do :; done
    for shard in "$newest"/*.safetensors; do
        cmp "$shard" "$2/checkpoints/${newest##*/}/${shard##*/}" > /dev/null ||
            fail "$3: ${shard##*/} differs after the resume"
    done
    kept "$work/$1" > "$work/a"
    kept "$2" > "$work/b"
    cmp "$work/a" "$work/b" > /dev/null || fail "$3: the metrics differ after the resume"
}
