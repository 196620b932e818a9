// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"errors"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
)

func TestGPU(t *testing.T) {
	named := func(key, value string) []device.Rule {
		return []device.Rule{{Resource: "test/gpu", Class: &device.GPU, Match: map[string]string{key: value}}}
	}
	testSights(t, []sight{
		{name: "AMD", recording: "gpu-amd", want: `
			gpu-4b1a2c3d5e6f7081 "Aqua Vanjaram [Instinct MI300X]" numa1
			  /dev/dri/renderD128 = /dev/dri/by-path/pci-0000:05:00.0-render
			  /dev/dri/card1 = /dev/dri/by-path/pci-0000:05:00.0-card
			  /dev/kfd`},
		{name: "AMD with an empty unique_id", recording: "gpu-amd", edits: []string{`unique_id=4b1a2c3d5e6f7081\n`, "unique_id="}, want: `
			gpu-0000:05:00.0 "Aqua Vanjaram [Instinct MI300X]" numa1
			  /dev/dri/renderD128 = /dev/dri/by-path/pci-0000:05:00.0-render
			  /dev/dri/card1 = /dev/dri/by-path/pci-0000:05:00.0-card
			  /dev/kfd`},
		{name: "AMD whose unique_id may still come", recording: "gpu-amd", edits: []string{
			"A: unique_id=4b1a2c3d5e6f7081\\n\n", "", "drm/renderD128", "drm/other",
		}, want: `
			(0000:05:00.0)
			  held back: not complete: driver amdgpu has not created the device nodes yet`},
		{name: "AMD without a driver", recording: "gpu-amd", edits: []string{"L: driver=../../../../bus/pci/drivers/amdgpu\n", ""}, want: `
			(0000:05:00.0)
			  held back: not complete: no driver is bound, so the GPU's unique_id is unknown: load the amdgpu module`},
		{name: "AMD half registered", recording: "gpu-amd", edits: []string{"drm/card1", "drm/other"}, want: `
			gpu-4b1a2c3d5e6f7081 "Aqua Vanjaram [Instinct MI300X]" numa1
			  held back: not complete: the card node of the GPU is missing`},
		{name: "AMD without a compute driver", recording: "gpu-amd", edits: []string{"N: kfd", "N: other"}, want: `
			gpu-4b1a2c3d5e6f7081 "Aqua Vanjaram [Instinct MI300X]" numa1
			  /dev/dri/renderD128 = /dev/dri/by-path/pci-0000:05:00.0-render
			  /dev/dri/card1 = /dev/dri/by-path/pci-0000:05:00.0-card`},
		{name: "off the bus", recording: "gpu-amd", edits: []string{"config=0210a174", "config=ffffffff"}, want: `
			gpu-4b1a2c3d5e6f7081 "Aqua Vanjaram [Instinct MI300X]" numa1
			  sick: the PCI configuration space does not answer: the device has fallen off the bus
			  /dev/dri/renderD128 = /dev/dri/by-path/pci-0000:05:00.0-render
			  /dev/dri/card1 = /dev/dri/by-path/pci-0000:05:00.0-card
			  /dev/kfd`},
		{name: "Intel, the console too", recording: "gpu-intel", want: `
			gpu-0000:00:02.0 "Alder Lake-P GT2 [Iris Xe Graphics]"
			  /dev/dri/renderD128 = /dev/dri/by-path/pci-0000:00:02.0-render
			  /dev/dri/card0 = /dev/dri/by-path/pci-0000:00:02.0-card`},
		{name: "Intel without a driver", recording: "gpu-intel", edits: []string{
			"L: driver=../../../bus/pci/drivers/i915\n", "", "/drm/", "/other/",
		}, want: `
			gpu-0000:00:02.0 "Alder Lake-P GT2 [Iris Xe Graphics]"
			  held back: offered only if a rule names it: the console display (boot_vga), without a render node
			  sick: no driver is bound`},
		{name: "the console without a render node", recording: "gpu-intel", edits: []string{"drm/renderD128", "drm/other"}, want: `
			gpu-0000:00:02.0 "Alder Lake-P GT2 [Iris Xe Graphics]"
			  held back: offered only if a rule names it: the console display (boot_vga), without a render node
			  /dev/dri/card0 = /dev/dri/by-path/pci-0000:00:02.0-card`},
		{name: "AMD, the console without a render node", recording: "gpu-amd", edits: []string{
			"A: numa_node=1", "A: boot_vga=1\\n\nA: numa_node=1", "drm/renderD128", "drm/other",
		}, want: `
			gpu-4b1a2c3d5e6f7081 "Aqua Vanjaram [Instinct MI300X]" numa1
			  held back: offered only if a rule names it: the console display (boot_vga), without a render node
			  /dev/dri/card1 = /dev/dri/by-path/pci-0000:05:00.0-card
			  /dev/kfd`},
		{name: "a node that udev has not made yet", recording: "gpu-intel", edits: []string{"N: dri/renderD128", "N: dri/other"}, want: `
			gpu-0000:00:02.0 "Alder Lake-P GT2 [Iris Xe Graphics]"
			  held back: not complete: /dev/dri/renderD128 is missing`},
		{name: "accelerators", recording: "gpu-accel", want: `
			gpu-0000:00:0b.0 "Meteor Lake NPU"
			  /dev/accel/accel0
			gpu-0000:81:00.0 "HL-2000 AI Training Accelerator [Gaudi2]" numa1
			  /dev/accel/accel1`},
		{name: "asleep, so not asked", recording: "gpu-accel", edits: []string{"config=86801d7d", "config=ffffffff"}, want: `
			gpu-0000:00:0b.0 "Meteor Lake NPU"
			  /dev/accel/accel0
			gpu-0000:81:00.0 "HL-2000 AI Training Accelerator [Gaudi2]" numa1
			  /dev/accel/accel1`},
		{name: "an accelerator that works", recording: "gpu-accel", edits: []string{
			"A: numa_node=1\\n", "A: numa_node=1\\n\nA: status=operational\\n",
		}, want: `
			gpu-0000:00:0b.0 "Meteor Lake NPU"
			  /dev/accel/accel0
			gpu-0000:81:00.0 "HL-2000 AI Training Accelerator [Gaudi2]" numa1
			  /dev/accel/accel1`},
		{name: "an accelerator that its driver has disabled", recording: "gpu-accel", edits: []string{
			"A: numa_node=1\\n", "A: numa_node=1\\n\nA: status=disabled\\n",
		}, want: `
			gpu-0000:00:0b.0 "Meteor Lake NPU"
			  /dev/accel/accel0
			gpu-0000:81:00.0 "HL-2000 AI Training Accelerator [Gaudi2]" numa1
			  sick: driver habanalabs: status is "disabled"
			  /dev/accel/accel1`},
		{name: "an accelerator without its node yet", recording: "gpu-accel", edits: []string{"accel/accel1", "accel/other1"}, want: `
			gpu-0000:00:0b.0 "Meteor Lake NPU"
			  /dev/accel/accel0
			gpu-0000:81:00.0 "HL-2000 AI Training Accelerator [Gaudi2]" numa1
			  held back: not complete: the driver has created no device node`},
		{name: "displays of a virtual machine", recording: "gpu-virtual", want: `
			gpu-0000:00:01.0
			  held back: offered only if a rule names it: a display adapter with driver bochs-drm, not a GPU
			  /dev/dri/card0 = /dev/dri/by-path/pci-0000:00:01.0-card
			gpu-0000:00:04.0
			  held back: offered only if a rule names it: a display adapter with driver virtio-pci, not a GPU
			  /dev/dri/renderD128 = /dev/dri/by-path/pci-0000:00:04.0-render
			  /dev/dri/card1 = /dev/dri/by-path/pci-0000:00:04.0-card`},
		{name: "a display by its driver", recording: "gpu-virtual", rules: named("DRIVER", "virtio-pci"), want: `
			gpu-0000:00:01.0
			  held back: offered only if a rule names it: a display adapter with driver bochs-drm, not a GPU
			gpu-0000:00:04.0
			  /dev/dri/renderD128 = /dev/dri/by-path/pci-0000:00:04.0-render
			  /dev/dri/card1 = /dev/dri/by-path/pci-0000:00:04.0-card`},
		{name: "a display by its slot", recording: "gpu-virtual", rules: named("PCI_SLOT_NAME", "0000:00:01.0"), want: `
			gpu-0000:00:01.0
			  /dev/dri/card0 = /dev/dri/by-path/pci-0000:00:01.0-card
			gpu-0000:00:04.0
			  held back: offered only if a rule names it: a display adapter with driver virtio-pci, not a GPU`},
		{name: "a display by a pattern", recording: "gpu-virtual", rules: named("DRIVER", "bochs*"), want: `
			gpu-0000:00:01.0
			  held back: offered only if a rule names it: a display adapter with driver bochs-drm, not a GPU
			  /dev/dri/card0 = /dev/dri/by-path/pci-0000:00:01.0-card
			gpu-0000:00:04.0
			  held back: offered only if a rule names it: a display adapter with driver virtio-pci, not a GPU`},
		{name: "a display without a driver", recording: "gpu-virtual", edits: []string{"L: driver=../../../bus/pci/drivers/bochs-drm\n", ""}, want: `
			gpu-0000:00:01.0
			  held back: offered only if a rule names it: a display adapter from vendor 1234, not a GPU
			  sick: no driver is bound
			  /dev/dri/card0 = /dev/dri/by-path/pci-0000:00:01.0-card
			gpu-0000:00:04.0
			  held back: offered only if a rule names it: a display adapter with driver virtio-pci, not a GPU
			  /dev/dri/renderD128 = /dev/dri/by-path/pci-0000:00:04.0-render
			  /dev/dri/card1 = /dev/dri/by-path/pci-0000:00:04.0-card`},
		{name: "no rule takes it", recording: "gpu-intel", rules: named("DRIVER", "xe"), want: `
			gpu-0000:00:02.0 "Alder Lake-P GT2 [Iris Xe Graphics]"
			  held back: no resource matches the device: test/gpu: DRIVER is "i915", not "xe"`},
		{name: "AMD in a reset", recording: "gpu-amd", edits: []string{`unique_id=4b1a2c3d5e6f7081\n`, "unique_id/x="}, want: `
			(0000:05:00.0)
			  held back: not complete: the unique_id of the GPU cannot be read at present: read /sys/devices/pci0000:00/0000:00:01.1/0000:05:00.0/unique_id: is a directory`},
		{name: "given to a virtual machine", recording: "node-virtual", want: `
			(0000:41:00.0)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/37 with class node`},
	})
}

