#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the last commit's packages in a tree for each release, from a tarball, without git or a network. Requires root.
#
#   build-check.sh SUITE...
#
# SUITE is bookworm, trixie or noble. The script copies Go and its modules from this machine to the tree.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ -z ${METALPLUG_BUILD_WORK:-} ]]; then # the mounts end with the namespace
	METALPLUG_BUILD_WORK=$(mktemp -d -p /var/tmp)
	export METALPLUG_BUILD_WORK
	trap 'rm -rf "$METALPLUG_BUILD_WORK"' EXIT
	unshare --mount "$0" "$@"
	exit
fi
work=$METALPLUG_BUILD_WORK

architecture=$(go env GOARCH)
go mod download
for suite in "$@"; do
	mapfile -t packages < <(ARCHES=$architecture packaging/build-deps.sh --list packages)
	tree=$(integration/sandbox/tree.sh "$suite" "${packages[@]}")
	mkdir -p "$work/$suite"/{upper,work,tree}
	mount -t overlay -o "lowerdir=$tree,upperdir=$work/$suite/upper,workdir=$work/$suite/work" overlay "$work/$suite/tree"
	mkdir -p "$work/$suite/tree/source"
	git archive HEAD | tar -x -C "$work/$suite/tree/source"
	systemd-nspawn --quiet --directory "$work/$suite/tree" --register=no --keep-unit --private-network --console=pipe \
		--bind-ro="$(go env GOROOT):/go" --bind-ro="$(go env GOMODCACHE):/modules" --chdir=/source \
		--setenv=PATH=/go/bin:/usr/sbin:/usr/bin:/sbin:/bin --setenv=GOTOOLCHAIN=local --setenv=GOPROXY=file:///modules/cache/download --setenv=GOSUMDB=off \
		--setenv=GOMODCACHE=/modules --setenv=ARCHES="$architecture" \
		make -s packages </dev/null >"$work/$suite/log" 2>&1 || {
		tail -n 40 "$work/$suite/log" >&2
		echo "build-check.sh: no packages on $suite" >&2
		exit 1
	}
	(cd "$work/$suite/tree/source/dist" && sha256sum --quiet --check SHA256SUMS)
	(cd "$work/$suite/tree/source/dist" && echo "$suite:" ./*.deb ./*.rpm)
done
