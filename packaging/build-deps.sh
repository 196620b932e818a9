#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs what is missing for a task, or, without the right to, prints the command that does.
#
#   build-deps.sh build   a C compiler and libudev's header
#   build-deps.sh lint    and shellcheck
#
# What the virtual machine needs, integration/vm/image.sh installs.
set -eu

die() {
	echo "build-deps: $*" >&2
	exit 1
}

command -v go >/dev/null || die 'Go is missing: install the version that go.mod names, see https://go.dev/doc/install'

if command -v apt-get >/dev/null; then
	family=debian install='apt-get install -y --no-install-recommends'
	has() { dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }
elif command -v dnf >/dev/null; then
	family=fedora install='dnf install -y'
	has() { rpm -q --quiet --whatprovides "$1"; }
else
	die 'neither apt-get nor dnf is here: install a C compiler and the header libudev.h by hand'
fi

case "$family ${1:-build}" in
'debian build') wanted='gcc libc6-dev libudev-dev' ;;
'debian lint') wanted='gcc libc6-dev libudev-dev shellcheck' ;;
'fedora build') wanted='gcc systemd-devel' ;;
'fedora lint') wanted='gcc systemd-devel ShellCheck' ;;
*) die "no task is called ${1:-build}" ;;
esac
missing=
for package in $wanted; do
	has "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
	die "these packages are missing:$missing
Run this, then try again:

    sudo $install$missing
"
fi
[ "$family" != debian ] || apt-get update -qq
# shellcheck disable=SC2086 # several words each
DEBIAN_FRONTEND=noninteractive $install $missing
