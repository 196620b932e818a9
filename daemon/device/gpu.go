// SPDX-License-Identifier: Apache-2.0

package device

// This file handles GPUs and other PCI accelerators with the drivers nvidia, amdgpu, i915 and xe, and the drivers in the
// accel subsystem.
//
// Follows: Documentation/gpu/drm-uapi.rst; Documentation/accel/introduction.rst;
// Documentation/ABI/testing/sysfs-bus-pci; include/linux/pci_ids.h (base class 0x03, class 0x1200).
//
// Identity: an ID that the hardware reports, either NVIDIA's UUID (gpu_nvidia.go) or AMD's unique_id. It stays the same
// when the card moves to another slot. A GPU without such an ID (Intel, AMD's consumer cards, accelerators) is identified
// by its PCI address, which belongs to the slot. Node numbers are never used, because DRM assigns the lowest free minor to
// a new device (drm_minor_alloc).
//
// Parts: a partitioned GPU is offered as its parts instead of as a whole, because the parts use the memory of the whole
// GPU. Parts are MIG devices (gpu_mig.go), AMD's partitions (gpu_amd.go) and virtual functions, which are separate PCI
// functions.
//
// Health: a driver is bound, Gaudi's driver reports the card as operational, and the checks in pci_health.go succeed. Marks
// record faults that a driver reports only once (gpu_health.go, gpu_xid.go). The mark for DRM's WEDGED lasts until the
// driver reports "none" or is bound again. The marks for ERROR and RESET from i915 last until ERROR=0. The mark for a
// failed amdgpu reset lasts until a reset succeeds. The mark for an NVIDIA Xid lasts until the driver reports the recovery
// action None (Xid 154) or is bound again.
//
// Nodes: the driver's nodes below the function, which are /dev/dri/card*, /dev/dri/renderD* and /dev/accel/accel*.
// /dev/accel/accel_controlD*, which controls Gaudi, is never added. gpu_nvidia.go and gpu_amd.go add more.
//
// Reset: not automatic, because the drivers of NVIDIA, AMD and Intel do not survive a reset of the PCI function. The method
// "pci" takes 0.1 s and is for drivers that survive it (daemon/reset/pci.go, resetSafeDrivers).
//
// Needs: sysfs and, for NVIDIA, /proc/driver/nvidia. The class needs no ioctl or capability, and does not open device
// nodes.

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
)

// GPU is the class of graphics processors and accelerators. Each PCI function, or each part of a partitioned GPU, is a
// device.
var GPU = Class{
	Name: GPUName,
	Doc:  "GPUs and processing accelerators (NVIDIA, AMD, Intel, and the subsystem accel)",
	Match: []udev.Match{
		{Subsystem: "pci", Properties: map[string]string{"PCI_CLASS": "3????"}},
		// FPGA cards also have this PCI class (xocl, dfl-pci). The vendor or the driver shows whether a device is an
		// accelerator.
		{Subsystem: "pci", Properties: map[string]string{"PCI_CLASS": "1200??", "PCI_ID": "1002:*|10DE:*|1DA3:*"}},
		{Subsystem: "pci", Properties: map[string]string{"DRIVER": "intel_vpu|habanalabs|qaic|amdxdna"}},
	},
	// The nodes of NVIDIA's modules have no device in sysfs and cause no event. The closest kernel event is the one for the
	// module.
	Wakes: []udev.Match{
		{Subsystem: "module", Properties: map[string]string{"DEVPATH": "/module/nvidia*"}},
		// In sysfs, the nodes of AMD's partitions are not below the PCI function.
		{Subsystem: "drm", Properties: map[string]string{"DEVPATH": "/devices/platform/amdgpu_xcp*"}},
	},
	Every: slowCheck,
	DevNodes: []string{
		"/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
		"/dev/nvidia-caps/nvidia-cap[0-9]*",
		"/dev/kfd", "/dev/dri/card[0-9]*", "/dev/dri/renderD[0-9]*", "/dev/accel/accel[0-9]*",
	},
	Identify: gpuIdentify,
	Offer:    gpuOffer,
	Health:   gpuHealth,
	Notice:   gpuNotice,
	Target:   functionTarget,
	Allocate: gpuAllocate,
}

// Vendor IDs of PCI functions, as in PCI_ID.
const (
	vendorNVIDIA = "10DE"
	vendorAMD    = "1002"
)

// Drivers and vendors of displays in virtual machines and management controllers. Such displays cannot compute, but have
// the same PCI class as GPUs. virtio-gpu has class 0x0380, like data-centre GPUs, and also has a render node.
const (
	displayDrivers = "bochs-drm|bochs|virtio-pci|virtio_gpu|ast|mgag200|hibmc-drm|simpledrm|simple-framebuffer|cirrus|cirrus-qemu|qxl|" +
		"vmwgfx|hyperv_drm"
	displayVendors = "1234|1AF4|1B36|1A03|102B|15AD|1414" // QEMU, virtio, Red Hat, ASPEED, Matrox, VMware, Hyper-V
)

