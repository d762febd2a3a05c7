#!/bin/bash
# Mutation tests of native/src/format: cargo-mutants changes one expression after the other, and the
# tests of the folder must notice (make mutants).
#
# The folder depends on nothing else of the crate. So it is built as a crate of its own, which takes
# seconds for each mutant instead of minutes.

set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
place=build/mutants

[ -x $place/tools/bin/cargo-mutants ] || cargo install --quiet --locked --root $place/tools \
    --target-dir $place/tools/target "cargo-mutants@$version"

rm -rf $place/native $place/docs
mkdir -p $place/native/src
ln -s ../../docs $place/docs # a test compares the layouts with docs/design/format.md
cp -r native/src/format $place/native/src
cp native/Cargo.lock $place/native
printf 'pub mod format;\n' >$place/native/src/lib.rs
{
    printf '[package]\nname = "dedupd-native"\nversion = "0.1.0"\nedition = "2024"\n\n[workspace]\n'
    printf '\n[dependencies]\n'
    grep '^xxhash-rust ' native/Cargo.toml
    printf '\n[dev-dependencies]\n'
    grep '^proptest ' native/Cargo.toml
} >$place/native/Cargo.toml

cd $place/native
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/../target}
PATH="$PWD/../tools/bin:$PATH" cargo mutants --in-place --no-shuffle --output .. \
    --minimum-test-timeout 60 "${@:2}"
