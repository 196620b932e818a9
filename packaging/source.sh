#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes source packages from the last commit: one for Debian (3.0 quilt, with the Go modules as the component "vendor") and
# one for rpm. Both build without a network. This script needs git, and a network or a filled module cache.
#
#   source.sh DIRECTORY
#
# VERSION, MAINTAINER, SOURCE_DATE_EPOCH as for packages.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$1
mkdir -p "$out"
out=$(realpath "$out")
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(packaging/epoch.sh)}
VERSION=$(packaging/version.sh)
MAINTAINER=${MAINTAINER:-The metalplug authors <metalplug@example.org>}
export VERSION MAINTAINER
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022

# pack DIRECTORY FILE packs a directory reproducibly.
pack() {
	tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -c "$1" | xz -T1 >"$2"
}

tree=$work/metalplug-$VERSION
mkdir "$tree"
git archive HEAD | tar -x -C "$tree"
pack "metalplug-$VERSION" "$work/metalplug_$VERSION.orig.tar.xz"
(cd "$tree" && go mod vendor && mv vendor "$work/vendor")
pack vendor "$work/metalplug_$VERSION.orig-vendor.tar.xz"

mv "$work/vendor" "$tree/vendor"
cp -r packaging/debian "$tree/debian"
packaging/changelog.sh "$tree/debian"
# A module without a used package has no directory.
mapfile -t modules < <(awk '/^# / { print $2 "@" $3 }' "$tree/vendor/modules.txt" | while read -r module; do
	[[ ! -d $tree/vendor/${module%@*} ]] || echo "$module"
done)
PACKAGES='-test ./...' "$tree/packaging/licences.sh" copyright "${modules[@]}" >>"$tree/debian/copyright"
(cd "$work" && dpkg-source --build "metalplug-$VERSION" >"$work/log" 2>&1) || {
	cat "$work/log" >&2
	exit 1
}
cp "$work"/*.dsc "$work"/*.orig*.tar.xz "$work"/*.debian.tar.xz "$out/"

# The spec of a source package contains the values that packages.sh passes on the command line.
{
	echo "%global version $VERSION"
	date=$(LC_ALL=C date -u -d "@$SOURCE_DATE_EPOCH" '+%a %b %d %Y')
	sed -e '/^%changelog/,$ { s/%{date}/'"$date"'/; s/%{maintainer}/'"$MAINTAINER"'/; s/%{version}/'"$VERSION"'/ }' packaging/rpm/metalplug.spec
} >"$work/metalplug.spec"
# On Debian, rpm does not know that the build dependencies are installed.
rpmbuild -bs --quiet --nodeps -D "_topdir $work/top" -D "_sourcedir $work" -D "_srcrpmdir $out" \
	-D "packager $MAINTAINER" -D "systemd_macros $PWD/packaging/rpm/macros" -D '_buildhost metalplug' -D 'use_source_date_epoch_as_buildtime 1' \
	-D 'clamp_mtime_to_source_date_epoch 1' -D '_source_payload w19.zstdio' "$work/metalplug.spec" >"$work/log" 2>&1 || {
	cat "$work/log" >&2
	exit 1
}
ls -l "$out"
