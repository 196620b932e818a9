#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the machine that the tests of this folder boot: Debian 13 on a GPT
# disk, its kernel with a few modules more, and a small initrd. Prints the
# folder that holds the three as disk.img, vmlinuz and initrd.
#
# The folder lies in the cache and is named by a hash of this script, of the
# folder modules and of the settings, so nothing is built again until one of
# them changes.
set -euo pipefail

usage() {
	cat <<-END
		usage: image.sh [--force | --where | --needs]

		  --force   build even when the cache has the image
		  --where   print the folder and stop; exit 1 when it is not built
		  --needs   print the Debian packages of this host that are missing

		METALPLUG_CACHE        cache folder (default: XDG cache folder, metalplug)
		METALPLUG_VM_PACKAGES  more Debian packages for the guest, a space between
		METALPLUG_MIRROR       Debian mirror (default: the one that this host's apt uses)
	END
}

suite=trixie
size_mib=3072
first_mib=1 # where the root partition starts

# What the guest needs beyond a minimal Debian; METALPLUG_VM_PACKAGES adds to it.
packages=(
	systemd-sysv udev dbus kmod procps util-linux iproute2
	e2fsprogs fdisk gdisk lvm2 mdadm cryptsetup-bin bcache-tools
	nvme-cli rdma-core ibverbs-utils pciutils
	busybox-static selinux-policy-default selinux-utils
)
read -r -a more <<<"${METALPLUG_VM_PACKAGES:-}"
packages+=("${more[@]}")

# Units that cost time in an emulated machine and that no test needs.
masked=(
	apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer
	e2scrub_all.timer e2scrub_reap.service mdcheck_start.timer mdmonitor-oneshot.timer
	getty@tty1.service serial-getty@ttyS0.service console-getty.service
	systemd-firstboot.service systemd-hwdb-update.service ldconfig.service
	systemd-pcrphase.service systemd-binfmt.service lvm2-monitor.service
)

# What is left of SELinux' policy: what concerns a node, and what that refers to. All of the policy is compiled whenever
# a module is installed, which with Debian's other 300 takes an emulated machine three times as long.
policy_modules=(
	apt auditadm base bootloader cgroup clock container crio cron docker firewalld getty gpg hostname iptables kubernetes
	loadkeys logadm logrotate lvm mta netutils podman policykit raid rpc rpcbind secadm shutdown ssh staff su sudo
	unconfined unprivuser userhelper xdg xserver
)

# Modules of the initrd: enough to mount a root on NVMe.
initrd_modules=(nvme crc32c_generic crc32c_cryptoapi ext4)

# Command of this host -> Debian package that has it.
declare -A needs=(
	[qemu-system-x86_64]=qemu-system-x86 [mmdebstrap]=mmdebstrap [mke2fs]=e2fsprogs
	[sfdisk]=fdisk [cpio]=cpio [xz]=xz-utils [zstd]=zstd [modprobe]=kmod [flock]=util-linux
)

missing_packages() {
	local command
	# Without root, mmdebstrap needs a user namespace with the IDs of /etc/subuid.
	((EUID == 0)) || needs[newuidmap]=uidmap
	for command in "${!needs[@]}"; do
		PATH=$PATH:/usr/sbin:/sbin command -v "$command" >/dev/null || echo "${needs[$command]}"
	done
	[[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] || echo debian-archive-keyring
}

install_missing() {
	local -a missing
	mapfile -t missing < <(missing_packages | sort -u)
	((${#missing[@]})) || return 0
	local -a install=(apt-get install -y --no-install-recommends "${missing[@]}")
	if ((EUID != 0)); then
		echo "image.sh: packages missing on this host; run: sudo ${install[*]}" >&2
		return 1
	fi
	DEBIAN_FRONTEND=noninteractive "${install[@]}" >&2
}

# The Debian mirror that this host's apt uses. Empty, when it has none: then
# mmdebstrap takes its own default.
mirror() {
	if [[ -n ${METALPLUG_MIRROR:-} ]]; then
		echo "$METALPLUG_MIRROR"
		return
	fi
	# shellcheck disable=SC2016  # $(REPO_URI) is apt's, not the shell's
	apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)' 'Identifier: Packages' 2>/dev/null |
		sed -n '/^Debian|Debian|main|/{s///;p;q}' || true
}

key() {
	{
		cat "$0" "$(dirname "$0")"/modules/*.c
		printf '%s\n' "${packages[@]}"
	} | sha256sum | cut -c1-16
}

# build_root OUT: makes the guest's file system with mmdebstrap. Its hook runs
# a copy of this script (--finish) beside the tree, with the right to read all
# of it; the copy lies where that other user can reach it.
build_root() {
	local out=$1 from
	from=$(mirror)
	cp "$0" "$out/image.sh"
	cp -r "$(dirname "$0")/modules" "$out/modules"
	chmod 0755 "$out/image.sh"
	mmdebstrap --quiet --variant=minbase --format=null \
		--include="$(IFS=,; echo "${packages[*]}")" \
		--dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		--customize-hook="'$out/image.sh' --finish \"\$1\"" \
		"$suite" /dev/null ${from:+"$from"} >&2
}

# finish ROOT: makes kernel, initrd and disk from the tree, beside this script.
finish() {
	out=$(dirname "$0")
	install_kernel "$1"
	build_modules "$1"
	configure_guest "$1"
	trim_policy "$1"
	write_initrd "$1"
	write_disk "$1"
	label_disk "$1"
}

# The kernel's package is unpacked, not installed: its dependency on an initrd
# generator costs half of the build, and we make our own initrd.
install_kernel() {
	local root=$1 package
	package=$(chroot "$root" apt-cache depends --important linux-image-amd64 |
		sed -n 's/^ *Depends: *\(linux-image-[^ ]*\)$/\1/p' | head -n 1)
	chroot "$root" sh -c "cd /tmp && apt-get -q download $package" >&2
	dpkg-deb -x "$root"/tmp/linux-image-*.deb "$root"
	rm "$root"/tmp/linux-image-*.deb
	depmod -b "$root" "${package#linux-image-}"
	cp "$root/boot/vmlinuz-${package#linux-image-}" "$out/vmlinuz"
}

# The kernel's own DFL drivers, which Debian's kernel leaves out, and beside them
# the modules of this folder: against Debian's headers, which are unpacked as the
# kernel is, with Debian's compiler. What that takes is removed again.
build_modules() {
	local root=$1 version release compiler package sources=/usr/src/fpga
	version=$(basename "$root"/lib/modules/*)
	release=${version%%+*} # 6.12.107
	compiler=$(chroot "$root" apt-cache depends --important "linux-headers-$version" |
		sed -n 's/^ *Depends: *\(gcc-[0-9]*\).*$/\1/p')
	chroot "$root" sh -c "mkdir -p /tmp/debs && cd /tmp/debs && apt-get -q download linux-source-${release%.*} \
		linux-headers-$version linux-headers-${version%-*}-common linux-kbuild-${version%-*}" >&2
	mkdir -p "$root$sources"
	dpkg-deb --fsys-tarfile "$root"/tmp/debs/linux-source-*.deb | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' |
		xz -dc -T0 | tar -x -C "$root$sources" --strip-components=3 --wildcards '*/drivers/fpga/*.[ch]' '*/drivers/fpga/Makefile'
	for package in "$root"/tmp/debs/linux-{headers,kbuild}-*.deb; do
		dpkg-deb -x "$package" "$root"
	done
	cp "$out"/modules/*.c "$root$sources"
	echo 'obj-m += dfl-fake.o nvidia-uvm.o' >>"$root$sources/Makefile"
	chroot "$root" apt-get -q install -y --no-install-recommends make "$compiler" >&2
	chroot "$root" sh -euc "cd $sources
		make -s -j\$(nproc) -C /lib/modules/$version/build M=$sources modules \
			CONFIG_FPGA=m CONFIG_FPGA_BRIDGE=m CONFIG_FPGA_REGION=m CONFIG_FPGA_DFL=m CONFIG_FPGA_DFL_FME=m CONFIG_FPGA_DFL_AFU=m CONFIG_DEBUG_INFO_BTF_MODULES=
		strip --strip-debug ./*.ko
		install -D -m 0644 -t /lib/modules/$version/updates ./*.ko" >&2
	chroot "$root" apt-get -q purge -y --autoremove make "$compiler" >&2
	rm -rf "$root"/usr/src/* "$root"/usr/lib/linux-kbuild-* "$root/lib/modules/$version"/{build,source} "$root"/tmp/debs
	depmod -b "$root" "$version"
}

configure_guest() {
	local root=$1 unit
	echo metalplug >"$root/etc/hostname"
	echo '127.0.0.1 localhost metalplug' >"$root/etc/hosts"
	# A known machine ID: an empty one makes each boot a first boot.
	echo 6d6574616c706c7567766d746573740a >"$root/etc/machine-id"
	echo 'LABEL=metalplug-root / ext4 defaults 0 1' >"$root/etc/fstab"
	chroot "$root" passwd -d root >/dev/null
	mkdir -p "$root/etc/systemd/journald.conf.d"
	printf '[Journal]\nStorage=volatile\nRateLimitBurst=0\n' >"$root/etc/systemd/journald.conf.d/vm.conf"
	for unit in "${masked[@]}"; do
		ln -sf /dev/null "$root/etc/systemd/system/$unit"
	done
	# What keeps services from starting while the tree is made; mmdebstrap would take it away after us.
	rm -f "$root/usr/sbin/policy-rc.d"
	[[ ! -e $root/usr/sbin/start-stop-daemon.REAL ]] || mv "$root/usr/sbin/start-stop-daemon.REAL" "$root/usr/sbin/start-stop-daemon"
	rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/boot/initrd*
}

trim_policy() {
	local root=$1 module
	local -a disable=()
	for module in "$root"/var/lib/selinux/default/active/modules/100/*; do
		module=${module##*/}
		[[ " ${policy_modules[*]} " == *" $module "* ]] || disable+=(--disable="$module")
	done
	chroot "$root" semodule --noreload "${disable[@]}" >&2
}

# The initrd mounts the root partition, puts what the test appended under
# /payload/run into /run and hands over to systemd.
write_initrd() {
	local root=$1 version tree module file
	version=$(basename "$root"/lib/modules/*)
	tree=$(mktemp -d)
	mkdir -p "$tree"/{bin,modules,payload/run}
	cp "$root/bin/busybox" "$tree/bin/busybox"
	for module in "${initrd_modules[@]}"; do
		modprobe -d "$root" -S "$version" --show-depends "$module" 2>/dev/null || true
	done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r file; do
		module=$(basename "$file" .xz)
		xz -dc "$file" >"$tree/modules/$module"
		echo "$module" >>"$tree/modules/order"
	done
	cat >"$tree/init" <<-'END'
		#!/bin/busybox sh
		/bin/busybox --install -s /bin
		export PATH=/bin
		mkdir -p /proc /sys /dev /run /sysroot
		mount -t proc proc /proc
		mount -t sysfs sysfs /sys
		mount -t devtmpfs devtmpfs /dev
		mount -t tmpfs -o mode=755,nosuid,nodev tmpfs /run
		while read -r module; do insmod "/modules/$module" 2>/dev/null; done </modules/order
		cp -a /payload/run/. /run/
		until mount -t ext4 "$(findfs LABEL=metalplug-root 2>/dev/null)" /sysroot 2>/dev/null; do usleep 50000; done
		for dir in run dev sys proc; do mount --move /$dir /sysroot/$dir; done
		exec switch_root /sysroot /sbin/init
	END
	chmod 0755 "$tree/init"
	(cd "$tree" && find . | cpio --quiet -o -H newc -R 0:0) >"$out/initrd"
	rm -rf "$tree"
}

# One GPT disk with the root in its only partition: as an NVMe boot disk looks.
write_disk() {
	local root=$1 disk=$out/disk.img
	truncate -s "${size_mib}M" "$disk"
	printf 'label: gpt\nstart=%dMiB, type=linux, name=root\n' "$first_mib" | sfdisk --quiet "$disk"
	# A view of the tree without what is mounted in it (proc, sys, dev).
	# shellcheck disable=SC2016  # the inner shell's
	unshare --mount bash -euc 'mkdir "$1" && mount --bind "$2" "$1" && shift 2 && mke2fs "$@"' - "$out/view" "$root" \
		-q -t ext4 -L metalplug-root -m 0 -O ^has_journal \
		-E "offset=$((first_mib << 20)),lazy_itable_init=1" \
		-d "$out/view" "$disk" "$((size_mib - first_mib - 1))M"
}

# The labels of SELinux, which nobody looks at unless the kernel is told to. They
# are written into the file system that is ready, for to set them on the tree
# asks for a capability of this host.
label_disk() {
	local root=$1
	# shellcheck disable=SC2016  # the inner shell's
	chroot "$root" sh -c 'find / -xdev -print0 | xargs -0 matchpathcon' |
		sed -n 's/^\([^\t"]*\)\t\([a-z_]*:[a-z_]*:[a-z_]*:s0\)$/ea_set "\1" security.selinux \2/p' >"$out/labels"
	[[ -s $out/labels ]]
	debugfs -w -f "$out/labels" "$out/disk.img?offset=$((first_mib << 20))" >/dev/null 2>"$out/unlabelled"
}

main() {
	local cache dir work
	PATH=$PATH:/usr/sbin:/sbin
	cache=${METALPLUG_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/metalplug}
	dir=$cache/vm-$suite-$(key)
	case ${1:-} in
	'') ;;
	--force) rm -rf "$dir" ;;
	--where)
		echo "$dir"
		[[ -e $dir/disk.img ]]
		return
		;;
	--needs)
		missing_packages | sort -u
		return
		;;
	--finish)
		finish "$2"
		return
		;;
	*)
		usage >&2
		return 2
		;;
	esac

	install_missing
	mkdir -p "$cache"
	if [[ -e $dir/disk.img ]]; then # who needs another one may be at work for minutes
		echo "$dir"
		return
	fi
	exec 9>"$cache/vm.lock"
	flock 9
	if [[ ! -e $dir/disk.img ]]; then
		# Not in the cache: without root, mmdebstrap works as another user, who
		# cannot reach into a home folder.
		work=$(mktemp -d "${TMPDIR:-/var/tmp}/metalplug-vm.XXXXXX")
		# shellcheck disable=SC2064  # the folder as it is now
		trap "rm -rf '$work'" EXIT
		((EUID == 0)) || chmod 0777 "$work"
		build_root "$work"
		rm -rf "$cache/vm-$suite-"*.new
		mkdir "$dir.new"
		cp --sparse=always "$work/disk.img" "$work/vmlinuz" "$work/initrd" "$dir.new/"
		mv "$dir.new" "$dir"
	fi
	echo "$dir"
}

main "$@"
