#!/bin/sh
# tests/scripts/neighbours.sh -- what another user of the machine puts into TMPDIR: a folder of the name of a job's work
# folder, whose flight record names a run directory with a link to a file of the job's user; links to nothing under the
# names of the next work folders. The job ends as without them, and the file keeps its bytes. Needs root, for two users.
set -u
[ "$(id -u)" = 0 ] && setpriv --reuid=54321 --regid=54321 --clear-groups true 2> /dev/null || { echo "only root can be two users"; exit 77; }
top=$(TMPDIR=/tmp mktemp -d) bad=0 || exit 1        # others cannot enter the folders above $WORK
trap 'rm -rf "$top"' EXIT
user() { setpriv --reuid=54321 --regid=54321 --clear-groups "$@"; }
other() { setpriv --reuid=54322 --regid=54322 --clear-groups "$@"; }
fail() { echo "# $1"; tail -n 3 "$top/log"; bad=1; }
chmod 755 "$top"
mkdir "$top/build" && cp -r scripts "$top" && cp build/loopback.so "$top/build" && chmod -R a+rX "$top/scripts" "$top/build" || exit 1
cp "$TRAIN" "$top/train" && chmod 755 "$top/train" && cp README.md "$top/text" && chmod a+r "$top/text" || exit 1
mkdir -m 1777 "$top/tmp" && mkdir -m 777 "$top/evil" && mkdir "$top/home" && chown 54321 "$top/home" || exit 1
work=$top/home
. tests/tiny.sh
tiny "$top/tiny.yaml" train.train_iters=1000000 log.log_interval=1000
chmod a+r "$top/tiny.yaml"
cd "$top" || exit 1
user ./train tokenize text -o home/corpus > log 2>&1 || { cat log; exit 1; }
echo precious > home/secret && chown 54321 home/secret

user env TRAIN="$top/train" TMPDIR="$top/tmp" timeout -k 5 120 scripts/launch -n 2 tiny.yaml save=home/run > log 2>&1 &
job=$!
# `together`: the launcher knows that the ranks have found each other, and will ask them to save
until ls tmp/gridiron.*/together > /dev/null 2>&1 && grep -q '^corpus' log; do kill -0 $job || break; sleep 0.05; done
name=$(cd tmp && echo gridiron.*) pid=${name#gridiron.}
front=$(awk '{ print $4 }' "/proc/$pid/stat")
other sh -c "mkdir 'tmp/${name}0' && echo $front > 'tmp/${name}0/front' && chmod 777 'tmp/${name}0' &&
    printf '@run $top/evil\0' > 'tmp/${name}0/page-flight.0' && ln -s '$top/home/secret' evil/.flight.new && chmod 666 tmp/*/page-flight.0"
kill -TERM "$front"
wait $job
rc=$?
[ $rc = 75 ] || fail "a folder of another user: code $rc"
[ "$(cat home/secret)" = precious ] || fail "a folder of another user: a file of the job's user is overwritten"
rm -rf tmp/* home/run

read -r last < /proc/sys/kernel/ns_last_pid
other sh -c "seq -f nothing/gridiron.%.0f $last $((last + 20000)) | xargs ln -s -t tmp"
user env TRAIN="$top/train" TMPDIR="$top/tmp" timeout -k 5 120 scripts/launch -n 2 tiny.yaml save=home/run train_iters=2 > log 2>&1 || fail "links of another user: code $?"
[ $bad = 0 ]