func TestNVIDIA(t *testing.T) {
	const itself = `GPU-5c1f9a0e-7d34-4b7e-9a51-0f3e2d1c4b6a "NVIDIA H100 80GB HBM3" numa0`
	const unknown = "(0000:18:00.0)\n  held back: not complete: "
	const complete = itself + `
			  /dev/nvidia3
			  /dev/nvidiactl
			  /dev/nvidia-uvm
			  /dev/nvidia-uvm-tools`
	const env = `
			  NVIDIA_VISIBLE_DEVICES=GPU-5c1f9a0e-7d34-4b7e-9a51-0f3e2d1c4b6a`
	const uuidLine = `GPU UUID: \t GPU-5c1f9a0e-7d34-4b7e-9a51-0f3e2d1c4b6a\n`
	testSights(t, []sight{
		{name: "complete", recording: "gpu-nvidia", want: complete + env},
		{name: "with graphics", recording: "gpu-nvidia", edits: []string{
			"F: /dev/nvidiactl=", "F: /dev/nvidiactl=\nF: /dev/nvidia-modeset=",
		}, want: complete + "\n  /dev/nvidia-modeset" + env},
		{name: "without nvidia-uvm", recording: "gpu-nvidia", edits: []string{"F: /dev/nvidia-uvm=\n", ""}, want: itself +
			"\n  held back: not complete: /dev/nvidia-uvm is missing; nvidia-modprobe -u -c 0 creates it"},
		{name: "without nvidia-uvm-tools", recording: "gpu-nvidia", edits: []string{"F: /dev/nvidia-uvm-tools=\n", ""}, want: itself +
			"\n  held back: not complete: /dev/nvidia-uvm-tools is missing; nvidia-modprobe -u -c 0 creates it"},
		{name: "without its own node", recording: "gpu-nvidia", edits: []string{"F: /dev/nvidia3=", "F: /dev/nvidia0="}, want: itself +
			"\n  held back: not complete: /dev/nvidia3 is missing; nvidia-modprobe -u -c 0 creates it"},
		{name: "without a UUID", recording: "gpu-nvidia", edits: []string{uuidLine, ""}, want: unknown +
			"the driver reports no UUID before the first use of the GPU: start nvidia-persistenced, or run nvidia-smi once"},
		{name: "with a UUID of question marks", recording: "gpu-nvidia", edits: []string{
			"GPU-5c1f9a0e-7d34-4b7e-9a51-0f3e2d1c4b6a", "GPU-????????-????-????-????-????????????",
		}, want: unknown + "the driver reports no UUID before the first use of the GPU: start nvidia-persistenced, or run nvidia-smi once"},
		{name: "unknown to its driver", recording: "gpu-nvidia", edits: []string{"gpus/0000:18:00.0", "gpus/0000:19:00.0"}, want: unknown +
			"the nvidia driver does not know this GPU yet"},
		{name: "without a minor", recording: "gpu-nvidia", edits: []string{`Device Minor: \t 3\n`, ""}, want: itself +
			"\n  held back: not complete: driver nvidia does not report the device minor"},
		{name: "without a driver", recording: "gpu-nvidia", edits: []string{"L: driver=../../../../bus/pci/drivers/nvidia\n", ""}, want: unknown +
			"no driver is bound, so the GPU's UUID is unknown: load the nvidia module"},
		{name: "excluded by its driver", recording: "gpu-nvidia", edits: []string{`GPU Excluded:\t No`, `GPU Excluded:\t Yes`}, want: itself +
			"\n  held back: not for containers: the driver excludes the GPU (NVreg_ExcludedGpus)" +
			"\n  /dev/nvidia3\n  /dev/nvidiactl\n  /dev/nvidia-uvm\n  /dev/nvidia-uvm-tools" + env},
	})
}

