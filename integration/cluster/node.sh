#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Makes the calling process a node, in the mount namespace that it has alone, and runs the container runtime in it. The
# node has /dev, /run and /var of its own, below DIR. The programs are in /run/bin. /proc/sys has copies of the values
# that the kubelet sets (setupKernelTunables in pkg/kubelet/cm/container_manager_linux.go). With CGROUP, the container runtime
# is containerd, in the cgroup "runtime" below that one. Without DISK, the files of all nodes are mounted nodev, because the
# numbers of a recorded device may be those of a disk of this machine.
#
#	unshare --mount --propagation private node.sh DIR PROGRAMS CGROUP DISK
set -eu

dir=$1
if [ -z "$4" ]; then
	all=$(dirname "$dir")
	mount --rbind "$all" "$all"
	mount -o remount,bind,nodev "$all"
fi
for name in null zero full random urandom kmsg; do
	touch "$dir/dev/$name"
	mount --bind "/dev/$name" "$dir/dev/$name"
done
# metalplug-holders asks of each process what it has open. A container does not let root read process 1 of the machine.
mount --bind "/proc/$$" /proc/1
if [ -d "$dir/var/numa" ]; then
	mount --bind "$dir/var/numa" /sys/devices/system/node
fi
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	copy=$dir/run/sysctl/$(basename "$name")
	cat "/proc/sys/$name" >"$copy"
	mount --bind "$copy" "/proc/sys/$name"
done
mount --bind "$2" "$dir/run/bin"
mount --rbind "$dir/dev" /dev
mount --rbind "$dir/run" /run
mount --bind "$dir/var" /var
if [ -n "$3" ]; then
	echo $$ >"/sys/fs/cgroup/pids/$3/runtime/cgroup.procs"
	exec /run/bin/cluster/containerd --config /var/lib/containerd.toml
fi
exec /run/bin/cluster/cri
