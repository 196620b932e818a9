#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks that systemd merges the image into a copy of this machine, that the programs and units then work, and that
# unmerging leaves nothing behind. Then it boots a container with the image and the systemd of Debian 13, which runs the
# daemon.
# Requires root.
#
#   sysext-check.sh IMAGE
#
# It works on an overlay of this machine in a mount namespace, and does not write to the machine itself.
set -euo pipefail
cd "$(dirname "$0")/.."

# boots FOLDER boots a container with the unpacked image.
boots() {
	local tree
	tree=$(integration/sandbox/tree.sh trixie)
	mkdir "$1/out"
	cat >"$1/report.service" <<-'END'
		[Unit]
		After=metalplugd.service multi-user.target
		[Service]
		Type=oneshot
		ExecStart=-timeout 60 sh -c 'until systemctl is-active -q metalplugd; do sleep 1; done; { systemctl is-active metalplugd metalplugd-control.socket && metalplugctl status && getent group metalplug && echo it serves; journalctl -b; } >/out/report 2>&1'
		ExecStart=systemctl --no-block poweroff
	END
	SYSTEMD_NSPAWN_API_VFS_WRITABLE=1 SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 timeout 300 systemd-nspawn --quiet --directory "$tree" \
		--volatile=overlay --boot --register=no --keep-unit --private-network --capability=all --machine=metalplug-sysext \
		--console=pipe --system-call-filter=bpf --bind="$1/out:/out" --bind-ro="$1/metalplug:/var/lib/extensions/metalplug" \
		--bind-ro="$1/report.service:/etc/systemd/system/report.service" \
		systemd.wants=systemd-sysext.service systemd.wants=report.service >"$1/console" 2>&1 || true
	grep -qx 'it serves' "$1/out/report" || {
		cat "$1/console" "$1/out/report" >&2
		echo 'sysext-check.sh: the daemon does not run in a container that booted with the image' >&2
		return 1
	}
	echo 'a container with systemd 257 boots with the image and runs the daemon'
}

if [[ -z ${METALPLUG_SYSEXT_WORK:-} ]]; then
	METALPLUG_SYSEXT_WORK=$(mktemp -d)
	export METALPLUG_SYSEXT_WORK
	trap 'rm -rf "$METALPLUG_SYSEXT_WORK"' EXIT
	image=$(realpath "$1")
	unshare --mount packaging/sysext-check.sh "$image"
	unsquashfs -quiet -no-progress -dest "$METALPLUG_SYSEXT_WORK/metalplug" "$image"
	boots "$METALPLUG_SYSEXT_WORK"
	exit
fi
work=$METALPLUG_SYSEXT_WORK

bad() {
	echo "sysext-check.sh: $*" >&2
	exit 1
}

mount -t tmpfs tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/host"
mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" overlay "$work/host"
mount --rbind /dev "$work/host/dev"
mount -t proc proc "$work/host/proc"
# systemd-sysext works in its own mount namespace, and its mounts propagate back from there.
mount --bind /run /run
mount --make-rshared /
# Use a directory instead of the image where no loop device is available, as in a container.
mkdir -p "$work/host/var/lib/extensions"
unsquashfs -quiet -no-progress -dest "$work/host/var/lib/extensions/metalplug" "$1"
[[ ! -e $work/host/usr/sbin/metalplugd ]] || bad 'metalplug is installed on this machine already'

systemd-sysext --root="$work/host" merge || bad 'systemd-sysext merge'
inside() { chroot "$work/host" "$@" || bad "$*: exit status $?"; }
inside metalplugd --check
inside metalplugctl preview --recording gpu-server >"$work/preview"
grep -q 'nvidia.com/gpu' "$work/preview" || bad 'metalplugctl preview shows no GPU'
inside systemd-sysusers metalplug.conf
inside getent group metalplug >/dev/null
SYSTEMD_LOG_LEVEL=warning chroot "$work/host" systemd-analyze verify --man=no metalplug-sysext.service multi-user.target >"$work/verify" 2>&1 || bad "systemd-analyze verify: $(cat "$work/verify")"
! grep -i 'cycle' "$work/verify" || bad 'the units have an ordering cycle'
systemd-sysext --root="$work/host" unmerge || bad 'systemd-sysext unmerge'
[[ ! -e $work/host/usr/sbin/metalplugd ]] || bad 'systemd-sysext unmerge leaves a program'
echo 'systemd-sysext merges the image, and its programs and units work'
