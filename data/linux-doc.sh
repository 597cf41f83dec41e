#!/bin/sh
# data/linux-doc.sh PREFIX -- the Linux kernel's documentation as a corpus, one byte a token: 3200 files, 24 MB of
# technical English, tables and code. From Debian's linux-doc package of this release: as installed, else downloaded
# (37 MB) and unpacked aside.
. "$(dirname "$0")/package.sh"

sources() { find "$1/usr/share/doc/" -path '*linux-doc-*_sources*' -name '*.txt' -type f 2> /dev/null | sort; }

root=
if [ -z "$(sources '' | head -n 1)" ]; then
    root=$work/root
    package=$(apt-cache depends linux-doc 2> /dev/null | sed -n 's/.*Depends: \(linux-doc-[^ ]*\).*/\1/p' | head -n 1)
    unpack "${package:-linux-doc-6.1}" || {
        echo "linux-doc.sh: ${package:-linux-doc-6.1} is not installed and cannot be downloaded; change: install it" >&2
        exit 3
    }
fi
sources "$root" | collect || exit 3
"$TRAIN" tokenize "$work/text" -o "$prefix"