// A rule for all GPUs never offers a display adapter. A display without hardware is not even listed.
func TestDisplays(t *testing.T) {
	h, devices := loadMachine(t, "gpu-displays")
	got := make(map[string]error)
	for _, s := range inspectAll(h, everything, devices) {
		got[s.Device.ID] = s.Offer
	}
	drivers := map[string]string{
		"gpu-0000:01:00.0": "ast", "gpu-0000:02:00.0": "mgag200", "gpu-0000:03:00.0": "cirrus-qemu", "gpu-0000:04:00.0": "qxl",
		"gpu-0000:05:00.0": "vmwgfx", "gpu-0000:06:00.0": "hyperv_drm", "gpu-0000:07:00.0": "bochs-drm", "gpu-0000:08:00.0": "virtio-pci",
		"gpu-0000:09:00.0": "hibmc-drm",
	}
	for id, driver := range drivers {
		want := "offered only if a rule names it: a display adapter with driver " + driver + ", not a GPU"
		if err := got[id]; err == nil || err.Error() != want || !errors.Is(err, device.ErrByName) {
			t.Errorf("%s: %v, want %s", id, err, want)
		}
		rules := []device.Rule{{Resource: "test/gpu", Class: &device.GPU, Match: map[string]string{"DRIVER": driver}}}
		for _, s := range inspectAll(h, rules, devices) {
			if (s.Offer == nil) != (s.Device.ID == id) {
				t.Errorf("by name, %s: %s is offered or not: %v", driver, s.Device.ID, s.Offer)
			}
		}
	}
	if len(got) != len(drivers) {
		t.Errorf("saw %d displays, want %d: %v", len(got), len(drivers), got)
	}
}

