# Sourced by the recipes beside it. Leaves nothing installed: a package that is not there is unpacked into $work.

: "${TRAIN:=./train}"
prefix=$1
[ -n "$prefix" ] || { echo "usage: $0 PREFIX    makes PREFIX.bin and PREFIX.idx" >&2; exit 2; }
[ -x "$TRAIN" ] || { echo "$0: $TRAIN is missing; change: run make first" >&2; exit 2; }
if [ -f "$prefix.idx" ] && "$TRAIN" inspect "$prefix" > /dev/null 2>&1; then
    echo "$prefix.bin, $prefix.idx: already there"
    exit 0
fi
mkdir -p "$(dirname "$prefix")" || exit 5
work=$(mktemp -d) || exit 5
trap 'rm -rf "$work"' EXIT
mkdir "$work/text"

download() { (cd "$work/deb" && apt-get -q download "$@" > /dev/null 2>&1); }

# unpack PACKAGE...: each unpacked into $work/root, or 1 when one cannot be had. Needs no root. What the packages depend on
# comes too, for their programs to run: LD_LIBRARY_PATH then names its libraries.
unpack() {
    command -v apt-get > /dev/null && command -v dpkg-deb > /dev/null || return 1
    mkdir -p "$work/deb" "$work/root"
    download "$@" || { [ "$(id -u)" = 0 ] && apt-get -q update > /dev/null 2>&1 && download "$@"; } || return 1
    for package in $(apt-cache depends --important "$@" 2> /dev/null | sed -n 's/^ *Depends: \([a-z].*\)/\1/p'); do
        [ "$package" = libc6 ] || download "$package"
    done
    for deb in "$work"/deb/*.deb; do dpkg-deb -x "$deb" "$work/root" || return 1; done
    LD_LIBRARY_PATH=$(find "$work/root" -name '*.so.*' -printf '%h\n' | sort -u | tr '\n' ':')$LD_LIBRARY_PATH
    export LD_LIBRARY_PATH
}

# collect: copies the files named on standard input into $work/text, unpacked. Document i gets a name that scatters the
# order (multiplication by an odd number permutes the residues of 65536), so that a split by position is a fair sample.
collect() {
    i=0
    while read -r file; do
        name=$(printf '%05d' $((i * 40503 % 65536)))
        case $file in
            *.gz) gzip -dc "$file" ;;
            *) cat "$file" ;;
        esac > "$work/text/$name" || return 1
        i=$((i + 1))
    done
}
