#!/bin/bash
# The Debian package from end to end, on clean machines: built in one chroot, installed in another,
# a volume enabled, optimized, and the machine "rebooted" many times under a reader's eyes.
#
#   scripts/test_deb.sh [bookworm|trixie|…]
#
# Needs root, debootstrap, FUSE and loop devices. DEBIAN_MIRROR=… and DEBIAN_SECURITY=… choose where
# Debian comes from, REBOOTS=… how often. What it makes is in build/test-deb; the base is kept.

set -euo pipefail
cd "$(dirname "$0")/.."

suite=${1:-bookworm}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
security=${DEBIAN_SECURITY:-http://deb.debian.org/debian-security}
work=$PWD/build/test-deb/$suite
maintainer="Who Builds It" address=builder@example.org
base=$work/base builder=$work/builder target=$work/target

[ "$(id -u)" = 0 ] || { echo "test_deb: needs root" >&2; exit 2; }
command -v debootstrap >/dev/null || { echo "test_deb: install debootstrap first" >&2; exit 2; }

# A chroot with mounts and processes of its own, which end with the command.
inside() {
    local root=$1
    shift
    unshare --mount --pid --fork --kill-child bash -euc '
        root=$1
        shift
        mount --make-rprivate /
        mount --bind "$root" "$root"
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount -t tmpfs -o mode=755 tmpfs "$root/run"
        chroot "$root" "$@"
    ' bash "$root" env PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
        LC_ALL=C.UTF-8 HOME=/root "$@"
}

if [ ! -e "$base/.made" ]; then
    rm -rf "$base"
    mkdir -p "$base"
    debootstrap --variant=minbase "$suite" "$base" "$mirror"
    printf 'deb %s main\n' "$mirror $suite" "$mirror $suite-updates" \
        "$security $suite-security" >"$base/etc/apt/sources.list"
    touch "$base/.made"
fi

fresh() {
    rm -rf "$1"
    cp -a "$base" "$1"
    cp /etc/resolv.conf "$1/etc/resolv.conf"
    inside "$1" apt-get update -q
}

echo "== build"
fresh "$builder"
mkdir "$builder/src"
git ls-files -z | tar --null --files-from - -c | tar -x -C "$builder/src"
inside "$builder" apt-get install -q -y --no-install-recommends make ca-certificates
# Authorities that this machine trusts beside the usual ones.
cat /etc/ssl/certs/ca-certificates.crt >"$builder/etc/ssl/certs/ca-certificates.crt"
started=$SECONDS
inside "$builder" env DEDUPD_SETUP_YES=1 DEBFULLNAME="$maintainer" DEBEMAIL="$address" \
    make -C /src deb
echo "make deb: $((SECONDS - started)) s"

echo "== install"
fresh "$target"
cp "$builder"/src/dist/dedupd_*.deb "$target/root/"
named=$(dpkg-deb --field "$target"/root/dedupd_*.deb Maintainer)
[ "$named" = "$maintainer <$address>" ] || { echo "test_deb: maintained by $named" >&2; exit 1; }
cp scripts/deb_reboots.py "$target/root/"
started=$SECONDS
inside "$target" sh -c 'apt-get install -q -y --no-install-recommends /root/dedupd_*.deb'
# The reboots' disk: what makes it is not on every minimal Debian.
inside "$target" apt-get install -q -y --no-install-recommends e2fsprogs
echo "apt-get install: $((SECONDS - started)) s"

echo "== reboots"
inside "$target" sh -c 'exec "$(readlink -f /usr/lib/dedupd/bin/python)" /root/deb_reboots.py "$@"' \
    sh --reboots "${REBOOTS:-10}"
rm -rf "$builder" "$target"
