// SPDX-License-Identifier: Apache-2.0

package device

// This file handles GPUs with the AMD driver. An Instinct GPU in mode DPX, TPX, QPX or CPX is divided into partitions (XCP).
//
// Follows: drivers/gpu/drm/amd/amdgpu/amdgpu_gfx.c (current_compute_partition), amdxcp/amdgpu_xcp_drv.c,
// amdkfd/kfd_topology.c (node_show, kfd_topology_add_device), amdgpu_ras.c (amdgpu_ras_badpages_read).
//
// Identity: unique_id, or the PCI address if the GPU has no unique_id. The ID of a partition also contains the mode and the
// partition's index, as in "cpx3". The compute driver adds a GPU's partitions to its topology in order (kfd_topology_add_device).
// The index is the position of the partition in this topology. The name amdgpu_xcp_N of a partition's node cannot identify the
// partition, because N counts across all GPUs.
//
// Only the compute driver shows which nodes belong to a partition. The compute driver reports the minor of the partition's render
// node. The nodes of the first partition belong to the PCI function. The nodes of all other partitions belong to platform devices
// without a PCI parent. These platform devices have nodes even if the GPU is not partitioned. The kernel sends no event when the
// mode changes, so the GPU is inspected every minute.
//
// Health: a partition is healthy if its GPU is. The RAS counters are not read, for the reason given in gpu_health.go. A bad
// memory page that cannot be retired causes a warning.
//
// Nodes: a container gets the render node, the card node, and /dev/kfd, which all GPUs share. A process can use a GPU through
// /dev/kfd only if it has access to the render node of that GPU.

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// amdDevices returns the GPU, followed by its parts if it is partitioned.
func amdDevices(h *Host, gpu Device, sysPath string) ([]Device, error) {
	var err error
	if gpu.ID, err = amdIdentity(h, sysPath); err != nil {
		return nil, err
	}
	devices := []Device{gpu}
	mode := amdMode(h, sysPath)
	if mode == "" {
		return devices, nil
	}
	for i := range kfdNodes(h, sysPath) {
		d := gpu
		d.Part = mode + strconv.Itoa(i)
		d.ID, d.Model = MakeID(gpu.ID, d.Part), strings.TrimPrefix(gpu.Model+", partition "+d.Part, ", ")
		devices = append(devices, d)
	}
	return devices, nil
}

// amdIdentity derives the device ID of a GPU from the chip's unique number (amdgpu_get_unique_id). On consumer cards, the
// attribute that contains this number is missing or empty, so the PCI address identifies the card.
func amdIdentity(h *Host, sysPath string) (id string, err error) {
	unique, err := h.Attr(sysPath, "unique_id")
	switch {
	case err != nil && !errors.Is(err, ErrGone):
		return "", incompletef("the unique_id of the GPU cannot be read at present: %w", err) // EPERM during a reset
	case strings.Trim(unique, "0") != "":
		return MakeID("gpu", unique), nil
	case len(drmNames(h, sysPath, "renderD")) == 0:
		// amdgpu_pci_probe creates the attribute before the nodes. If the nodes are missing, the attribute may still appear.
		return "", incompletef("driver amdgpu has not created the device nodes yet")
	}
	return MakeID("gpu", path.Base(sysPath)), nil
}

// amdMode returns the partition mode of a GPU in lower case, or "" if the GPU is not partitioned.
func amdMode(h *Host, sysPath string) string {
	mode, err := h.Attr(sysPath, "current_compute_partition")
	// The other modes are SPX, which means one partition, and UNKNOWN.
	if err != nil || !slices.Contains([]string{"DPX", "TPX", "QPX", "CPX"}, mode) {
		return ""
	}
	return strings.ToLower(mode)
}

