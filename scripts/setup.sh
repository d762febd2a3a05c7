#!/bin/bash
# Makes this checkout ready to use: system packages, .venv with the locked dependencies, and the
# native module, built in place. Does nothing, quickly, where nothing changed.
#
#   scripts/setup.sh run         what running dedupd needs
#   scripts/setup.sh develop     and what the tests and checks need
#   scripts/setup.sh benchmark   and the programs that the benchmarks compare with
#   scripts/setup.sh vm          and what the tests in virtual machines need
#   scripts/setup.sh package     what building a Debian package needs, and no .venv
#
# It says which system packages are missing, and what for, before it installs any. At a terminal it
# then asks. Without one, root installs them, and anybody else is told the line to run.
# DEDUPD_SETUP_YES=1 is a yes in advance, also to sudo. PYTHON=… chooses the interpreter (3.11 or
# later).

set -euo pipefail
cd "$(dirname "$0")/.."

purpose=${1:-run}
case $purpose in
    run | develop | benchmark | vm) ;;
    package) PYTHON=/usr/bin/python3 ;; # what the package depends on is Debian's own
    *) echo "usage: scripts/setup.sh [run|develop|benchmark|vm|package]" >&2; exit 2 ;;
esac

RUST_MINOR_MIN=85 # edition 2024
PYTHON_MINOR_MIN=11
RUSTIC_VERSION=0.11.4

# Programs for administrators, and those of rustup, are not on everybody's PATH.
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin:/usr/local/sbin:/usr/sbin:/sbin"

