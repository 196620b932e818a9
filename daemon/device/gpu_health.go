// SPDX-License-Identifier: Apache-2.0

package device

// This file handles faults that GPU drivers report only once.
//
// Follows Documentation/gpu/drm-uapi.rst, Device Wedging (Linux 6.15), drivers/gpu/drm/i915/gt/intel_reset.c
// (intel_gt_reset_global), drivers/gpu/drm/xe/xe_device.c (xe_device_declare_wedged) and
// drivers/gpu/drm/amd/amdgpu/amdgpu_device.c (amdgpu_device_gpu_recover). For NVIDIA see gpu_xid.go.
//
// The attributes ras/*_err_count of amdgpu are not read. On most chips, a read resets the counter (amdgpu_ras_sysfs_read), so
// other programs would miss errors.

import (
	"path"
	"strings"

	"github.com/metalplug/metalplug/udev"
)

// gpuNotice evaluates DRM events, and the messages that GPU drivers write to the kernel log.
func gpuNotice(e udev.Event) (Mark, bool) {
	switch {
	case e.Action == udev.Logged:
		return gpuLogged(e.Device)
	case e.Action != "change" || e.Device.Subsystem != "drm":
		return Mark{}, false
	}
	m := Mark{SysPath: FunctionIn(e.Device.SysPath), Source: "drm"}
	if m.SysPath == "" { // a GPU in a system on chip has no PCI function, so use the device above the directory "drm"
		m.SysPath = path.Dir(path.Dir(e.Device.SysPath))
	}
	p := e.Device.Properties
	switch {
	case p.Value("WEDGED") == "none": // the driver has already reset the GPU
	case p.Value("WEDGED") != "":
		m.Reason = "the driver has declared the GPU unusable (WEDGED=" + p.Value("WEDGED") + ")"
	case p.Value("ERROR") == "1", p.Value("RESET") == "1":
		m.Reason = "driver i915 has found an error and is resetting the GPU"
	case p.Value("ERROR") == "0": // the driver does not send this event if the reset did not help
	default:
		return Mark{}, false
	}
	return m, true
}

func gpuLogged(d udev.Device) (Mark, bool) {
	message := d.Properties.Value("MESSAGE")
	if text, ok := strings.CutPrefix(message, "NVRM: Xid "); ok {
		return xidMark(d.SysPath, text)
	}
	// Before Linux 6.15, xe and amdgpu reported an unusable GPU only in the log.
	if _, text, ok := strings.Cut(message, " GPU reset"); ok && strings.HasPrefix(message, "amdgpu ") {
		return amdReset(d.SysPath, text)
	}
	if strings.HasPrefix(message, "xe ") && strings.HasSuffix(message, " as wedged.") {
		return Mark{SysPath: d.SysPath, Source: "drm", Reason: "driver xe has declared the GPU unusable (wedged): bind the driver again"}, true
	}
	return Mark{}, false
}

// amdReset parses the message with the result of a reset by amdgpu, such as "GPU reset(3) succeeded!" or "GPU reset end with ret
// = -110". The start of a reset causes no mark, because unique_id cannot be read during a reset, so the inspection finds the GPU
// incomplete.
func amdReset(sysPath, text string) (Mark, bool) {
	m := Mark{SysPath: sysPath, Source: "drm"}
	if number, ok := strings.CutPrefix(text, " end with ret = "); ok {
		m.Reason = "driver amdgpu could not reset the GPU (" + strings.TrimSpace(number) + "): bind the driver again, or restart the node"
		return m, true
	}
	return m, strings.HasPrefix(text, "(") && strings.HasSuffix(text, ") succeeded!")
}
