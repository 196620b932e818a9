// SPDX-License-Identifier: Apache-2.0

package device

// This file finds the MIG devices on NVIDIA GPUs. A partitioned GPU is offered as its compute instances, never as a whole.
//
// Follows: kernel-open/nvidia/nv-caps.c and src/nvidia/arch/nvalloc/unix/src/os.c (osRmCapRegisterSmcPartition) of
// NVIDIA/open-gpu-kernel-modules; "Device Nodes and Capabilities" and "CUDA Device Enumeration" in NVIDIA's MIG User Guide;
// select_gpu_device in src/cli/common.c of NVIDIA/libnvidia-container.
//
// The directory /proc/driver/nvidia/capabilities/gpu<device minor>/mig contains a directory gi<N> for each GPU instance. Each
// gi<N> contains a directory ci<N> for each compute instance. Both kinds of directories contain a file "access" with the minor
// number of a node in /dev/nvidia-caps. The files show neither an instance's profile (1g.10gb) nor its UUID. The UUID is a hash
// of a number that only the driver knows (nvGenerateSmcUuid), and only NVML returns it.
//
// Identity: the GPU's UUID and the numbers of the GPU instance and the compute instance. Drivers before 470 used the same numbers
// in the UUID of a MIG device (MIG-GPU-<UUID>/<GI>/<CI>). The identity is valid as long as the instance exists. A new instance
// with the same numbers has the same identity, but may differ in size. Operators must therefore repartition a GPU only while no
// pod holds it.
//
// Health: a MIG device is healthy if its GPU is. The kernel sends no event when instances are created or destroyed, so the GPU is
// inspected every minute.
//
// Nodes: a container gets the GPU's nodes, because every process needs them to communicate with the driver. To give access to an
// instance, the driver requires two capabilities, and the container gets their nodes too. CUDA uses the first instance that it
// can access.
//
// The variable NVIDIA_VISIBLE_DEVICES contains the GPU's UUID. NVIDIA's container toolkit cannot identify instances from the
// files in procfs, and rejects values that it does not know. If the value is a GPU's UUID, the toolkit adds the driver's
// libraries but no capabilities. A container therefore cannot access other instances.

import (
	"path"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

const nvidiaCapabilities = "/proc/driver/nvidia/capabilities/gpu"

// migParts returns the compute instances of the GPU with the given device minor, as "gi<N>/ci<N>". The result divided is true if
// the GPU has at least one GPU instance, with or without compute instances.
func migParts(h *Host, minor string) (parts []string, divided bool) {
	mig := nvidiaCapabilities + minor + "/mig"
	instances := h.Numbered(mig, "gi")
	for _, gi := range instances {
		for _, ci := range h.Numbered(mig+"/"+gi, "ci") {
			parts = append(parts, gi+"/"+ci)
		}
	}
	return parts, len(instances) > 0
}

// migDevices returns the MIG devices of a GPU.
func migDevices(h *Host, gpu Device, minor string) []Device {
	parts, _ := migParts(h, minor)
	devices := make([]Device, len(parts))
	for i, part := range parts {
		d := gpu
		gi, ci, _ := strings.Cut(part, "/")
		d.ID, d.Part, d.Model = MakeID("MIG", gpu.ID, gi, ci), part, gpu.Model+", MIG "+part
		devices[i] = d
	}
	return devices
}

// migOffer returns an error for a partitioned GPU, because CUDA cannot use such a GPU as a whole.
func migOffer(h *Host, minor string) error {
	parts, divided := migParts(h, minor)
	switch {
	case len(parts) > 0:
		return excludedf("divided into MIG devices, which are offered instead")
	case divided:
		return excludedf("divided into GPU instances without a compute instance: create them with nvidia-smi mig -cci")
	}
	return nil
}

// addMIG adds the two capability nodes of a MIG device, one for its GPU instance and one for its compute instance.
func (r *recipe) addMIG(minor, part string) {
	for _, instance := range []string{path.Dir(part), part} {
		// The file contains the minor of the capability's node (nv_cap_procfs_read).
		name := nvidiaCapabilities + minor + "/mig/" + instance + "/access"
		text, err := r.Read(name)
		if err != nil {
			r.fail(incompletef("the capability of the MIG device is unknown: %w", err))
		}
		number, err := strconv.ParseUint(sysfs.KeyValues(text, ":")["DeviceFileMinor"], 10, 20) // the number of bits in a minor (MINORBITS)
		if err != nil {
			r.fail(incompletef("%s does not report the minor of its node", name))
		}
		node := "/dev/nvidia-caps/nvidia-cap" + strconv.FormatUint(number, 10)
		if !r.Present(node) {
			r.fail(incompletef("%s is missing: nvidia-modprobe -f %s creates it", node, name))
		}
		r.add(node)
	}
}