func gpuIdentify(h *Host, u udev.Device) ([]Device, error) {
	d := Device{Model: u.Properties.Value("ID_MODEL_FROM_DATABASE"), NUMANode: h.NUMANode(u.SysPath)}
	address, driver := path.Base(u.SysPath), h.Link(u.SysPath, "driver")
	switch vendor := pciVendor(u); {
	case strings.Contains(driver, "vfio"):
		return nil, excludedf("bound to %s: offer /dev/vfio/%s with class node", driver, h.Link(u.SysPath, "iommu_group"))
	case driver == "nvidia":
		return nvidiaDevices(h, d, address)
	case driver == "amdgpu":
		return amdDevices(h, d, u.SysPath)
	case driver == "" && vendor == vendorNVIDIA:
		return nil, incompletef("no driver is bound, so its UUID is unknown: load the nvidia module")
	case driver == "" && vendor == vendorAMD:
		return nil, incompletef("no driver is bound, so its unique_id is unknown: load the amdgpu module")
	}
	d.ID = MakeID("gpu", address)
	return []Device{d}, nil
}

func gpuOffer(h *Host, d Device) error {
	driver, vendor := h.Link(d.SysPath, "driver"), pciVendor(*d.Udev)
	switch {
	case udev.Glob(displayDrivers, driver):
		return byNamef("a display adapter with driver %s, not a GPU", driver)
	case udev.Glob(displayVendors, vendor):
		return byNamef("a display adapter from vendor %s, not a GPU", vendor)
	}
	if n := h.Uint(d.SysPath, "sriov_numvfs"); n > 0 { // sriov_numvfs_show
		return excludedf("divided into %d virtual functions, which are offered instead", n)
	}
	switch driver {
	case "nvidia":
		return nvidiaOffer(h, d)
	case "amdgpu":
		if err := amdOffer(h, d); err != nil {
			return err
		}
	}
	// The display that the firmware uses may have a driver that cannot render. Such a display is only for the console.
	boot, err := h.Attr(d.SysPath, "boot_vga")
	if err == nil && boot == "1" && len(drmNames(h, d.SysPath, "renderD")) == 0 {
		return byNamef("the console display (boot_vga), without a render node")
	}
	return nil
}

func gpuHealth(h *Host, d Device) error {
	switch h.Link(d.SysPath, "driver") {
	case "":
		return errors.New("no driver is bound")
	case "habanalabs":
		return habanaHealth(h, d.SysPath)
	case "amdgpu":
		return amdHealth(h, d.SysPath)
	}
	return nil
}

// habanaHealth reads the status of a card from Gaudi's driver, such as "operational", "in reset" or "disabled" (status
// in Documentation/ABI/testing/sysfs-driver-habanalabs, hl_device_status).
func habanaHealth(h *Host, sysPath string) error {
	status, err := h.Attr(sysPath, "status")
	switch {
	case errors.Is(err, ErrGone), err == nil && strings.EqualFold(status, "operational"):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("driver habanalabs: status is %q", status)
}

func gpuAllocate(r *recipe, d Device) {
	switch r.Link(d.SysPath, "driver") {
	case "nvidia":
		r.addNVIDIA(d)
	case "amdgpu":
		r.addAMD(d)
	default:
		r.addFunction(d.SysPath)
	}
}

// addFunction adds the nodes that the driver has created below the PCI function.
func (r *recipe) addFunction(function string) {
	cards, renders := drmNames(r.Host, function, "card"), drmNames(r.Host, function, "renderD")
	if len(renders) > 0 && len(cards) == 0 {
		r.fail(incompletef("its card node is missing")) // drm_dev_register creates the render node first
	}
	r.addDRM(function, renders...)
	r.addDRM(function, cards...)
	for _, name := range r.Names(function + "/accel") {
		if sysfs.Numbered(name, "accel") { // accel_controlD* of Habana controls the card
			r.add("/dev/accel/" + name)
		}
	}
	if len(r.Nodes) == 0 {
		r.fail(incompletef("its driver has created no node"))
	}
}

// drmNames returns the names of a PCI function's DRM devices. It returns only names that consist of prefix and a number. The
// prefixes "card" and "renderD" select devices with a node, and omit connectors. With virtio_gpu, the DRM devices are one
// directory deeper (virtio_gpu_probe).
func drmNames(h *Host, sysPath, prefix string) []string {
	directories := []string{sysPath + "/drm"}
	for _, name := range h.Names(sysPath) {
		if sysfs.Numbered(name, "virtio") {
			directories = append(directories, sysPath+"/"+name+"/drm")
		}
	}
	var names []string
	for _, directory := range directories {
		for _, name := range h.Names(directory) {
			if sysfs.Numbered(name, prefix) {
				names = append(names, name)
			}
		}
	}
	return names
}
