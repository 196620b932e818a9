#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the packages from the source packages, without a network and without a module cache, and runs the linters on all
# packages. Go is the toolchain that go.mod names, because no release of Debian has it yet. Requires root.
#
#   source-check.sh DIRECTORY    the directory that source.sh has filled
#
# TESTS  "no" omits the tests of the programs
set -euo pipefail
cd "$(dirname "$0")/.."

sources=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
macros=$PWD/packaging/rpm/macros
lint=$PWD/packaging/rpm/rpmlint.toml
# Both builds use the same sources, so the second compiles little.
cache=$(go env GOCACHE)
goroot=$(GOTOOLCHAIN=auto go env GOROOT)

bad() {
	echo "source-check.sh: $*" >&2
	status=1
}

# offline COMMAND... runs a command with the local Go and without a network, except lo.
offline() {
	unshare --net env PATH="$goroot/bin:$PATH" GOTOOLCHAIN=local GOMODCACHE="$work/empty" GOCACHE="$cache" GOFLAGS= \
		sh -c 'ip link set lo up && exec "$@"' sh "$@"
}

# symbols FILE... checks that one of the packages has debug information.
symbols() {
	[[ $(stat -c %s "$1") -gt 1000000 ]] || bad "$1 has no debug information"
}

deb() {
	local options=
	[[ ${TESTS:-} != no ]] || options=nocheck
	lintian --allow-root --fail-on error,warning "$sources"/*.dsc || bad 'lintian of the source package'
	(
		cd "$work"
		dpkg-source -x "$sources"/*.dsc tree
		cd tree
		# -d, because Go does not come from a package.
		DEB_BUILD_OPTIONS=$options offline dpkg-buildpackage -b -d -us -uc
	) >"$work/log" 2>&1 || {
		tail -n 50 "$work/log" >&2
		bad 'dpkg-buildpackage'
		return
	}
	lintian --allow-root --fail-on error,warning "$work"/*.deb || bad 'lintian of the packages'
	symbols "$work"/metalplug-dbgsym_*.deb
	mkdir "$work/deb"
	dpkg-deb -x "$work"/metalplug_*.deb "$work/deb"
	"$work/deb/usr/bin/metalplugctl" --version
}

# rpm_tag TAG prints a tag of the source package.
rpm_tag() {
	command rpm -qp --qf "%{$1}" "$sources"/*.src.rpm
}

rpm() {
	local check=
	[[ ${TESTS:-} != no ]] || check=--nocheck
	# shellcheck disable=SC2086 # empty, or one word
	offline rpmbuild --rebuild --nodeps $check -D "_topdir $work/top" \
		--load "$macros" --load "$macros.debian" -D "packager $(rpm_tag PACKAGER)" \
		"$sources"/*.src.rpm >"$work/log" 2>&1 || {
		tail -n 50 "$work/log" >&2
		bad 'rpmbuild --rebuild'
		return
	}
	# Omit the debug information, which rpmlint mistakes for programs.
	rpmlint -c "$lint" "$sources"/*.src.rpm "$work"/top/RPMS/*/metalplug-{[0-9],selinux-}*.rpm | tee "$work/rpmlint" || bad 'rpmlint'
	! grep -qE ': [EW]: ' "$work/rpmlint" || bad 'rpmlint warns'
	symbols "$work"/top/RPMS/*/metalplug-debuginfo-*.rpm
}

deb
rpm
((status)) || echo 'the source packages build without a network'
exit "$status"
