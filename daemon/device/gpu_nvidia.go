// SPDX-License-Identifier: Apache-2.0

package device

// GPUs below NVIDIA's driver, proprietary or open, which says little in sysfs.
//
// Follows: kernel-open/nvidia/nv-procfs.c (nv_procfs_read_gpu_info), nv-chardev-numbers.h and nv-caps.c of
// NVIDIA/open-gpu-kernel-modules.
//
// Identity: the GPU's UUID, which is also what nvidia-smi, CUDA and the CDI specs of nvidia-ctk call it. The driver
// knows it once it has initialised the GPU for the first user since it was loaded; nvidia-persistenced is one.
//
// Nodes: by the device minor that the driver tells, which follows neither the PCI address nor the UUID. No link
// outlives renumbering: who needs one across reboots injects by CDI. The nodes are made by nvidia-modprobe, without an
// event.

import (
	"errors"
	"path"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// nvidiaInformation reads what the driver says of the GPU at a PCI address, as lines of "Key: value".
func nvidiaInformation(h *Host, address string) (map[string]string, error) {
	text, err := h.Read("/proc/driver/nvidia/gpus/" + address + "/information")
	switch {
	case errors.Is(err, ErrGone):
		return nil, incompletef("driver nvidia does not know it yet")
	case err != nil:
		return nil, err
	}
	information := make(map[string]string)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok {
			information[key] = strings.TrimSpace(value)
		}
	}
	return information, nil
}

// nvidiaUUID returns the UUID among what the driver says. Older drivers write question marks in its place, newer ones
// leave the line out.
func nvidiaUUID(information map[string]string) (string, error) {
	uuid := information["GPU UUID"]
	if !strings.HasPrefix(uuid, "GPU-") || strings.Contains(uuid, "?") {
		return "", incompletef("its UUID is not known before its first use: start nvidia-persistenced, or run nvidia-smi once")
	}
	return uuid, nil
}

// nvidiaDevices returns the GPU and, if it is divided, its parts.
func nvidiaDevices(h *Host, gpu Device, address string) ([]Device, error) {
	information, err := nvidiaInformation(h, address)
	if err != nil {
		return nil, err
	}
	uuid, err := nvidiaUUID(information)
	if err != nil {
		return nil, err
	}
	gpu.ID, gpu.Model = MakeID(uuid), information["Model"]
	return append([]Device{gpu}, migDevices(h, gpu, information["Device Minor"])...), nil
}

// nvidiaOffer keeps back a GPU that the driver was told to leave alone, and one that is divided.
func nvidiaOffer(h *Host, d Device) error {
	information, err := nvidiaInformation(h, path.Base(d.SysPath))
	switch {
	case err != nil:
		return err
	case information["GPU Excluded"] == "Yes":
		return excludedf("the driver was told to exclude it (NVreg_ExcludedGpus)")
	case d.Part != "":
		return nil
	}
	return migOffer(h, information["Device Minor"])
}

func nvidiaAllocate(h *Host, d Device) (Allocation, error) {
	information, err := nvidiaInformation(h, path.Base(d.SysPath))
	if err != nil {
		return Allocation{}, err
	}
	uuid, err := nvidiaUUID(information)
	if err != nil {
		return Allocation{}, err
	}
	a := Allocation{Env: map[string]string{"NVIDIA_VISIBLE_DEVICES": uuid}}
	own := "nvidia" + information["Device Minor"]
	if !sysfs.Numbered(own, "nvidia") {
		return Allocation{}, incompletef("driver nvidia does not tell its device minor")
	}
	for _, name := range []string{own, "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"} {
		if err := a.add(h, "/dev/"+name); err != nil {
			return a, err
		}
	}
	if d.Part != "" { // MIG devices draw nothing
		err := a.addMIG(h, information["Device Minor"], d.Part)
		return a, err
	}
	if modeset, err := h.Node("/dev/nvidia-modeset"); err == nil { // for graphics; compute does without
		a.Nodes = append(a.Nodes, modeset)
	}
	return a, nil
}
