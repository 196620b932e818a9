#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Writes content.txt, which contains the data that real tools write at the ends of a disk. The script needs root, loop
# devices and these tools. The tests need only content.txt. For each end it keeps the first or last few lines that are not
# zeroes. Of equal lines of the first end it keeps only one.
set -euo pipefail
out=$(cd "$(dirname "$0")" && pwd)/content.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# dump SIZE prints the lines of 16 bytes that are not zeroes in the first and the last MiB.
dump() {
	echo "size $1"
	{
		od -A d -t x1 -v -w16 -N 1048576 disk | awk '!/^[0-9]+( 00)*$/ && !seen[substr($0, 9)]++ && ++n <= 28'
		od -A d -t x1 -v -w16 -j "$(($1 - 1048576))" disk | awk '!/^[0-9]+( 00)*$/' | tail -n 40
	} | sed 's/^0*\([0-9]\)/\1/; s/ //2g'
}

# made WANT MIB COMMAND... prints what a command writes to an empty disk, the file "disk".
made() {
	local want=$1 size=$(($2 << 20))
	shift 2
	rm -f disk
	truncate -s "$size" disk
	"$@" >log 2>&1 || { cat log >&2; echo "$*: does not work here" >&2; return 0; }
	truncate -s "$size" disk # some commands shrink the file
	[ "$1" != onloop ] || shift
	printf '\n== %s: %s\n' "$want" "$*"
	dump "$size"
}

# onloop COMMAND... runs a tool that needs a block device.
onloop() {
	local loop code=0
	loop=$(losetup --find --show disk)
	"${@//disk/$loop}" || code=$?
	losetup -d "$loop"
	return "$code"
}

{
	echo "# Written by content.sh: want, then the command that made it; offset and bytes."
	made ext2 8 mkfs.ext2 -q disk
	made ext3 16 mkfs.ext3 -q disk
	made ext4 16 mkfs.ext4 -q disk
	made jbd 16 mke2fs -q -O journal_dev disk
	made xfs 320 mkfs.xfs -q disk
	made btrfs 128 mkfs.btrfs -q disk
	made f2fs 64 mkfs.f2fs -q disk
	made vfat 16 mkfs.vfat disk
	made vfat 64 mkfs.vfat -F 32 disk
	made exfat 16 mkfs.exfat disk
	made ntfs 16 mkntfs -F -q -f disk
	made nilfs2 256 mkfs.nilfs2 -q disk
	made jfs 32 mkfs.jfs -q disk
	made reiserfs 64 mkreiserfs -q -f -f disk
	made gfs2 64 onloop mkfs.gfs2 -q -O -p lock_nolock disk
	made ocfs2 64 mkfs.ocfs2 -q -M local --fs-features=local -x disk
	made minix 8 mkfs.minix disk
	made minix 8 mkfs.minix -3 disk
	mkdir tree && echo x >tree/x
	made erofs 8 mkfs.erofs disk tree
	made squashfs 8 mksquashfs tree disk -noappend -no-progress
	made iso9660 8 genisoimage -quiet -o disk tree
	made swap 8 mkswap disk
	made swap 8 mkswap -p 65536 disk
	made LVM2_member 16 onloop pvcreate -q disk
	made crypto_LUKS 32 bash -c 'echo -n key | cryptsetup luksFormat -q --type luks1 --pbkdf-force-iterations 1000 disk -'
	made crypto_LUKS 32 bash -c 'echo -n key | cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 disk -'
	made bcache 16 onloop make-bcache -B disk
	made drbd 16 onloop drbdmeta --force 0 v08 disk internal create-md
	made drbd 16 onloop drbdmeta --force 0 v09 disk internal create-md 1
	made gpt 16 sgdisk -n 1:2048:4096 disk
	made dos 16 bash -c 'echo 2048,2048 | sfdisk -q disk'
	made bsd 16 parted -s disk mklabel bsd
	made sun 16 bash -c 'echo "label: sun" | sfdisk -q disk'
	made sgi 16 bash -c 'echo "label: sgi" | sfdisk -q disk'
	made mac 16 parted -s disk mklabel mac
} >"$out"
