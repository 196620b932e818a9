// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"maps"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
)

func TestMIG(t *testing.T) {
	const uuid, model = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77", `"NVIDIA A100-SXM4-40GB`
	const driver = "\n  /dev/nvidia1\n  /dev/nvidiactl\n  /dev/nvidia-uvm\n  /dev/nvidia-uvm-tools"
	const env = "\n  NVIDIA_VISIBLE_DEVICES=" + uuid + "\n"
	const divided = "\n  held back: not for containers: divided into MIG devices, which are offered instead"
	const whole = uuid + " " + model + `" numa0`
	const wholeNodes = driver + "\n  /dev/nvidia-modeset" + env
	part := func(gi, ci, findings, nodes string) string {
		head := "MIG-" + uuid + "-gi" + gi + "-ci" + ci + " " + model + ", MIG gi" + gi + "/ci" + ci + `" numa0` + findings
		if nodes == "" {
			return head + "\n"
		}
		return head + driver + nodes + env
	}
	const first = "\n  /dev/nvidia-caps/nvidia-cap147\n  /dev/nvidia-caps/nvidia-cap148"
	const second = "\n  /dev/nvidia-caps/nvidia-cap156\n  /dev/nvidia-caps/nvidia-cap157"
	const third = "\n  /dev/nvidia-caps/nvidia-cap156\n  /dev/nvidia-caps/nvidia-cap158"
	const other = `GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f "NVIDIA A100-SXM4-40GB" numa0
			  /dev/nvidia0
			  /dev/nvidiactl
			  /dev/nvidia-uvm
			  /dev/nvidia-uvm-tools
			  /dev/nvidia-modeset
			  NVIDIA_VISIBLE_DEVICES=GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f`
	parts := func(findings string) string {
		return part("1", "0", findings, first) + part("2", "0", findings, second) + part("2", "1", findings, third)
	}
	const sick = "\n  sick: the PCI configuration space does not answer: the device has fallen off the bus"
	const going = "\n  held back: not complete: the capability of the MIG device is unknown: " +
		"read /proc/driver/nvidia/capabilities/gpu1/mig/gi2/access: gone: no such file or directory"
	const capability = `F: /proc/driver/nvidia/capabilities/gpu1/mig/`
	const secondGI = capability + `gi2/access=DeviceFileMinor: 156\nDeviceFileMode: 292\nDeviceFileModify: 1\n` + "\n"
	testSights(t, []sight{
		{name: "divided", recording: "gpu-nvidia-mig", want: whole + divided + wholeNodes + parts("") + other},
		{name: "off the bus, with all its parts", recording: "gpu-nvidia-mig", edits: []string{
			"config=de10b020\nA: numa_node=0\\n\nL: driver=../../../../bus/pci/drivers/nvidia\n\nP: /devices/pci0000:00/0000:00:03.0",
			"config=ffffffff\nA: numa_node=0\\n\nL: driver=../../../../bus/pci/drivers/nvidia\n\nP: /devices/pci0000:00/0000:00:03.0",
		}, want: whole + divided + sick + wholeNodes + parts(sick) + other},
		{name: "renumbered", recording: "gpu-nvidia-mig", edits: []string{
			`Device Minor: \t 1`, `Device Minor: \t 5`, "capabilities/gpu1/", "capabilities/gpu5/", "F: /dev/nvidia1=", "F: /dev/nvidia5=",
			"nvidia-cap147=", "nvidia-cap687=", "Minor: 147", "Minor: 687", "gi2/", "other/",
		}, want: whole + divided + "\n  /dev/nvidia5\n  /dev/nvidiactl\n  /dev/nvidia-uvm\n  /dev/nvidia-uvm-tools\n  /dev/nvidia-modeset" + env +
			"MIG-" + uuid + "-gi1-ci0 " + model + `, MIG gi1/ci0" numa0` +
			"\n  /dev/nvidia5\n  /dev/nvidiactl\n  /dev/nvidia-uvm\n  /dev/nvidia-uvm-tools" +
			"\n  /dev/nvidia-caps/nvidia-cap687\n  /dev/nvidia-caps/nvidia-cap148" + env + other},
		{name: "without compute instances", recording: "gpu-nvidia-mig", edits: []string{"/ci", "/x"}, want: whole +
			"\n  held back: not for containers: divided into GPU instances without a compute instance: create them with nvidia-smi mig -cci" + wholeNodes + other},
		{name: "the node of an instance is missing", recording: "gpu-nvidia-mig", edits: []string{"F: /dev/nvidia-caps/nvidia-cap158=\n", ""}, want: whole +
			divided + wholeNodes + part("1", "0", "", first) + part("2", "0", "", second) +
			part("2", "1", "\n  held back: not complete: /dev/nvidia-caps/nvidia-cap158 is missing: "+
				"nvidia-modprobe -f /proc/driver/nvidia/capabilities/gpu1/mig/gi2/ci1/access creates it", "") + other},
		{name: "an instance that is going", recording: "gpu-nvidia-mig", edits: []string{secondGI, ""}, want: whole +
			divided + wholeNodes + part("1", "0", "", first) + part("2", "0", going, "") + part("2", "1", going, "") + other},
		{name: "a minor that is none", recording: "gpu-nvidia-mig", edits: []string{"Minor: 148", "Minor: x"}, want: whole +
			divided + wholeNodes + part("1", "0", "\n  held back: not complete: /proc/driver/nvidia/capabilities/gpu1/mig/gi1/ci0/access "+
			"does not report the minor of its node", "") + part("2", "0", "", second) + part("2", "1", "", third) + other},
	})
}

// A resource can be limited to whole GPUs or to MIG devices.
func TestMIGByRule(t *testing.T) {
	h, devices := loadMachine(t, "gpu-nvidia-mig")
	rules := []device.Rule{
		{Resource: "test/small", Class: &device.GPU, Match: map[string]string{"METALPLUG_PART": "gi2/*"}},
		{Resource: "test/gpu", Class: &device.GPU, Match: map[string]string{"PCI_ID": "10de:20b0"}, Exclude: map[string]string{"METALPLUG_PART": "*"}},
		{Resource: "test/mig", Class: &device.GPU, Match: map[string]string{"METALPLUG_PART": "*"}},
	}
	got := make(map[string]string)
	for _, s := range inspectAll(h, rules, devices) {
		if s.Offer == nil {
			got[s.Device.ID] = s.Resource
		}
	}
	const gpu = "MIG-GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
	want := map[string]string{
		gpu + "-gi1-ci0": "test/mig", gpu + "-gi2-ci0": "test/small", gpu + "-gi2-ci1": "test/small",
		"GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f": "test/gpu",
	}
	if !maps.Equal(got, want) {
		t.Errorf("offered %v, want %v", got, want)
	}
}
