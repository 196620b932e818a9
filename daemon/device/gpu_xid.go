// SPDX-License-Identifier: Apache-2.0

package device

// Errors with a number, Xid, which NVIDIA's driver reports only in the kernel's log.
//
// Follows: src/nvidia/arch/nvalloc/unix and src/common/sdk/nvidia/inc/nverror.h of NVIDIA/open-gpu-kernel-modules
// (XID_PRINT_WITH_ATTR, ROBUST_CHANNEL_*); "Xid Errors" of NVIDIA's documentation; internal/rm/health.go of
// NVIDIA/k8s-device-plugin for the errors of applications.

import (
	"slices"
	"strconv"
	"strings"
)

// xidAction is the Xid by which newer drivers say what has to be done to make the GPU usable again, if anything, as in "GPU
// recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)". It comes after the Xid that is the cause.
const xidAction = 154

// xidOfApplications are errors that a program makes, or that cost nothing but the program. These are channel errors (13, 31,
// 43, 45, 68, 109), memory that was taken out of use in time (63), and a memory error that was contained (94).
func xidOfApplications() []int { return []int{13, 31, 43, 45, 63, 68, 94, 109} }

// xidFatal are errors after which the GPU computes wrongly or not at all until it is reset. They are about memory (48, 64,
// 92, 95, 140, 156, 157, 171, 172), processors inside (62, 119, 120, 143), the bus (79, 158, 167), and NVLink and C2C (74,
// 136, 173).
func xidFatal() []int {
	return []int{48, 62, 64, 74, 79, 92, 95, 119, 120, 136, 140, 143, 156, 157, 158, 167, 171, 172, 173}
}

// xidMark reads the text of an Xid, "(PCI:0000:18:00): 79, pid=…, name=…, GPU has fallen off the bus." A number in no list is
// a warning, because the driver reports far more numbers than are documented.
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
	case slices.Contains(xidOfApplications(), number):
		return Mark{}, false
	case number >= 144 && number <= 150: // NVLink of Blackwell, which says itself how bad it is
		m.Warning = strings.Contains(strings.ToLower(message), "nonfatal")
	default:
		m.Warning = !slices.Contains(xidFatal(), number)
	}
	return m, true
}

// xidVerdict reads the recovery action that the driver asks for. With "None" the GPU is healthy again after any earlier
// report.
func xidVerdict(sysPath, message string) (Mark, bool) {
	begin, end := strings.LastIndexByte(message, '('), strings.LastIndexByte(message, ')')
	if begin < 0 || end < begin {
		return Mark{}, false
	}
	action := message[begin+1 : end]
	if action == "None" {
		return Mark{SysPath: sysPath, Source: "xid"}, true
	}
	return Mark{SysPath: sysPath, Source: "xid/" + strconv.Itoa(xidAction), Reason: "Xid 154: its driver asks for: " + action}, true
}

// xidText returns what an Xid says without the process, of which the name is the process's own choice.
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