// A function with virtual functions is not offered together with them. They vanish together with the function.
func TestVirtualFunctions(t *testing.T) {
	const divided = `gpu-0000:3a:00.0 "Data Center GPU Flex 170" numa0
			  held back: not for containers: divided into 2 virtual functions, which are offered instead`
	const nodes = `
			  /dev/dri/renderD128 = /dev/dri/by-path/pci-0000:3a:00.0-render
			  /dev/dri/card1 = /dev/dri/by-path/pci-0000:3a:00.0-card`
	const part = `
			gpu-0000:3a:00.1 "Data Center GPU Flex 170" numa0`
	const partNodes = `
			  /dev/dri/renderD129 = /dev/dri/by-path/pci-0000:3a:00.1-render
			  /dev/dri/card2 = /dev/dri/by-path/pci-0000:3a:00.1-card`
	const guest = `
			(0000:3a:00.2)
			  held back: not for containers: bound to vfio-pci: offer /dev/vfio/42 with class node`
	const silent = "the PCI configuration space does not answer: the device has fallen off the bus"
	named := []device.Rule{{Resource: "test/gpu", Class: &device.GPU, Match: map[string]string{"DRIVER": "xe", "PCI_SLOT_NAME": "0000:3a:00.0"}}}
	testSights(t, []sight{
		{name: "divided", recording: "gpu-sriov", want: divided + nodes + part + partNodes + guest},
		{name: "divided, whatever a rule says", recording: "gpu-sriov", rules: named, want: divided + nodes + part +
			"\n  held back: no resource matches the device: test/gpu: PCI_SLOT_NAME is \"0000:3a:00.1\", not \"0000:3a:00.0\"" + guest},
		{name: "not divided", recording: "gpu-sriov", edits: []string{"sriov_numvfs=2", "sriov_numvfs=0"}, want: `
			gpu-0000:3a:00.0 "Data Center GPU Flex 170" numa0` + nodes + part + partNodes + guest},
		{name: "off the bus", recording: "gpu-sriov", edits: []string{"config=8680c056", "config=ffffffff"}, want: divided + "\n  sick: " + silent + nodes +
			part + "\n  sick: physical function 0000:3a:00.0: " + silent + partNodes + guest},
		{name: "a part off the bus", recording: "gpu-sriov", edits: []string{"config=ffffffff06041000", "config=ffffffffffffffff"}, want: divided + nodes +
			part + "\n  sick: " + silent + partNodes + guest},
	})
}
