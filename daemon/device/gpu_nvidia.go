// SPDX-License-Identifier: Apache-2.0

package device

// This file handles GPUs with an NVIDIA driver, either proprietary or open. The driver shows little in sysfs, so most information
// comes from procfs.
//
// Follows: kernel-open/nvidia/nv-procfs.c (nv_procfs_read_gpu_info), nv-chardev-numbers.h and nv-caps.c of
// NVIDIA/open-gpu-kernel-modules.
//
// Identity: the GPU's UUID, which nvidia-smi, CUDA and the CDI specs of nvidia-ctk also use. Each time that the driver is loaded,
// the UUID is unknown until a process, such as nvidia-persistenced, has used the GPU.
//
// Nodes: a container gets the node with the device minor that the driver reports, and the nodes that all GPUs share. The minor
// does not depend on the PCI address or the UUID. No link stays correct when the minors change. A resource that needs the same
// nodes after a reboot should use CDI. nvidia-modprobe creates the nodes, which causes no event.

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
)

// nvidiaInformation parses the lines "Key: value" that the driver shows for the GPU at a PCI address. nvidiaInformation also
// returns the UUID. If the UUID is unknown, older drivers show question marks, and newer drivers omit the line.
func nvidiaInformation(h *Host, address string) (information map[string]string, uuid string, err error) {
	text, err := h.Read("/proc/driver/nvidia/gpus/" + address + "/information")
	switch {
	case errors.Is(err, ErrGone):
		return nil, "", incompletef("the nvidia driver does not know this GPU yet")
	case err != nil:
		return nil, "", err
	}
	information = sysfs.KeyValues(text, ":")
	uuid = information["GPU UUID"]
	if !strings.HasPrefix(uuid, "GPU-") || strings.Contains(uuid, "?") {
		err = incompletef("the driver reports no UUID before the first use of the GPU: start nvidia-persistenced, or run nvidia-smi once")
	}
	return information, uuid, err
}

// nvidiaDevices returns the GPU, followed by its parts if it is partitioned.
func nvidiaDevices(h *Host, gpu Device, address string) ([]Device, error) {
	information, uuid, err := nvidiaInformation(h, address)
	if err != nil {
		return nil, err
	}
	gpu.ID, gpu.Model = MakeID(uuid), information["Model"]
	return append([]Device{gpu}, migDevices(h, gpu, information["Device Minor"])...), nil
}

// nvidiaOffer returns an error for a partitioned GPU, and for a GPU that the driver ignores because of its configuration.
func nvidiaOffer(h *Host, d Device) error {
	information, _, err := nvidiaInformation(h, path.Base(d.SysPath))
	switch {
	case err != nil:
		return err
	case information["GPU Excluded"] == "Yes":
		return excludedf("the driver excludes the GPU (NVreg_ExcludedGpus)")
	case d.Part != "":
		return nil
	}
	return migOffer(h, information["Device Minor"])
}

func (r *recipe) addNVIDIA(d Device) {
	information, uuid, err := nvidiaInformation(r.Host, path.Base(d.SysPath))
	r.fail(err)
	own := "nvidia" + information["Device Minor"]
	if !sysfs.IsNumbered(own, "nvidia") {
		r.fail(incompletef("driver nvidia does not report the device minor"))
	}
	if r.err != nil {
		return
	}
	r.Env = map[string]string{"NVIDIA_VISIBLE_DEVICES": uuid}
	for _, name := range []string{own, "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"} {
		if r.add("/dev/" + name); r.err != nil {
			r.err = fmt.Errorf("%w; nvidia-modprobe -u -c 0 creates it", r.err)
			return
		}
	}
	if d.Part != "" {
		r.addMIG(information["Device Minor"], d.Part)
	} else { // only graphics programs need this node
		r.addOptional("/dev/nvidia-modeset")
	}
}
