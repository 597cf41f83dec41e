# tests/scripts/debian.sh -- sourced by tests that need a Debian of their own in a folder.

skip() { echo "$1"; exit 77; }

# bare_debian ROOT LOG [PACKAGES] -- makes a bare Debian of this machine's release, or of RELEASE, in the folder ROOT, with
# PACKAGES (a,b), this machine's apt sources, proxy and names of hosts. Ends the test with 77 where that is impossible.
bare_debian() {
    [ "$(id -u)" = 0 ] || skip "only root may enter another root folder"
    command -v debootstrap > /dev/null || skip "debootstrap is missing; change: apt-get install debootstrap"
    root=$1 log=$2 more=${3:-}
    # shellcheck disable=SC2016
    set -- $(apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(CODENAME)' 'Created-By: Packages' 2> /dev/null |
        sed -n 's/^Debian //p' | head -n 1)
    [ $# = 2 ] || skip "apt of this machine has no Debian archive"
    debootstrap --variant=minbase ${more:+--include="$more"} "${RELEASE:-$2}" "$root" "$1" > "$log" 2>&1 || { tail -n 5 "$log"; echo "FAIL: debootstrap"; exit 1; }
    cp /etc/resolv.conf "$root/etc/" 2> /dev/null
    for file in /etc/apt/apt.conf.d/*; do          # the proxy of this machine's apt, if it has one
        ! grep -qi proxy "$file" 2> /dev/null || cp "$file" "$root/etc/apt/apt.conf.d/"
    done
}
