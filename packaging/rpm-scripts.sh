#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the scripts of the rpms in an overlay of this machine, where no service runs: an install, an upgrade to the same
# version, and a removal. Requires root.
#
#   rpm-scripts.sh PACKAGE.rpm...
set -euo pipefail

if [[ -z ${METALPLUG_RPM_WORK:-} ]]; then
	METALPLUG_RPM_WORK=$(mktemp -d)
	export METALPLUG_RPM_WORK
	trap 'rm -rf "$METALPLUG_RPM_WORK"' EXIT
	unshare --mount "$0" "$@"
	exit
fi
work=$METALPLUG_RPM_WORK root=$METALPLUG_RPM_WORK/root

bad() {
	echo "rpm-scripts.sh: $*" >&2
	exit 1
}

# package TEXT ARGUMENTS runs rpm, and compares the calls of systemd's helper with the text. If a script fails, rpm may only
# print a warning.
package() {
	: >"$root/calls"
	rpm --force-debian --root "$root" --nodeps "${@:2}" >"$work/log" 2>&1 || bad "rpm $2: $(cat "$work/log")"
	[[ ! -s $work/log ]] || bad "rpm $2: $(cat "$work/log")"
	diff <(echo "$1") <(sort "$root/calls") || bad "rpm $2 calls systemd-update-helper with other arguments"
}

mount -t tmpfs tmpfs "$work"
mkdir "$work"/{upper,work,root}
mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" overlay "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
printf '#!/bin/sh\necho "$@" >>/calls\n' | install -m 755 /dev/stdin "$root/usr/lib/systemd/systemd-update-helper"

package 'install-system-units metalplug-dra.service
install-system-units metalplugd.service metalplugd-metrics.socket' -i "$@"
[[ $(chroot "$root" id -Gn metalplug-dra) = metalplug-dra ]] || bad 'metalplug-dra is not the only group of the user metalplug-dra'
grep -q ^metalplug: "$root/etc/group" || bad 'rpm -i makes no group'
[[ -d $root/run/metalplug ]] || bad 'rpm -i does not make the directories of metalplug.conf'

package 'mark-restart-system-units metalplug-dra.service
mark-restart-system-units metalplugd.service' -U --replacepkgs "$@"

mkdir -p "$root"/var/lib/kubelet/{plugins/metalplug.io,plugins_registry}
touch "$root"/{etc/metalplug-dra/token,run/metalplug/control.sock,run/cdi/metalplug-x.json} \
	"$root"/var/lib/kubelet/{device-plugins/mp-x.sock,plugins/metalplug.io/dra.sock,plugins_registry/metalplug.io-reg.sock}
package 'remove-system-units metalplug-dra.service metalplug-dra.socket
remove-system-units metalplugd.service metalplugd-metrics.socket' -e metalplug metalplug-dra
[[ -e $root/etc/metalplug-dra/token ]] || bad 'rpm -e takes the token'
left=$(cd "$root" && find run var/lib/kubelet -name '*metalplug*' -o -name 'mp-*')
[[ -z $left ]] || bad "rpm -e leaves $left"
echo 'the scripts of the rpms make and remove what they should'
