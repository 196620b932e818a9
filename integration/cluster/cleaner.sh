#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Kills all processes of a cgroup and removes it. With DIR, this script waits before that until the program that started a
# cluster has ended and closed standard input. The kernel kills the programs of the cluster at the same time. Then the script
# detaches the loop devices of files below DIR, unmounts the /run of each node, and removes DIR.
#
#	cleaner.sh CGROUP [DIR]
set -u
trap '' INT TERM HUP

cgroup=$1
dir=${2:-}

# again COMMAND... repeats a command for ten seconds, until it succeeds.
again() {
	tries=0
	until "$@" 2>/dev/null; do
		tries=$((tries + 1))
		if [ "$tries" -gt 100 ]; then
			"$@"
			exit 1
		fi
		sleep 0.1
	done
}

# The kernel has a hierarchy in each directory of /sys/fs/cgroup, or a single one there.
remove_cgroup() {
	for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
		[ -d "$hierarchy/$cgroup" ] || continue
		find "$hierarchy/$cgroup" -name cgroup.procs -exec cat {} + | while read -r process; do
			kill -9 "$process"
		done
		find "$hierarchy/$cgroup" -depth -type d -exec rmdir {} + || return
	done
}

[ -z "$dir" ] || read -r _
again remove_cgroup
[ -n "$dir" ] || exit 0
losetup --list --noheadings --output NAME,BACK-FILE 2>/dev/null | while read -r name file; do
	case $file in
	"$dir"/*) losetup --detach "$name" ;;
	esac
done
for run in "$dir"/*/run; do
	! mountpoint -q "$run" || again umount --lazy "$run"
done
again rm -rf "$dir" # a program that ends may still write a file
