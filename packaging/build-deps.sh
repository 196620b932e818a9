#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs the packages that a task needs. Without root, it prints the command that installs them.
#
#   build-deps.sh build   a C compiler and libudev's header
#   build-deps.sh lint    the same, and shellcheck
#   build-deps.sh cluster  the same as build, and the programs on the nodes in integration/cluster
#   build-deps.sh packages  tools to build deb and rpm, their linters, and the compilers of SELinux and AppArmor, for the
#                           architectures in ARCHES (default: both)
#   build-deps.sh dnf     the client for dnf-check.sh
#   build-deps.sh --list TASK  prints the Debian packages for a task, one per line
#   build-deps.sh promtool DIR  Prometheus' linter, into DIR, unless it is installed; only on Debian
#
# integration/vm/image.sh installs the packages of the virtual machine.
set -eu

die() {
	echo "build-deps: $*" >&2
	exit 1
}

list=
if [ "${1:-}" = --list ]; then
	list=yes
	shift
fi
command -v go >/dev/null || die 'Go is missing: install the version that go.mod names, see https://go.dev/doc/install'

if command -v apt-get >/dev/null; then
	family=debian install='apt-get install -y --no-install-recommends'
	native=$(dpkg --print-architecture)
	# A name without an architecture is a package for this machine's architecture, or for all architectures.
	has() {
		case $1 in *:*) architecture=${1##*:} ;; *) architecture="$native|all" ;; esac
		dpkg-query -W -f '${db:Status-Status} ${Architecture}\n' "$1" 2>/dev/null | grep -qxE "installed ($architecture)"
	}
elif command -v dnf >/dev/null; then
	family=fedora install='dnf install -y'
	has() { rpm -q --quiet --whatprovides "$1"; }
else
	die 'neither apt-get nor dnf is here: install a C compiler and the header libudev.h by hand'
fi

# The package is only unpacked. Its installation would start a server, now and at each boot.
fetch_promtool() {
	mkdir -p "$1"
	package=$(mktemp -d)
	trap 'rm -rf "$package"' EXIT
	[ "$(id -u)" -ne 0 ] || apt-get update -qq
	(cd "$package" && apt-get -o APT::Sandbox::User=root download -qq prometheus)
	dpkg-deb --fsys-tarfile "$package"/prometheus_*.deb | tar -xO ./usr/bin/promtool >"$package/promtool"
	install -m 755 "$package/promtool" "$1/promtool"
}

case "$family ${1:-build}" in
'debian promtool')
	command -v promtool >/dev/null || [ -x "$2/promtool" ] || fetch_promtool "$2"
	exit
	;;
'debian build') wanted='gcc libc6-dev libudev-dev' ;;
'debian lint') wanted='gcc libc6-dev libudev-dev shellcheck' ;;
'debian cluster') wanted='gcc libc6-dev libudev-dev util-linux mount runc' ;;
'debian dnf') wanted='dnf' ;;
'fedora build') wanted='gcc systemd-devel' ;;
'fedora lint') wanted='gcc systemd-devel ShellCheck' ;;
'fedora cluster') wanted='gcc systemd-devel util-linux runc' ;;
'debian packages')
	# The programs for the other architecture are linked with its libudev and libc. Its compiler has another name.
	case $native in
	arm64) other=amd64 compiler=gcc-x86-64-linux-gnu ;;
	*) other=arm64 compiler=gcc-aarch64-linux-gnu ;;
	esac
	case " ${ARCHES:-$other} " in
	*" $other "*) foreign="$compiler libc6-dev:$other libudev-dev:$other" ;;
	*) other='' foreign='' ;;
	esac
	wanted="gcc libc6-dev libudev-dev $foreign make git debhelper lintian rpm rpmlint debugedit elfutils squashfs-tools cpio mandoc apt-utils jq
		createrepo-c gpg systemd selinux-policy-dev policycoreutils checkpolicy setools secilc bzip2 apparmor"
	;;
*) die "no task is called ${1:-build}, or not on $family" ;;
esac
if [ -n "$list" ]; then
	# shellcheck disable=SC2086 # several words
	printf '%s\n' $wanted
	exit
fi
missing=
for package in $wanted; do
	has "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
	first=
	[ -z "${other:-}" ] || first="sudo dpkg --add-architecture $other && sudo apt-get update && "
	die "these packages are missing:$missing
Run this, then try again:

    ${first}sudo $install$missing
"
fi
if [ "$family" = debian ]; then
	if [ -n "${other:-}" ] && ! dpkg --print-foreign-architectures | grep -qx "$other"; then
		echo "build-deps: this system gets packages of $other too, see dpkg --print-foreign-architectures" >&2
		dpkg --add-architecture "$other"
	fi
	apt-get update -qq
fi
# shellcheck disable=SC2086 # several words each
DEBIAN_FRONTEND=noninteractive $install $missing
