#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the debs with dpkg --root, adds the files that an operator and a running node make, and purges the packages. The
# tree must then be as before, users and groups included, and nothing outside it may have changed. Requires root.
#
#   purge.sh PACKAGE.deb...
#
# It works on an overlay of this machine in a mount namespace, and does not write to the machine itself.
set -euo pipefail

if [[ -z ${METALPLUG_PURGE_WORK:-} ]]; then
	METALPLUG_PURGE_WORK=$(mktemp -d)
	export METALPLUG_PURGE_WORK
	trap 'rm -rf "$METALPLUG_PURGE_WORK"' EXIT
	unshare --mount "$0" "$@"
	exit
fi
work=$METALPLUG_PURGE_WORK

bad() {
	echo "purge.sh: $*" >&2
	exit 1
}

# tree DIRECTORY lists all files, and prints the users and groups. It leaves out dpkg's database, and the backups and the lock
# of the programs that change users.
tree() {
	(cd "$1" && find . \( -path ./target -o -path ./var/lib/dpkg -o -path './etc/*-' -o -path ./etc/.pwd.lock \) -prune \
		-o -printf '%p %y %m %U:%G %l\n' | sort && tail -n +1 etc/{passwd,group,shadow,gshadow})
}

# package ARGUMENTS runs dpkg in the host, on the target.
package() {
	chroot "$work/host" dpkg --root=/target --log=/dev/null --force-script-chrootless --force-depends "$@" >"$work/log" 2>&1 || {
		cat "$work/log" >&2
		bad "dpkg $* failed"
	}
}

# files ROOT PATH... makes files, and directories, whose paths end with a slash.
files() {
	local path
	for path in "${@:2}"; do
		mkdir -p "$1/${path%/*}"
		[[ $path = */ ]] || touch "$1/$path"
	done
}

# base ROOT makes the files of a system without our packages. Another package has drop-ins for our units.
base() {
	local file
	files "$1" run/ var/lib/dpkg/{updates/,available,status,info/other.list} var/lib/systemd/deb-systemd-helper-{enabled,masked}/other \
		etc/apparmor.d/{local,disable,force-complain}/ var/cache/apparmor/1/ etc/cdi/other.json \
		etc/systemd/system/{multi-user.target.wants/other.service,metalplugd.service.d/other.conf,metalplug-dra.service.d/other.conf}
	(cd "$1" && find etc/systemd -printf '/%p\n') >"$1/var/lib/dpkg/info/other.list"
	printf '%s: other\n' Package Maintainer Description $'Architecture: all\nVersion: 1\nStatus: install ok installed\nSection' >"$1/var/lib/dpkg/status"
	for file in passwd group shadow gshadow; do
		grep ^root: "/etc/$file" >"$1/etc/$file"
	done
}

# plant ROOT makes what an operator and a running node leave.
plant() {
	local units=$1/etc/systemd/system
	files "$1" etc/metalplug/conf.d/{metalplug-dra.toml,.a.toml.swp,old/b.toml} etc/metalplug-dra/{token,old/token} \
		etc/systemd/system/metalplug{d.service,d-metrics.socket,-reset@.service,-dra.service,-dra.socket}.d/x.conf \
		etc/systemd/system/metalplug{-device.target,d.service}.wants/ var/lib/metalplug/{state.json,audit/1} \
		{etc/apparmor.d/{local,disable,force-complain},var/cache/apparmor/1}/metalplug{d,-reset,-unit,-dra} \
		run/metalplug/control.sock run/metalplug-{locks,mounts}/x run/cdi/metalplug-x.json \
		var/lib/kubelet/{device-plugins/mp-x.sock,plugins/metalplug.io/dra.sock,plugins_registry/metalplug.io-reg.sock}
	ln -s /nowhere "$1/etc/metalplug/conf.d/dangling"
	ln -sf /usr/lib/systemd/system/metalplug{d,-dra}.service "$units/multi-user.target.wants"
	ln -sf /usr/lib/systemd/system/metalplugd.service "$units/metalplug-device.target.wants"
	ln -sf /usr/lib/systemd/system/metalplugd-metrics.socket "$units/metalplugd.service.wants"
}

# The host has the same files, and our users and groups.
mount -t tmpfs tmpfs "$work"
mkdir -p "$work"/{upper/debs,upper/target,work,host}
base "$work/upper"
rm -r "$work/upper/var/lib/dpkg"
plant "$work/upper"
echo metalplug-dra:x:998:998::/:/usr/sbin/nologin >>"$work/upper/etc/passwd"
printf '%s\n' metalplug:x:999: metalplug-dra:x:998: >>"$work/upper/etc/group"
cp "$@" "$work/upper/debs"
mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" overlay "$work/host"
mount --rbind /dev "$work/host/dev"
mount -t proc proc "$work/host/proc"
tree "$work/upper" >"$work/host.before"

debs=("${@##*/}")
names=("${debs[@]%%_*}")
target=$work/host/target

echo 'a purge with all packages, on a system without a kubelet'
base "$target"
tree "$target" >"$work/before"
package -i "${debs[@]/#//debs/}"
[[ -x $target/usr/sbin/metalplugd ]] || bad 'dpkg -i put no program into the target'
grep -q ^metalplug: "$target/etc/group" || bad 'dpkg -i made no group in the target'
plant "$target"
package -P "${names[@]}"
diff "$work/before" <(tree "$target") || bad 'the purge changed these files'

echo 'a removal and a purge of one package after the other, on a node with a kubelet, with mounts in our directories'
files "$target" run/cdi/other.json var/lib/kubelet/{pods,plugins,plugins_registry}/ var/lib/kubelet/{device-plugins,pod-resources}/kubelet.sock
tree "$target" >"$work/before"
package -i "${debs[@]/#//debs/}"
mounts=({etc/metalplug,etc/metalplug-dra,var/lib/metalplug}/{bind,mount})
for mount in var/lib/metalplug "${mounts[@]}"; do
	mkdir "$target/$mount"
	case $mount in
	*/bind | var/lib/metalplug) mount --bind "$(mktemp -d -p "$target/${mount%%/metalplug*}")" "$target/$mount" ;; # of the same file system
	*) mount -t tmpfs tmpfs "$target/$mount" ;;
	esac
	touch "$target/$mount/file"
done
plant "$target"
package -r "${names[@]}"
for name in "${names[@]}"; do # apt may also purge metalplug before metalplug-dra
	package -P "$name"
done
# The state may be a mount. What is mounted elsewhere is not ours.
left=$(cd "$target" && find etc/metalplug etc/metalplug-dra var/lib/metalplug ! -type d | sort)
[[ $left = $(printf '%s\n' "${mounts[@]/%//file}" | sort) ]] || bad "after a purge, only the files in ${mounts[*]} must be left, but these are: $left"
umount -R "$target"/etc/metalplug{,-dra}/{bind,mount} "$target/var/lib/metalplug"
rm -r "$target"/{etc/metalplug,etc/metalplug-dra,var/lib/metalplug,{etc,var/lib}/tmp.*}
diff "$work/before" <(tree "$target") || bad 'the purge changed these files'

diff "$work/host.before" <(tree "$work/upper") || bad 'these files outside of the target changed'
echo 'a purge leaves its tree as it was, and nothing outside of it was touched'
