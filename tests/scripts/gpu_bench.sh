#!/bin/sh
# tests/scripts/gpu_bench.sh -- scripts/gpu_bench over the emulated device. Two calls fill one file. It has
# the products of every layer, and nvidia-smi's numbers beside each row. PyTorch does not get our libraries,
# even where no program of ours runs.
cd "$(dirname "$0")/../.." || exit 2
work=${WORK:-$(mktemp -d)} python=${PYTHON:-python3}
export EMULATED="${EMULATED:-build/emulated}"
mkdir -p "$work/bin" "$work/torch/bin"
cat > "$work/bin/nvidia-smi" <<'SH'
#!/bin/sh
case $* in
*clocks.sm*)  while :; do echo "1980, 3201, 512.50, 61"; sleep 0.2; done ;;
*name,*)      echo "NVIDIA Emulated, 1.0, 1000, 0, Default, 1980, 700.00" ;;
*memory.used*) echo 0 ;;
esac
SH
cat > "$work/torch/bin/python" <<SH
#!/bin/sh
echo "\$LD_LIBRARY_PATH" > "$work/path"
[ "\$1" = -c ] || for i in 1 2 3 4 5 6; do echo "{\"step\": \$i, \"loss\": 1.0, \"elapsed_ms\": 10.0}"; done
[ "\$1" = -c ] || echo '{"peak_bytes": 1, "torch": "0"}'
SH
chmod +x "$work/bin/nvidia-smi" "$work/torch/bin/python"
fail() { echo "not as it must be: $1"; cat "$work/log"; exit 1; }
bench() { PATH="$work/bin:$PATH" TORCH="$work/torch" GRIDIRON_LIBRARIES=/nowhere/ours LD_LIBRARY_PATH=/nowhere/theirs scripts/gpu_bench --json "$work/all.json" "$@" > "$work/log" 2>&1; }
bench --models gpt2-124m --only 'products$|PyTorch' || fail "the first call fails"
[ "$(cat "$work/path")" = /nowhere/theirs ] || fail "PyTorch has $(cat "$work/path")"
bench --models 7b --only 'products$|ours bf16$' || fail "the second call fails"
"$python" - "$work/all.json" <<'PYTHON' || fail "the file of both calls"
import json, sys
r = json.load(open(sys.argv[1]))
assert r["machine"]["name"] == "NVIDIA Emulated", r["machine"]
assert [(p["model"], p["program"]) for p in r["products"]] == [("gpt2-124m", "products"), ("7b", "products")], r["products"]
for p in r["products"]:
    found = {(x["layer"], x["pass"]) for x in p["rows"] if x["tflops"] > 0 and x["us"] > 0}
    want = {(l, k) for l in ("qkv", "proj", "fc1", "fc2", "head") for k in ("forward", "input gradient", "weight gradient")}
    assert found == want, (p["model"], found ^ want)
rows = {(x["model"], x["program"]): x for x in r["rows"]}
assert set(rows) == {("gpt2-124m", "PyTorch"), ("7b", "ours bf16")}, set(rows)
for x in [*rows.values(), *r["products"]]:
    assert x["gpu"].get("sm_mhz") == [1980] * 3 and x["gpu"]["watts"] == [512.5] * 3 and x["gpu"]["celsius"] == [61] * 3, x
PYTHON
grep '^| 7b *| ours bf16 *|.* 1980 | 512 |$' "$work/log" > /dev/null && grep '^| gpt2-124m *| PyTorch' "$work/log" > /dev/null || fail "the table"
for c in configs/gpu/*.yaml; do
    tokens=$(awk '/^  global_batch_size:/ { b = $2 } /^  seq_length:/ { s = $2 } END { print b * s }' "$c")
    [ "$tokens" -ge 262144 ] && [ "$tokens" -le 524288 ] || fail "$c: $tokens tokens a step"
done
echo "two calls, one file"