// kfdNodes returns the render nodes that the compute driver lists for a PCI function, in the order of its topology. A
// partitioned GPU has one render node for each partition.
func kfdNodes(h *Host, function string) []string {
	const topology = "/sys/class/kfd/kfd/topology/nodes"
	numbers := h.Names(topology)
	slices.SortFunc(numbers, byNumber)
	var renders []string
	for _, number := range numbers {
		// A topology node without these properties is a processor. The read fails with EPERM if the device cgroup denies access
		// to the node (kfd_devcgroup_check_permission).
		text, _ := h.Read(topology + "/" + number + "/properties")
		p := sysfs.KeyValues(text, " ")
		domain, _ := strconv.ParseUint(p["domain"], 10, 32)
		location, _ := strconv.ParseUint(p["location_id"], 10, 32)
		if minor := p["drm_render_minor"]; minor != "" && minor != "0" && kfdAt(domain, location, path.Base(function)) {
			renders = append(renders, "renderD"+minor)
		}
	}
	return renders
}

// kfdAt reports whether a location in the topology belongs to the PCI function with the given address. The low 16 bits of a
// location contain the bus, device and function. The location of a partition also contains the partition's number, in place of
// the function or, with other kernels, in the upper four bits of the location.
func kfdAt(domain, location uint64, address string) bool {
	const function, partition = 0x7, 0xf0000000
	var d, bus, slot, f uint64
	if _, err := fmt.Sscanf(address, "%x:%x:%x.%x", &d, &bus, &slot, &f); err != nil {
		return false
	}
	location &^= partition
	if f == 0 {
		location &^= function
	}
	return domain == d && location == bus<<8|slot<<3|f
}

// amdOffer returns an error for a partitioned GPU as a whole.
func amdOffer(h *Host, d Device) error {
	mode := amdMode(h, d.SysPath)
	switch {
	case mode == "" || d.Part != "":
		return nil
	case len(kfdNodes(h, d.SysPath)) == 0:
		return incompletef("divided (%s) into partitions that the compute driver does not list", mode)
	}
	return excludedf("divided (%s) into partitions, which are offered instead", mode)
}

// addAMD adds a GPU's or partition's nodes, and the compute driver's /dev/kfd. The module creates /dev/kfd before it probes any
// GPU (kfd_chardev_init). A kernel without CONFIG_HSA_AMD does not create this node, but its GPUs can still render.
func (r *recipe) addAMD(d Device) {
	if d.Part == "" {
		r.addFunction(d.SysPath)
	} else {
		r.addPartition(d)
	}
	r.addOptional("/dev/kfd")
}

// addPartition adds the render node that the compute driver reports for a partition, and the card node of the same DRM device.
// addPartition does not use udev's links to these nodes, because the link names contain amdgpu_xcp_N.
func (r *recipe) addPartition(d Device) {
	renders := kfdNodes(r.Host, d.SysPath)
	i, err := strconv.Atoi(strings.TrimLeft(d.Part, "dtqcpx"))
	if err != nil || i >= len(renders) {
		r.fail(incompletef("the compute driver no longer lists the GPU"))
		return
	}
	r.addDRM(d.SysPath, renders[i])
	r.addDRM(d.SysPath, r.Numbered(path.Dir(r.Resolve("/sys/class/drm/"+renders[i])), "card")...)
}

// amdWarning returns a warning if bad memory pages could not be retired. A line such as "0x00000001 : 0x00001000 : F" describes a
// page. The flag F means that the page could not be retired. R means that the page is retired, and P means that the driver will
// retire the page.
func amdWarning(h *Host, d Device) string {
	if pciVendor(*d.Udev) != vendorAMD {
		return ""
	}
	text, _ := h.ReadAll(d.SysPath + "/ras/gpu_vram_bad_pages") // only some chips have this attribute
	bad := 0
	for line := range strings.Lines(text) {
		if strings.HasSuffix(strings.TrimSpace(line), ": F") {
			bad++
		}
	}
	if bad == 0 {
		return ""
	}
	return fmt.Sprintf("%d bad pages of its memory could not be retired (gpu_vram_bad_pages)", bad)
}
