#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the scripts of the rpms in an overlay of this machine, where no service runs: an install, an upgrade to the same
# version, and a removal. Requires root. For metalplug-selinux, Debian's policy stands in for the "targeted" policy of Fedora
# and RHEL. SELinux itself is off.
#
#   rpm-scripts.sh METALPLUG.rpm METALPLUG-DRA.rpm
#   rpm-scripts.sh METALPLUG-SELINUX.rpm
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

# package TEXT ARGUMENTS runs rpm, and compares the calls to systemd's helper with the text. If a script fails, rpm may only
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

if [[ $1 = *metalplug-selinux-* ]]; then
	# selinux ARGUMENTS runs rpm, and prints its output and the module's priority.
	selinux() {
		rpm --force-debian --root "$root" --nodeps "$@" 2>&1 | grep -v 'not in password file' || true
		chroot "$root" semodule -s targeted --list-modules=full | awk '$2 == "metalplug" {print "loaded with priority", $1}'
	}
	(cd "$work" && apt-get -qq download selinux-policy-default)
	dpkg-deb -x "$work"/selinux-policy-default_*.deb "$root"
	mv "$root"/etc/selinux/default "$root"/etc/selinux/targeted
	printf 'SELINUX=disabled\nSELINUXTYPE=targeted\n' >"$root/etc/selinux/config"
	chroot "$root" sh -c 'semodule -n -X 100 -s targeted -i /usr/share/selinux/default/*.pp.bz2'
	built='Compiling targeted metalplug module
Creating targeted metalplug.pp policy package
loaded with priority 200'
	[[ $(selinux -i "$1") = "$built" ]] || bad 'rpm -i does not load the module'
	[[ $(selinux -U --replacepkgs "$1") = "$built" ]] || bad 'rpm -U does not load the module again'
	mv "$root"/usr/share/selinux/devel/Makefile "$work"
	[[ $(selinux -U --replacepkgs "$1") = *'the SELinux module was not loaded'*'loaded with priority 200' ]] ||
		bad 'rpm -U does not report a module that it cannot compile'
	[[ $(selinux -e metalplug-selinux) != *loaded* ]] || bad 'rpm -e leaves the module'
	echo 'the scripts of the rpm load and remove the module'
	exit
fi

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
echo 'the scripts of the rpms create and remove the right files'