say() { printf '%s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

# --- what is made already ----------------------------------------------------------------------

# Each step leaves a digest of what it was made from; the next run does it again where that differs.
digest() { sha256sum | cut -d ' ' -f 1; }
is_made() { [ "$(cat ".venv/.made-$1" 2>/dev/null)" = "$2" ]; }
note_made() { printf '%s\n' "$2" >".venv/.made-$1"; }

environment_state() {
    { pwd; "${PYTHON:-.venv/bin/python}" -VV; cat requirements.lock requirements-build.lock; } | digest
}
environment_is_made() {
    [ -x .venv/bin/python ] && .venv/bin/python -c "" && is_made environment "$(environment_state)"
}

native_state() {
    {
        find native -name target -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
        cat pyproject.toml
    } | digest
}
native_is_made() { [ -e dedupd_core/native.abi3.so ] && is_made native "$(native_state)"; }

# --- what the machine has ---------------------------------------------------------------------

needed=()   # packages without which nothing works
optional=() # packages without which some tests are skipped
reasons=()

need() {
    needed+=("$1")
    reasons+=("$(printf '  %-16s %s' "$1" "$2")")
}

want() {
    optional+=("$1")
    reasons+=("$(printf '  %-16s %s' "$1" "$2")")
}

python_is_recent() {
    "$1" -c "import sys; sys.exit(sys.version_info < (3, $PYTHON_MINOR_MIN))" 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 /usr/bin/python3 python3.{14,13,12,11}; do
        if has "$candidate" && python_is_recent "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
}

python_can_build() {
    "$1" - <<'PYTHON' >/dev/null 2>&1
import ensurepip, os, sysconfig, venv
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
PYTHON
}

rust_is_recent() {
    local minor
    has rustc && has cargo && cargo --version >/dev/null 2>&1 || return 1
    minor=$(rustc --version 2>/dev/null | sed -n 's/^rustc 1\.\([0-9]*\)\..*/\1/p')
    [ "${minor:-0}" -ge "$RUST_MINOR_MIN" ]
}

# Debian 12 carries a current Rust beside its own old one, under names that end in -web.
debian_version() { sed -n 's/^VERSION_ID="\{0,1\}\([0-9]*\).*/\1/p' /etc/os-release 2>/dev/null; }
if [ "$(debian_version)" = 12 ]; then
    rust_packages=(cargo-web rustc-web)
    rust_check_packages=(rustfmt-web rust-web-clippy)
else
    rust_packages=(cargo rustc)
    rust_check_packages=(rustfmt rust-clippy)
fi
rust_by_rustup() { has rustup && rustup which cargo >/dev/null 2>&1; }

look() {
    needed=() optional=() reasons=()
    has make || need make "to run the targets of the Makefile"
    if [ "$purpose" = package ]; then
        look_for_python
        look_for_compilers
        has dh || need debhelper "to build a Debian package"
        return
    fi
    has fusermount3 || need fuse3 "mounts and unmounts"
    environment_is_made || look_for_python
    environment_is_made && native_is_made || look_for_compilers
    [ "$purpose" = run ] || look_for_tools
}

look_for_compilers() {
    [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ] ||
        need ca-certificates "to fetch the locked dependencies"
    has cc || need gcc "to build pyfuse3, and to link the native module"
    [ -e /usr/include/stdio.h ] || need libc6-dev "headers of the C library"
    if ! rust_is_recent; then
        need "${rust_packages[0]}" "to build the native module"
        need "${rust_packages[1]}" "the Rust compiler"
    fi
}

look_for_python() {
    has pkg-config || need pkg-config "tells pyfuse3's build where libfuse is"
    pkg-config --exists fuse3 2>/dev/null || need libfuse3-dev "headers to build pyfuse3"
    python=$(find_python)
    [ "$purpose" != package ] || [ "$python" = "$PYTHON" ] || python=
    if [ -z "$python" ]; then
        need python3 "runs dedupd"
    fi
    if [ -z "$python" ] || ! python_can_build "$python"; then
        need python3-venv "to make the virtual environment"
        need python3-dev "headers of Python, to build pyfuse3"
    fi
}

look_for_tools() {
    if ! rust_by_rustup; then
        has rustfmt || want "${rust_check_packages[0]}" "checks the form of the Rust sources"
        has cargo-clippy || want "${rust_check_packages[1]}" "checks the Rust sources"
    fi
    has mkfs.ext4 || want e2fsprogs "tests on an ext4 file system"
    has mkfs.xfs || want xfsprogs "tests on an XFS file system"
    has mkfs.btrfs || want btrfs-progs "tests on a Btrfs file system"
    has losetup && has mount || want mount "tests on file systems of their own"
    has fio || want fio "tests of parallel reads and writes"
    has rsync || want rsync "tests of copies as administrators make them"
    has setfattr || want attr "tests of extended attributes"
    has setfacl || want acl "tests of access control lists"
    look_for_ceph
    case $purpose in
        vm) look_for_machines ;;
        benchmark) look_for_peers ;;
    esac
}

look_for_machines() {
    has qemu-system-x86_64 || need qemu-system-x86 "boots other kernels, without KVM (70 MB)"
    has depmod || need kmod "prepares the modules of these kernels"
    [ -n "$(find /usr/share/keyrings -name 'debian-archive-keyring.*' -print -quit 2>/dev/null)" ] ||
        need debian-archive-keyring "to verify the kernels of Debian"
    # The guests use these programs of this machine.
    has mkfs.ext4 || need e2fsprogs "file systems of the guests"
    has mkfs.xfs || need xfsprogs "file systems of the guests"
    has mkfs.btrfs || need btrfs-progs "file systems of the guests"
    has ip || need iproute2 "the network of a guest"
}

look_for_peers() {
    has borg || want borgbackup "what ingest is compared with"
    has restic || want restic "what ingest is compared with"
    has casync || want casync "what ingest is compared with"
    has duperemove || want duperemove "what ingest is compared with"
}

# Of Debian, 48 MB to fetch: a whole cluster, on this machine, while the tests run.
look_for_ceph() {
    has ceph-mon || want ceph-mon "tests of a store in a cluster (48 MB with the next three)"
    has ceph-osd || want ceph-osd "the part of Ceph that stores"
    has ceph-authtool || want ceph-common "the tools of Ceph"
    [ -n "$(find /usr/lib/python3/dist-packages -name 'rados.*.so' -print -quit 2>/dev/null)" ] ||
        want python3-rados "Ceph's library for Python"
}

