// SPDX-License-Identifier: Apache-2.0

package device

// This file handles faults that GPU drivers report only once.
//
// Follows Documentation/gpu/drm-uapi.rst, Device Wedging (Linux 6.15), drivers/gpu/drm/i915/gt/intel_reset.c
// (intel_gt_reset_global), drivers/gpu/drm/xe/xe_device.c (xe_device_declare_wedged) and
// drivers/gpu/drm/amd/amdgpu/amdgpu_device.c (amdgpu_device_gpu_recover). The second part of this file handles NVIDIA.
//
// amdgpu's attributes ras/*_err_count are not read. On most chips, a read resets the counter (amdgpu_ras_sysfs_read), so other
// programs would miss errors.

import (
	"path"
	"slices"
	"strconv"
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

// amdReset parses the message in which amdgpu reports the result of a reset, such as "GPU reset(3) succeeded!" or "GPU reset end
// with ret = -110". The start of a reset causes no mark, because unique_id cannot be read during a reset, so the inspection finds
// the GPU incomplete.
func amdReset(sysPath, text string) (Mark, bool) {
	m := Mark{SysPath: sysPath, Source: "drm"}
	if number, ok := strings.CutPrefix(text, " end with ret = "); ok {
		m.Reason = "driver amdgpu could not reset the GPU (" + strings.TrimSpace(number) + "): bind the driver again, or restart the node"
		return m, true
	}
	return m, strings.HasPrefix(text, "(") && strings.HasSuffix(text, ") succeeded!")
}

// This part handles Xids, which are numbered errors that NVIDIA's driver reports only in the kernel log.
//
// Follows: src/nvidia/arch/nvalloc/unix and src/common/sdk/nvidia/inc/nverror.h of NVIDIA/open-gpu-kernel-modules
// (XID_PRINT_WITH_ATTR, ROBUST_CHANNEL_*); "Xid Errors" in NVIDIA's documentation; internal/rm/health.go of
// NVIDIA/k8s-device-plugin for application errors.

// xidAction is the Xid with which newer drivers report the required recovery action. An example of its message is "GPU recovery
// action changed from 0x0 (None) to 0x1 (GPU Reset Required)". The driver first reports the Xid of the fault, and then this Xid.
const xidAction = 154

// xidOfApplications lists errors that a program causes or that affect only one program. The list contains channel errors (13, 31,
// 43, 45, 68, 109), the retirement of faulty memory (63), and contained memory errors (94).
var xidOfApplications = []int{13, 31, 43, 45, 63, 68, 94, 109}

// xidFatal lists errors after which the GPU must be reset. After one of them, the GPU computes incorrectly or not at all. They
// concern memory (48, 64, 92, 95, 140, 156, 157, 171, 172), internal processors (62, 119, 120, 143), the bus (79, 158, 167), and
// NVLink and C2C (74, 136, 173).
var xidFatal = []int{48, 62, 64, 74, 79, 92, 95, 119, 120, 136, 140, 143, 156, 157, 158, 167, 171, 172, 173}

// xidMark parses the text of an Xid, such as "(PCI:0000:18:00): 79, pid=…, name=…, GPU has fallen off the bus." The driver
// reports many undocumented numbers. A number that is neither in xidOfApplications nor in xidFatal therefore causes only a
// warning.
func xidMark(sysPath, text string) (Mark, bool) {
	_, text, ok := strings.Cut(text, "): ")
	digits, message, _ := strings.Cut(text, ",")
	number, err := strconv.Atoi(strings.TrimSpace(digits))
	if !ok || err != nil {
		return Mark{}, false
	}
	m := Mark{SysPath: sysPath, Source: "xid/" + strconv.Itoa(number), Reason: "Xid " + strconv.Itoa(number) + ":" + xidText(message)}
	switch {
	case number == xidAction:
		return xidVerdict(sysPath, message)
	case slices.Contains(xidOfApplications, number):
		return Mark{}, false
	case number >= 144 && number <= 150: // NVLink errors on Blackwell, whose messages include the severity
		m.Warning = strings.Contains(strings.ToLower(message), "nonfatal")
	default:
		m.Warning = !slices.Contains(xidFatal, number)
	}
	return m, true
}

// xidVerdict parses the message of Xid 154, which names the recovery action that the driver requires. The action "None" means
// that the GPU is healthy again, regardless of earlier Xids.
func xidVerdict(sysPath, message string) (Mark, bool) {
	begin, end := strings.LastIndexByte(message, '('), strings.LastIndexByte(message, ')')
	if begin < 0 || end < begin {
		return Mark{}, false
	}
	action := message[begin+1 : end]
	if action == "None" {
		return Mark{SysPath: sysPath, Source: "xid"}, true
	}
	return Mark{SysPath: sysPath, Source: "xid/" + strconv.Itoa(xidAction), Reason: "Xid 154: its driver requires: " + action}, true
}

// xidText returns the message of an Xid without the process, because a process can choose its own name.
func xidText(message string) string {
	var text strings.Builder
	for field := range strings.SplitSeq(message, ",") {
		field = strings.TrimSpace(field)
		if field != "" && !strings.HasPrefix(field, "pid=") && !strings.HasPrefix(field, "name=") && text.Len() < 100 {
			text.WriteString(" " + field)
		}
	}
	if text.Len() == 0 {
		return " no text"
	}
	return strings.TrimSuffix(text.String(), ".")
}
