#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Compares metalplug's view of the hardware of this node with that of the kernel and of the vendors' tools. Run it on a node
# with a card that the tests of this repository do not have. It changes nothing.
#
#     report.sh DIR [OPTION OF metalplugctl preview]...
#
# The script writes everything that a bug report needs into DIR. The recording has no serial number of a disk. A line with
# "differs" shows a device that the kernel or a tool knows and that metalplug neither offers nor withholds. Exit code: 0 no
# line differs, 1 a line differs, 2 the command line is invalid. METALPLUGCTL is the program (default: the one in PATH).
set -euo pipefail

ctl=${METALPLUGCTL:-metalplugctl}
sys=${SYS:-/sys} # sysfs of the kernel
if [ $# = 0 ]; then
	echo "usage: report.sh DIR [OPTION OF metalplugctl preview]..." >&2
	exit 2
fi
dir=$1
shift
mkdir -p "$dir" || exit 2

# Keep the output of each tool, with its errors. A missing tool is part of the report.
keep() {
	local file=$1
	shift
	"$@" >"$dir/$file" 2>&1 || echo "exit $?: $*" >>"$dir/$file"
}

"$ctl" preview "$@" -o json </dev/null >"$dir/preview.json"
keep doctor.txt "$ctl" doctor
keep status.json "$ctl" status -o json
keep machine.umockdev "$ctl" record
keep kernel.txt uname -a
keep pci.txt lspci -nnkD
keep nvidia.txt nvidia-smi -L
keep nvidia-topology.txt nvidia-smi topo -m
keep rdma.txt rdma link
keep amd.txt amd-smi list
keep drives.txt lsblk -d -o NAME,MODEL,SIZE,TYPE

differs=0
# known WITNESS WHAT TEXT checks that metalplug's output contains the text.
known() {
	if grep -qF -- "$3" "$dir/preview.json"; then
		echo "same     $1 $2"
	else
		echo "differs  $1 $2: metalplug has no device with $3"
		differs=1
	fi
}

# Only NVIDIA's library knows the UUID of a MIG device. metalplug shows its GPU as not offered.
while read -r uuid; do
	known nvidia-smi "$uuid" "$uuid"
done < <(grep -oE 'GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}' "$dir/nvidia.txt" | sort -u)

# The kernel's devices of each class, with their paths.
for device in "$sys"/class/{drm/card*[0-9],accel/accel*,infiniband/*,fpga_region/*,block/nvme*n*[0-9]}; do
	[ -e "$device/device" ] || continue
	case ${device##*/} in card*-* | nvme*p* | nvme*c*n*) continue ;; esac # connectors; partitions and paths of a disk
	at=$(readlink -f "$device/device")
	at=${at#"$(readlink -f "$sys")"}
	known kernel "${device#"$sys"/class/}" "/sys$at"
done

echo "The report is in $dir. Read it before you send it."
exit "$differs"
