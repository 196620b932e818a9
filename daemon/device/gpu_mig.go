// SPDX-License-Identifier: Apache-2.0

package device

// The MIG devices of NVIDIA's GPUs. A GPU that is divided is offered as its compute instances, never as a whole.
//
// Follows: kernel-open/nvidia/nv-caps.c and src/nvidia/arch/nvalloc/unix/src/os.c (osRmCapRegisterSmcPartition) of
// NVIDIA/open-gpu-kernel-modules; "Device Nodes and Capabilities" and "CUDA Device Enumeration" of NVIDIA's MIG User
// Guide; select_gpu_device in src/cli/common.c of NVIDIA/libnvidia-container.
//
// Below /proc/driver/nvidia/capabilities/gpu<device minor>/mig there is a directory gi<N> for each GPU instance. In it is a
// directory ci<N> for each compute instance. Both have a file access with the minor of a node in /dev/nvidia-caps. The files
// show no profile (1g.10gb) and no UUID of the instance. The UUID is a hash of a number which only the driver knows
// (nvGenerateSmcUuid), and NVML returns it.
//
// Identity: the GPU's UUID and the numbers of both instances, as drivers before 470 wrote the UUID of a MIG device
// (MIG-GPU-<UUID>/<GI>/<CI>). It means the same instance while that exists. A new one in its place may be of another size and
// has the same identity. So repartition a GPU when no pod holds it.
//
// Health: the GPU's. The kernel sends no event when instances are made or destroyed, so the GPU is looked at every minute.
//
// Nodes: the GPU's own, by which every process talks to the driver, and the two capabilities, without which the driver
// gives no access to an instance. CUDA takes the first instance that it has access to.
//
// NVIDIA_VISIBLE_DEVICES names the GPU. NVIDIA's container toolkit knows no instance by what files tell, and refuses what it
// does not know. For a GPU it adds the driver's libraries, and no capability, so that no other instance is within reach.

import (
	"path"
	"strconv"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

const nvidiaCapabilities = "/proc/driver/nvidia/capabilities/gpu"

// migParts lists the compute instances of the GPU with a device minor, as "gi<N>/ci<N>". divided reports whether there is a
// GPU instance, with or without them.
func migParts(h *Host, minor string) (parts []string, divided bool) {
	mig := nvidiaCapabilities + minor + "/mig"
	for _, gi := range h.Names(mig) {
		if !sysfs.Numbered(gi, "gi") {
			continue
		}
		divided = true
		for _, ci := range h.Names(mig + "/" + gi) {
			if sysfs.Numbered(ci, "ci") {
				parts = append(parts, gi+"/"+ci)
			}
		}
	}
	return parts, divided
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

// migOffer keeps back a GPU that is divided, because CUDA cannot use it as a whole.
func migOffer(h *Host, minor string) error {
	parts, divided := migParts(h, minor)
	switch {
	case len(parts) > 0:
		return excludedf("divided into MIG devices, which are offered in its place")
	case divided:
		return excludedf("divided into GPU instances without a compute instance: make them with nvidia-smi mig -cci")
	}
	return nil
}

// addMIG adds the nodes of both capabilities of a MIG device, that of the GPU instance and that of the compute instance.
func (r *recipe) addMIG(minor, part string) {
	for _, instance := range []string{path.Dir(part), part} {
		// The file tells the minor of the node of a capability (nv_cap_procfs_read).
		name := nvidiaCapabilities + minor + "/mig/" + instance + "/access"
		text, err := r.Read(name)
		if err != nil {
			r.fail(incompletef("its capability is not known: %w", err))
		}
		number, err := strconv.ParseUint(keyed(text, ":")["DeviceFileMinor"], 10, 20) // of a device number (MINORBITS)
		if err != nil {
			r.fail(incompletef("%s does not tell the minor of its node", name))
		}
		node := "/dev/nvidia-caps/nvidia-cap" + strconv.FormatUint(number, 10)
		if !r.Present(node) {
			r.fail(incompletef("%s is missing: nvidia-modprobe -f %s makes it", node, name))
		}
		r.add(node)
	}
}
