#!/bin/sh
# data/kjv.sh PREFIX -- the King James Bible as a corpus, one byte a token: 1189 chapters, 4.2 MB of English. From the
# Debian packages bible-kjv and bible-kjv-text: as installed, else downloaded and unpacked aside. With neither, says so
# and takes what English this machine has: licences, manuals and read-me files.
. "$(dirname "$0")/package.sh"

whole='Gen1:1-Rev22:21'

# "1Ki2:3 And he said" -> a file a chapter, a verse a line, labels off
chapters() {
    awk -v dir="$work/text" '{
        verse = $1
        sub(/^[^ ]+ /, "")
        sub(/ +$/, "")
        split(verse, at, ":")
        if (at[1] != chapter) {
            close(file)
            file = sprintf("%s/%05d", dir, n++ * 40503 % 65536)
            chapter = at[1]
        }
        print > file
    }'
}

enough() { [ "$(wc -l < "$work/verses" 2> /dev/null || echo 0)" -gt 31000 ]; }

bible -f "$whole" > "$work/verses" 2> /dev/null
enough || { unpack bible-kjv bible-kjv-text &&
            "$work/root/usr/bin/bible" -p "$work/root/usr/lib/" -f "$whole" > "$work/verses" 2> /dev/null; }
if enough; then
    chapters < "$work/verses"
else
    echo "kjv.sh: bible-kjv and bible-kjv-text are not installed and cannot be downloaded; taking the English text" \
        "of this machine instead" >&2
    find /usr/share/common-licenses /usr/share/perl /usr/share/doc -type f -size +3k -size -400k \( -name '*.pod' -o \
        -name '*README*' -o -name 'FAQ*' -o -path '*common-licenses*' -o -name '*.txt' -o -name '*.txt.gz' -o \
        -name 'NEWS*' -o -name copyright \) 2> /dev/null | sort | head -n 4000 | collect
    if [ "$(cat "$work"/text/* 2> /dev/null | wc -c)" -lt 1000000 ]; then
        echo "kjv.sh: this machine has less than 1 MB of English text; change: install bible-kjv and bible-kjv-text, or" \
            "tokenize a text of your own: $TRAIN tokenize book.txt -o $prefix" >&2
        exit 3
    fi
fi
"$TRAIN" tokenize "$work/text" -o "$prefix"
