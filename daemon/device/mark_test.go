// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// event makes an event from "ACTION SUBSYSTEM" and a sysfs path.
func event(action, subsystem, sysPath string, properties ...string) udev.Event {
	d := udev.Device{Subsystem: subsystem, SysPath: sysPath}
	all := map[string]string{"SUBSYSTEM": subsystem}
	for i := 0; i < len(properties); i += 2 {
		all[properties[i]] = properties[i+1]
	}
	d.Properties = udev.NewProperties(all)
	return udev.Event{Action: action, Device: d}
}

func TestNotice(t *testing.T) {
	const gpu = "/sys/devices/pci0000:00/0000:00:01.1/0000:05:00.0"
	const card = gpu + "/drm/card1"
	const soc = "/sys/devices/platform/soc/fde60000.gpu"
	for _, test := range []struct {
		name  string
		event udev.Event
		want  device.Mark // empty if there is no mark
	}{
		{"add", event("add", "pci", gpu), device.Mark{SysPath: gpu}},
		{"remove", event("remove", "pci", gpu), device.Mark{SysPath: gpu}},
		{"bind", event("bind", "pci", gpu), device.Mark{SysPath: gpu}},
		{"unbind", event("unbind", "pci", gpu), device.Mark{}},
		{"udevadm trigger", event("add", "pci", gpu, "SYNTH_UUID", "0"), device.Mark{}},
		{"udevadm trigger", event("change", "drm", card, "WEDGED", "rebind", "SYNTH_UUID", "0"), device.Mark{}},
		{"change", event("change", "pci", gpu), device.Mark{}},

		{"recovery", event("change", "pci", gpu, "ERROR_EVENT", "BEGIN_RECOVERY", "DEVICE_ONLINE", "0"), device.Mark{
			SysPath: gpu, Source: "recovery", Reason: "the kernel is recovering the device from a PCIe error",
		}},
		{"recovered", event("change", "pci", gpu, "ERROR_EVENT", "SUCCESSFUL_RECOVERY", "DEVICE_ONLINE", "1"), device.Mark{SysPath: gpu, Source: "recovery"}},
		{"not recovered", event("change", "pci", gpu, "ERROR_EVENT", "FAILED_RECOVERY", "DEVICE_ONLINE", "0"), device.Mark{
			SysPath: gpu, Source: "recovery", Reason: "the kernel could not recover the device from a PCIe error: bind the driver again, or replace the device",
		}},
		{"some other", event("change", "pci", gpu, "ERROR_EVENT", "COFFEE"), device.Mark{}},
		{"of no function", event("change", "usb", gpu, "ERROR_EVENT", "FAILED_RECOVERY"), device.Mark{}},

		{"wedged", event("change", "drm", card, "WEDGED", "rebind,bus-reset"), device.Mark{
			SysPath: gpu, Source: "drm", Reason: "the driver has declared the GPU unusable (WEDGED=rebind,bus-reset)",
		}},
		{"wedged, how is not known", event("change", "drm", card, "WEDGED", "unknown"), device.Mark{
			SysPath: gpu, Source: "drm", Reason: "the driver has declared the GPU unusable (WEDGED=unknown)",
		}},
		{"reset by its driver", event("change", "drm", card, "WEDGED", "none"), device.Mark{SysPath: gpu, Source: "drm"}},
		{"wedged without PCI", event("change", "drm", soc+"/drm/card0", "WEDGED", "rebind"), device.Mark{
			SysPath: soc, Source: "drm", Reason: "the driver has declared the GPU unusable (WEDGED=rebind)",
		}},
		{"i915", event("change", "drm", card, "ERROR", "1"), device.Mark{SysPath: gpu, Source: "drm", Reason: "driver i915 has found an error and is resetting the GPU"}},
		{"i915 resets", event("change", "drm", card, "RESET", "1"), device.Mark{SysPath: gpu, Source: "drm", Reason: "driver i915 has found an error and is resetting the GPU"}},
		{"i915 is done", event("change", "drm", card, "ERROR", "0"), device.Mark{SysPath: gpu, Source: "drm"}},
		{"a display plugged in", event("change", "drm", card, "HOTPLUG", "1"), device.Mark{}},

		{"xe", event(udev.Logged, "pci", gpu, "MESSAGE", "xe 0000:05:00.0: [drm] *ERROR* CRITICAL: Xe has declared device 0000:05:00.0 as wedged."), device.Mark{
			SysPath: gpu, Source: "drm", Reason: "driver xe has declared the GPU unusable (wedged): bind the driver again",
		}},
		{"amdgpu", event(udev.Logged, "pci", gpu, "MESSAGE", "amdgpu 0000:05:00.0: amdgpu: GPU reset end with ret = -110"), device.Mark{
			SysPath: gpu, Source: "drm", Reason: "driver amdgpu could not reset the GPU (-110): bind the driver again, or restart the node",
		}},
		{"amdgpu is done", event(udev.Logged, "pci", gpu, "MESSAGE", "amdgpu 0000:05:00.0: amdgpu: GPU reset(3) succeeded!"), device.Mark{SysPath: gpu, Source: "drm"}},
		{"amdgpu resets", event(udev.Logged, "pci", gpu, "MESSAGE", "amdgpu 0000:05:00.0: amdgpu: GPU reset begin!"), device.Mark{}},
		{"amdgpu fails, and says more", event(udev.Logged, "pci", gpu, "MESSAGE", "amdgpu 0000:05:00.0: amdgpu: GPU reset(3) failed"), device.Mark{}},
		{"another driver resets", event(udev.Logged, "pci", gpu, "MESSAGE", "other 0000:05:00.0: GPU reset(3) succeeded!"), device.Mark{}},
		{"xe says something else", event(udev.Logged, "pci", gpu, "MESSAGE", "xe 0000:05:00.0: CRITICAL: it is warm"), device.Mark{}},
	} {
		got, ok := device.Notice(test.event)
		if got != test.want || ok != (test.want != device.Mark{}) {
			t.Errorf("%s: %+v, %t, want %+v", test.name, got, ok, test.want)
		}
	}
}

