#!/bin/sh
# tests/scripts/bare.sh [PATTERN] -- the two commands of the README in a bare Debian, which debootstrap makes
# in a folder. For an ordinary user one line says what is missing. For root the missing packages are
# installed, and scripts/demo and scripts/test run. Then both run for the user, in another copy of the tree.
# PATTERN: rows of the tests (all when absent). Packages come from this machine's apt sources. Ends with 77
# without root, debootstrap or Debian. Takes twice the time of the suite, and 2 GB below TMPDIR.
set -u
cd "$(dirname "$0")/../.." || exit 2
pattern=${1:-.}
. tests/scripts/debian.sh
work=$(mktemp -d) || exit 2
root=$work/root
leave() { umount "$root/proc" "$root/sys" "$root/dev/shm" "$root/dev/pts" "$root" 2> /dev/null; rm -rf --one-file-system "$work"; }
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
fail() { echo "FAIL: $*"; exit 1; }
step() { printf '\n## %s (%s s)\n' "$*" "$(($(date +%s) - began))"; }
began=$(date +%s)

step "a bare Debian"
bare_debian "$root" "$work/log"
mkdir -p "$root/proc" "$root/sys" "$root/dev/shm" "$root/dev/pts"
mount --bind "$root" "$root" &&         # namespaces of mounts want a mount as their root
    mount -t proc proc "$root/proc" && mount -t sysfs -o ro sys "$root/sys" && mount -t tmpfs shm "$root/dev/shm" && mount -t devpts pts "$root/dev/pts" ||
    skip "root may not mount here"
chroot "$root" useradd --create-home --shell /bin/sh user || fail "useradd"
for home in /root /home/user; do
    mkdir -p "$root$home/gridiron"
    git ls-files | tar -cf - -T - | tar -xf - --no-same-owner -C "$root$home/gridiron"
done
chroot "$root" chown -R user:user /home/user
as_root() { chroot "$root" /usr/bin/env -i HOME=/root PATH="$PATH" sh -c "cd /root/gridiron && $1"; }
as_user() { chroot "$root" /usr/bin/env -i PATH="$PATH" su user -c "cd /home/user/gridiron && $1"; }

step "an ordinary user without the packages"
for command in scripts/demo scripts/test; do
    as_user "$command" > "$work/said" 2>&1 && fail "$command found what is not there"
    grep -v '^$\|^== ' "$work/said" > "$work/lines"
    [ "$(wc -l < "$work/lines")" = 1 ] && grep -q '^setup: missing: .*; change: as root, apt-get install ' "$work/lines" ||
        { cat "$work/said"; fail "$command does not say in one line what is missing"; }
done

step "root: scripts/demo"
as_root "scripts/demo" || fail "scripts/demo as root: $?"
step "root: scripts/test"
as_root "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends iproute2 openssh-client openssh-server" \
    > "$work/log" 2>&1 || { tail -n 5 "$work/log"; fail "what pretended hosts need"; }
as_root "scripts/test '$pattern'" || fail "scripts/test as root: $?"
step "an ordinary user with the packages: scripts/demo"
as_user "scripts/demo --seconds 30" || fail "scripts/demo as a user: $?"
step "an ordinary user with the packages: scripts/test"
as_user "scripts/test '$pattern'" || fail "scripts/test as a user: $?"
step "done"