# --- system packages --------------------------------------------------------------------------

is_root() { [ "$(id -u)" = 0 ]; }

# Without a terminal there is nobody to ask. Root then installs: in a container or a script, that is
# the purpose of the call. The sudo of a user would ask for a password.
may_install() {
    [ "${DEDUPD_SETUP_YES:-}" != 1 ] || return 0
    if [ ! -t 0 ]; then
        is_root
        return
    fi
    local answer
    read -r -p "Go on? [y/N] " answer
    [[ $answer =~ ^[yY] ]]
}

install_packages() {
    local packages=("${needed[@]}" "${optional[@]}") sudo=
    [ ${#packages[@]} -gt 0 ] || return 0
    say "Missing on this machine:"
    printf '%s\n' "${reasons[@]}"
    if ! has apt-get; then
        [ ${#needed[@]} -eq 0 ] || fail "no apt-get here; install these (Debian's names) first"
        return 0
    fi
    is_root || sudo="sudo "
    say "They are installed by this line:"
    say "  ${sudo}apt-get update && ${sudo}apt-get install -y --no-install-recommends ${packages[*]}"
    if ! may_install; then
        [ ${#needed[@]} -eq 0 ] || fail "nothing was installed; run that line first"
        say "Going on without them: what needs them is skipped."
        return 0
    fi
    is_root || has sudo || fail "there is no sudo here; run that line as root, without sudo"
    $sudo apt-get update -q || say "Going on with the lists of packages as they are."
    $sudo env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${packages[@]}"
    hash -r
    look
    [ ${#needed[@]} -eq 0 ] ||
        fail "still missing or too old: ${needed[*]} (Rust 1.$RUST_MINOR_MIN or later is at https://rustup.rs)"
}

add_rust_checks() {
    [[ $purpose =~ ^(develop|benchmark|vm)$ ]] && rust_by_rustup || return 0
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 ||
        rustup component add rustfmt clippy || say "Going on without rustfmt and clippy."
}

# --- the virtual environment ------------------------------------------------------------------

make_environment() {
    environment_is_made && return
    say "Making .venv with $("$python" --version) and the locked dependencies"
    rm -rf .venv
    "$python" -m venv .venv
    # Hashes are of what the lock names; what builds the sources is locked too, so no isolation.
    .venv/bin/python -m pip install -q --disable-pip-version-check --require-hashes \
        -r requirements-build.lock
    .venv/bin/python -m pip install -q --disable-pip-version-check --require-hashes \
        --no-build-isolation -r requirements.lock
    note_made environment "$(environment_state)"
}

build_native() {
    native_is_made && return
    say "Building the native module (about a minute the first time)"
    PATH="$PWD/.venv/bin:$PATH" .venv/bin/python -m pip install -q --disable-pip-version-check \
        --no-build-isolation --no-deps --editable .
    note_made native "$(native_state)"
}

# Without bytecode, each command and each mount compiles all that it imports before it begins: more
# than half of the time that `dedupd status` takes. Python keeps none of itself where
# PYTHONDONTWRITEBYTECODE says so, or where it may not write.
keep_bytecode() {
    .venv/bin/python -m compileall -q dedupd dedupd_core dedupd_reader jobs fuse_stub analysis ||
        say "Going on without the bytecode of what could not be compiled."
}

# A peer that Debian does not have. Without it the comparison goes on with the others.
build_peers() {
    [ "$purpose" = benchmark ] || return 0
    has rustic || [ -x build/peers/bin/rustic ] && return
    say "Building rustic, which ingest is compared with (some ten minutes, once)"
    cargo install --quiet --locked --root build/peers --target-dir build/peers/target \
        "rustic-rs@$RUSTIC_VERSION" || say "Going on without rustic."
    rm -rf build/peers/target
}

look
install_packages
[ "$purpose" != package ] || exit 0
add_rust_checks
make_environment
build_native
keep_bytecode
build_peers
