#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the tree of a release in which systemd is started (systemd-nspawn), and prints its folder.
#
#   tree.sh SUITE [PACKAGE...]  bookworm has systemd 252, trixie 257; of Ubuntu, jammy has 249 and noble 255
#
# METALPLUG_CACHE   cache folder (default: XDG cache folder, metalplug); the tree is built again when this script changes
# METALPLUG_MIRROR  Debian mirror
set -euo pipefail

suite=$1
shift
cache=${METALPLUG_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/metalplug}
tree=$cache/tree-$suite-$( (cat "$0" && echo "$@") | sha256sum | cut -c1-16)
# The keys of Ubuntu's archive, of 2012 and 2018. Debian has no package of them.
ubuntu_keys='790BC7277767219C42C86F933B4FE6ACC0B21F32 843938DF228D22F7B3742BC0D94AA3F0EFE21092 F6ECB3762474EDA9D21B7022871920D1991BC93C'

missing=()
command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
command -v systemd-nspawn >/dev/null || missing+=(systemd-container)
command -v gpg >/dev/null || missing+=(gpg)
if ((${#missing[@]})); then
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >&2
fi

# ubuntu_keyring FILE takes the keyring from Ubuntu's package. apt cannot verify the package without it, so its programs are not
# run, and the keys must be those above.
ubuntu_keyring() {
	local keys
	mmdebstrap --quiet --variant=extract --include=ubuntu-keyring --aptopt='Acquire::AllowInsecureRepositories "true"' \
		--aptopt='APT::Get::AllowUnauthenticated "true"' "$suite" "$tree.new" 2>/dev/null
	mv "$tree.new/usr/share/keyrings/ubuntu-archive-keyring.gpg" "$1"
	rm -rf "$tree.new"
	keys=$(gpg --batch --show-keys --with-colons "$1" 2>/dev/null | sed -n 's/^fpr:*\([0-9A-F]*\):$/\1/p' | paste -sd ' ')
	if [[ $keys != "$ubuntu_keys" ]]; then
		echo "tree.sh: the package ubuntu-keyring has other keys: $keys" >&2
		exit 1
	fi
}

mkdir -p "$cache"
exec 9>"$tree.lock"
flock 9
if [[ ! -d $tree ]]; then
	rm -rf "$tree.new"
	of_ubuntu=()
	if [[ $suite = jammy || $suite = noble ]]; then
		ubuntu_keyring "$tree.keyring.gpg"
		of_ubuntu=("--components=main,universe" "--keyring=$tree.keyring.gpg")
		unset METALPLUG_MIRROR
	fi
	include=$(IFS=, && echo "systemd-sysv,udev,dbus,procps${*:+,$*}")
	mmdebstrap --quiet --variant=minbase --include="$include" "${of_ubuntu[@]}" \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		"$suite" "$tree.new" ${METALPLUG_MIRROR:+"$METALPLUG_MIRROR"} >&2
	# It would send an event of each device to the host as well.
	ln -sf /dev/null "$tree.new/etc/systemd/system/systemd-udev-trigger.service"
	mv "$tree.new" "$tree"
fi
echo "$tree"
