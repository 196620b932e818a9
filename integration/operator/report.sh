#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What metalplug makes of the hardware of this node, beside what the kernel and the vendors' tools say of it: for a node
# with a card that the tests of this repository do not have. It changes nothing.
#
#     report.sh DIR [OPTION OF metalplugctl preview]...
#
# DIR gets all that a bug report needs; no serial number of a disk is in the recording. A line says "differs" where
# somebody else knows of a device of which metalplug knows nothing, neither to offer nor to withhold it. Exit: 0 none
# differs, 1 one does, 2 the command line makes no sense. METALPLUGCTL is the program, else it is looked for in PATH.
set -euo pipefail

ctl=${METALPLUGCTL:-metalplugctl}
sys=${SYS:-/sys} # of the kernel that is asked
dir=${1:?usage: report.sh DIR [OPTION OF metalplugctl preview]...}
shift
mkdir -p "$dir" || exit 2

# Kept as it is said, with what went wrong: a tool that is missing is part of the report.
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
# known WITNESS WHAT TEXT: the text is somewhere in what metalplug says.
known() {
	if grep -qF -- "$3" "$dir/preview.json"; then
		echo "same     $1 $2"
	else
		echo "differs  $1 $2: metalplug has no device with $3"
		differs=1
	fi
}

# A MIG device has a UUID that only NVIDIA's library tells; its GPU is told as not offered.
while read -r uuid; do
	known nvidia-smi "$uuid" "$uuid"
done < <(grep -oE 'GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}' "$dir/nvidia.txt" | sort -u)

# What the kernel has of each class, and where it is.
for device in "$sys"/class/{drm/card*[0-9],accel/accel*,infiniband/*,fpga_region/*,block/nvme*n*[0-9]}; do
	[ -e "$device/device" ] || continue
	case ${device##*/} in card*-* | nvme*p* | nvme*c*n*) continue ;; esac # connectors; partitions and paths of a disk
	at=$(readlink -f "$device/device")
	at=${at#"$(readlink -f "$sys")"}
	known kernel "${device#"$sys"/class/}" "/sys$at"
done

echo "kept in $dir: what a report of a bug needs"
exit "$differs"
