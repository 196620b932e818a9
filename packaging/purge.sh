#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks that the scripts of the deb change nothing outside the tree of dpkg --root, and that a purge leaves nothing in
# that tree except a mount point. Requires root.
#
#   purge.sh PACKAGE.deb
#
# It works on an overlay of this machine in a mount namespace, and does not write to the machine itself.
set -euo pipefail

if [[ -z ${METALPLUG_PURGE_WORK:-} ]]; then
	METALPLUG_PURGE_WORK=$(mktemp -d)
	export METALPLUG_PURGE_WORK
	trap 'rm -rf "$METALPLUG_PURGE_WORK"' EXIT
	unshare --mount "$0" "$(realpath "$1")"
	exit
fi
work=$METALPLUG_PURGE_WORK

bad() {
	echo "purge.sh: $*" >&2
	exit 1
}

# The target tree, the mounted state below it, and the changes to the host.
mount -t tmpfs tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/host"
mkdir -p "$work"/upper/{target,etc/metalplug/conf.d,var/lib/metalplug,run/metalplug}
echo metalplug:x:999: | cat /etc/group - >"$work/upper/etc/group"
touch "$work"/upper/etc/metalplug/conf.d/host.toml "$work"/upper/var/lib/metalplug/host "$work"/upper/run/metalplug/host
cp "$1" "$work/upper/package.deb"
mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" overlay "$work/host"
mount --rbind /dev "$work/host/dev"

# tree DIRECTORY lists all files with their sizes and links.
tree() {
	(cd "$1" && find . -path ./target -prune -o ! -type c ! -type d -printf '%p %s %l\n' | sort)
}

# package ARGUMENTS runs dpkg in the host, on the target.
package() {
	chroot "$work/host" dpkg --root=/target --log=/target/dpkg.log --force-script-chrootless --force-depends "$@" >"$work/log" 2>&1 || {
		cat "$work/log" >&2
		bad "dpkg $*: exit status $?"
	}
}

target=$work/host/target
mkdir -p "$target"/{etc,run,var/lib/dpkg/info}
touch "$target"/var/lib/dpkg/{status,available}
printf 'root:x:0:0:root:/root:/bin/sh\n' >"$target/etc/passwd"
printf 'root:x:0:\n' >"$target/etc/group"
tree "$work/upper" >"$work/host.before"

package -i /package.deb
[[ -x $target/usr/sbin/metalplugd ]] || bad 'dpkg -i put no program into the target'
grep -q ^metalplug: "$target/etc/group" || bad 'dpkg -i made no group in the target'
mkdir -p "$target"/etc/systemd/system/metalplugd.service.d "$target"/etc/metalplug/conf.d/old "$target"/run/metalplug \
	"$target"/var/lib/metalplug
touch "$target"/etc/systemd/system/metalplugd.service.d/x.conf "$target"/etc/metalplug/conf.d/{a.toml,.a.toml.swp,old/b.toml} \
	"$target"/run/metalplug/x
ln -s /nowhere "$target/etc/metalplug/conf.d/dangling"
mount -t tmpfs tmpfs "$target/var/lib/metalplug"
touch "$target/var/lib/metalplug/state"
package -P metalplug
[[ -z $(ls -A "$target/var/lib/metalplug") ]] || bad 'a purge leaves the state that is a mount'
umount "$target/var/lib/metalplug"
rmdir "$target/var/lib/metalplug"

left=$(cd "$target" && find . -path ./var/lib/dpkg -prune -o -path ./var/lib/systemd -prune -o -iname '*metalplug*' -print)
[[ -z $left ]] || bad "a purge leaves $left"
! grep metalplug "$target/etc/group" "$target/etc/gshadow" 2>/dev/null || bad 'a purge leaves the group'
diff "$work/host.before" <(tree "$work/upper") || bad 'a file outside of the target was changed'
echo 'a purge leaves nothing in its tree, and nothing outside of it was touched'