func TestNoticeXid(t *testing.T) {
	const gpu = "/sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0"
	for text, want := range map[string]device.Mark{
		"79, GPU has fallen off the bus.":                                  {Source: "xid/79", Reason: "Xid 79: GPU has fallen off the bus"},
		"79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.": {Source: "xid/79", Reason: "Xid 79: GPU has fallen off the bus"},
		"48, pid=77, name=python3, DBE (double bit error), at 0x1":         {Source: "xid/48", Reason: "Xid 48: DBE (double bit error) at 0x1"},
		"119":                                   {Source: "xid/119", Reason: "Xid 119: no text"},
		"31, pid=1, name=a, Ch 00000008":        {}, // caused by the program
		"13, Graphics Exception":                {},
		"43, pid=1, name=79, Ch 00000010":       {},
		"94, pid=1, Contained: SM":              {},
		"63, Row Remapper: New row marked":      {},
		"64, Row Remapper: failed":              {Source: "xid/64", Reason: "Xid 64: Row Remapper: failed"},
		"32, Channel ID 3":                      {Source: "xid/32", Reason: "Xid 32: Channel ID 3", Warning: true},
		"149, NETIR_LINK_EVT Fatal XC0 i0":      {Source: "xid/149", Reason: "Xid 149: NETIR_LINK_EVT Fatal XC0 i0"},
		"145, RLW_REMAP Nonfatal XC0 i0":        {Source: "xid/145", Reason: "Xid 145: RLW_REMAP Nonfatal XC0 i0", Warning: true},
		"abc, x":                                {},
		"":                                      {},
		"154, GPU recovery action is not known": {},
		"154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)": {
			Source: "xid/154", Reason: "Xid 154: its driver requires: GPU Reset Required",
		},
		"154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)": {
			Source: "xid/154", Reason: "Xid 154: its driver requires: OS Reboot",
		},
		"154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)": {Source: "xid"},
	} {
		for _, address := range []string{"(PCI:0000:18:00): ", "(PCI:0000:18:00 GPU-I:05 GPU-CI:00): "} {
			got, ok := device.Notice(event(udev.Logged, "pci", gpu, "MESSAGE", "NVRM: Xid "+address+text))
			if want != (device.Mark{}) {
				want.SysPath = gpu
			}
			if got != want || ok != (want != device.Mark{}) {
				t.Errorf("%q: %+v, %t, want %+v", text, got, ok, want)
			}
		}
	}
}

func FuzzNoticeXid(f *testing.F) {
	f.Add("(PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
	f.Add("(PCI:0000:18:00): 79, pid='<unknown>', GPU has fallen off the bus.")
	f.Add("): 154,)(")
	f.Fuzz(func(t *testing.T, text string) {
		m, ok := device.Notice(event(udev.Logged, "pci", "/sys/x", "MESSAGE", "NVRM: Xid "+text))
		if ok && (m.SysPath != "/sys/x" || m.Source == "" || len(m.Reason) > len(text)+60) {
			t.Errorf("%q: %+v", text, m)
		}
	})
}

func TestFunctionIn(t *testing.T) {
	for sysPath, want := range map[string]string{
		"/sys/devices/pci0000:00/0000:00:01.1/0000:05:00.0/drm/card1": "/sys/devices/pci0000:00/0000:00:01.1/0000:05:00.0",
		"/sys/devices/pci0000:00/0000:00:01.1":                        "/sys/devices/pci0000:00/0000:00:01.1",
		"/sys/devices/pci10000:e0/10000:e0:02.0/x":                    "/sys/devices/pci10000:e0/10000:e0:02.0",
		"/sys/devices/pci0000:00":                                     "",
		"/sys/devices/virtual/misc/rdma_cm":                           "",
		"/sys/devices/platform/a:b:c.0":                               "",
		"/sys/devices/x/0000:00:01.8":                                 "",
		"":                                                            "",
	} {
		if got := device.FunctionIn(sysPath); got != want {
			t.Errorf("FunctionIn(%q) = %q, want %q", sysPath, got, want)
		}
	}
}
