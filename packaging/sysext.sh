#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes images for systemd-sysext(8) from the debs, for systems with a read-only /usr: ARCHITECTURE/metalplug.raw. The same
# debs give the same bytes.
#
#   sysext.sh PACKAGES DIRECTORY
#
# SOURCE_DATE_EPOCH  the time of all files (default: that of the last commit)
set -euo pipefail
cd "$(dirname "$0")/.."

packages=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(packaging/epoch.sh)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022

# image ARCHITECTURE DEB
image() {
	local tree=$work/$1 machine unit
	case $1 in amd64) machine=x86-64 ;; *) machine=$1 ;; esac
	dpkg-deb -x "$2" "$tree"
	# An extension has no /etc, so the built-in configuration applies. It needs no completions and no file for lintian.
	rm -rf "${tree:?}/etc" "$tree"/usr/share/{lintian,bash-completion,zsh,fish}
	mkdir "$tree/usr/lib/extension-release.d" "$tree"/usr/lib/systemd/system/{multi-user.target,metalplugd.service,metalplugd-control.socket}.d
	# The image is for any distribution. The programs need glibc, libudev and systemd 249. systemd 255 and later reload
	# during the merge.
	cat >"$tree/usr/lib/extension-release.d/extension-release.metalplug" <<-END
		ID=_any
		ARCHITECTURE=$machine
		EXTENSION_RELOAD_MANAGER=1
	END
	cat >"$tree/usr/lib/systemd/system/multi-user.target.d/10-metalplug.conf" <<-END
		[Unit]
		Upholds=metalplugd.service
	END
	for unit in metalplugd.service metalplugd-control.socket; do
		cat >"$tree/usr/lib/systemd/system/$unit.d/10-metalplug-sysext.conf" <<-END
			[Unit]
			Requires=metalplug-sysext.service
			After=metalplug-sysext.service
		END
	done
	# In a deb, its scripts do this. At boot the image is merged after udev's coldplug, and perhaps after systemd-sysusers.
	cat >"$tree/usr/lib/systemd/system/metalplug-sysext.service" <<-END
		[Unit]
		Description=Prepare this machine for metalplug from a system extension
		Documentation=man:systemd-sysext(8)
		DefaultDependencies=no
		After=systemd-sysext.service systemd-udevd.service systemd-sysusers.service systemd-tmpfiles-setup.service
		Conflicts=shutdown.target
		Before=shutdown.target

		[Service]
		Type=oneshot
		RemainAfterExit=yes
		ExecStart=systemd-sysusers metalplug.conf
		ExecStart=systemd-tmpfiles --create metalplug.conf
		ExecStart=-journalctl --update-catalog
		ExecStart=-udevadm control --reload
		ExecStart=-udevadm trigger --action=change --subsystem-match=pci --subsystem-match=nvme --subsystem-match=nvme-generic
		ExecStart=-udevadm settle --timeout=10
	END
	mkdir -p "$out/$1"
	mksquashfs "$tree" "$out/$1/metalplug.raw" -quiet -no-progress -noappend -all-root -no-xattrs -comp zstd
	echo "$out/$1/metalplug.raw: $(stat -c %s "$out/$1/metalplug.raw") bytes"
}

for deb in "$packages"/metalplug_*.deb; do
	arch=${deb##*_}
	image "${arch%.deb}" "$deb"
done
