#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the tree of a Debian release in which systemd is started (systemd-nspawn), and prints its folder.
#
#   tree.sh SUITE      bookworm has systemd 252, trixie has 257
#
# METALPLUG_CACHE   cache folder (default: XDG cache folder, metalplug); the tree is built again when this script changes
# METALPLUG_MIRROR  Debian mirror
set -euo pipefail

suite=$1
cache=${METALPLUG_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/metalplug}
tree=$cache/tree-$suite-$(sha256sum <"$0" | cut -c1-16)

missing=()
command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
command -v systemd-nspawn >/dev/null || missing+=(systemd-container)
if ((${#missing[@]})); then
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >&2
fi

mkdir -p "$cache"
exec 9>"$tree.lock"
flock 9
if [[ ! -d $tree ]]; then
	rm -rf "$tree.new"
	mmdebstrap --quiet --variant=minbase --include=systemd-sysv,udev,dbus,procps \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		"$suite" "$tree.new" ${METALPLUG_MIRROR:+"$METALPLUG_MIRROR"} >&2
	# It would send an event of each device to the host as well.
	ln -sf /dev/null "$tree.new/etc/systemd/system/systemd-udev-trigger.service"
	mv "$tree.new" "$tree"
fi
echo "$tree"
