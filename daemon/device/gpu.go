// SPDX-License-Identifier: Apache-2.0

package device

// This file handles GPUs and other PCI accelerators. The class supports the drivers nvidia, amdgpu, i915 and xe, and the drivers
// in the accel subsystem.
//
// Follows: Documentation/gpu/drm-uapi.rst; Documentation/accel/introduction.rst;
// Documentation/ABI/testing/sysfs-bus-pci; include/linux/pci_ids.h (base class 0x03, class 0x1200).
//
// Identity: an ID that the hardware reports, either NVIDIA's UUID (gpu_nvidia.go) or AMD's unique_id. The ID stays the same when
// the card moves to another slot. A GPU that reports no ID (Intel, AMD's consumer cards, accelerators) is identified by its PCI
// address, which belongs to the slot. A node's number is never part of the identity, because DRM assigns the lowest free minor to
// a new device (drm_minor_alloc).
//
// Parts: metalplug does not offer a partitioned GPU as a whole, because its parts use its memory. metalplug offers each part
// instead. Parts are MIG devices (gpu_mig.go), AMD's partitions (gpu_amd.go) and virtual functions, which are separate PCI
// functions.
//
// Health: a driver must be bound, and the checks in pci.go must succeed. The Gaudi driver must also report that the card is
// operational. Marks record faults that a driver reports only once (gpu_health.go). DRM reports WEDGED, and the resulting mark
// lasts until the driver reports WEDGED=none or is bound again. i915 reports ERROR and RESET, and the resulting marks last until
// the driver reports ERROR=0. A mark for a failed reset of an amdgpu device lasts until a reset succeeds. A mark for an NVIDIA
// Xid lasts until the driver reports the recovery action None (Xid 154) or is bound again.
//
// Nodes: a container gets the nodes that the driver creates below the PCI function, which are /dev/dri/card*, /dev/dri/renderD*
// and /dev/accel/accel*. A container never gets /dev/accel/accel_controlD*, which controls a Gaudi card. gpu_nvidia.go and
// gpu_amd.go add other nodes.
//
// Reset: metalplug does not reset a GPU automatically, because the NVIDIA, AMD and Intel drivers would stop working after a reset
// of the PCI function. The reset method "pci" is for drivers that survive such a reset (daemon/reset/pci.go, resetSafeDrivers). A
// reset of the PCI function takes 0.1 s.
//
// Needs: sysfs and, for NVIDIA, /proc/driver/nvidia. The class needs no ioctl or capability, and does not open device
// nodes.

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// GPU is the class of graphics processors and accelerators. A device is a PCI function, or a part of a partitioned GPU.
var GPU = Class{
	Name: GPUName,
	Doc:  "GPUs and processing accelerators (NVIDIA, AMD, Intel, and the subsystem accel)",
	Match: []udev.Match{
		{Subsystem: "pci", Properties: map[string]string{"PCI_CLASS": "3????"}},
		// FPGA cards also have this PCI class (xocl, dfl-pci). Only the vendor or the driver shows whether such a device is an
		// accelerator.
		{Subsystem: "pci", Properties: map[string]string{"PCI_CLASS": "1200??", "PCI_ID": "1002:*|10DE:*|1DA3:*"}},
		{Subsystem: "pci", Properties: map[string]string{"DRIVER": "intel_vpu|habanalabs|qaic|amdxdna"}},
	},
	// NVIDIA's modules create nodes without a device in sysfs, so these nodes cause no event. The module's event triggers the
	// inspection instead.
	Wakes: []udev.Match{
		{Subsystem: "module", Properties: map[string]string{"DEVPATH": "/module/nvidia*"}},
		// The nodes of AMD's partitions are listed here, because they are not below the PCI function in sysfs.
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
	Warning:  amdWarning,
	Notice:   gpuNotice,
	Target:   functionTarget,
	Allocate: gpuAllocate,
}

// Vendor IDs of PCI functions, as in PCI_ID.
const (
	vendorNVIDIA = "10DE"
	vendorAMD    = "1002"
)

// Drivers and vendors of display adapters in virtual machines and management controllers, which have the same PCI class as a GPU
// but cannot compute. virtio-gpu even has a render node, and has the class 0x0380 like data-centre GPUs.
const (
	displayDrivers = "bochs-drm|bochs|virtio-pci|virtio_gpu|ast|mgag200|hibmc-drm|simpledrm|simple-framebuffer|cirrus|cirrus-qemu|qxl|" +
		"vmwgfx|hyperv_drm"
	displayVendors = "1234|1AF4|1B36|1A03|102B|15AD|1414" // QEMU, virtio, Red Hat, ASPEED, Matrox, VMware, Hyper-V
)

func gpuIdentify(h *Host, u udev.Device) ([]Device, error) {
	d := Device{Model: u.Properties.Value("ID_MODEL_FROM_DATABASE")}
	address, driver := path.Base(u.SysPath), h.Link(u.SysPath, "driver")
	switch vendor := pciVendor(u); {
	case strings.Contains(driver, "vfio"):
		return nil, excludedf("bound to %s: offer /dev/vfio/%s with class node", driver, h.Link(u.SysPath, "iommu_group"))
	case driver == "nvidia":
		return nvidiaDevices(h, d, address)
	case driver == "amdgpu":
		return amdDevices(h, d, u.SysPath)
	case driver == "" && vendor == vendorNVIDIA:
		return nil, incompletef("no driver is bound, so the GPU's UUID is unknown: load the nvidia module")
	case driver == "" && vendor == vendorAMD:
		return nil, incompletef("no driver is bound, so the GPU's unique_id is unknown: load the amdgpu module")
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
	// The display adapter that the firmware used at boot may have a driver that cannot render, so that the adapter serves only the
	// console.
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
	}
	return nil
}

// habanaHealth reads a card's status from the Gaudi driver, such as "operational", "in reset" or "disabled" (status in
// Documentation/ABI/testing/sysfs-driver-habanalabs, hl_device_status).
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

// addFunction adds the nodes that the driver has created below a PCI function.
func (r *recipe) addFunction(function string) {
	cards, renders := drmNames(r.Host, function, "card"), drmNames(r.Host, function, "renderD")
	if len(renders) > 0 && len(cards) == 0 {
		r.fail(incompletef("the card node of the GPU is missing")) // drm_dev_register creates the render node first
	}
	r.addDRM(function, renders...)
	r.addDRM(function, cards...)
	for _, name := range r.Numbered(function+"/accel", "accel") { // Habana's accel_controlD* controls the card
		r.add("/dev/accel/" + name)
	}
	if len(r.Nodes) == 0 {
		r.fail(incompletef("the driver has created no device node"))
	}
}

// drmNames returns the names of the DRM devices below a PCI function that consist of the given prefix and a number. The prefixes
// "card" and "renderD" select only devices that have a node. A connector has no node. With virtio_gpu, the DRM devices are one
// directory deeper (virtio_gpu_probe).
func drmNames(h *Host, sysPath, prefix string) []string {
	directories := []string{sysPath + "/drm"}
	for _, name := range h.Numbered(sysPath, "virtio") {
		directories = append(directories, sysPath+"/"+name+"/drm")
	}
	var names []string
	for _, directory := range directories {
		names = append(names, h.Numbered(directory, prefix)...)
	}
	return names
}
