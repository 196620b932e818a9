// SPDX-License-Identifier: Apache-2.0

package api

// Answer explains why a device is or is not offered. The steps are in the order in which metalplugd decides. First come
// udev, the classes, the identity, the rules, use by the host, health and nodes. They are followed by facts that only the
// inventory knows, such as a cordon or a fault. The kubelet comes last.
type Answer struct {
	What string `json:"what"` // name in the request
	// Found contains an entry for each device with the requested name. It is never empty.
	Found []Explanation `json:"found"`
}

// Explanation contains all decisions about one device, in the order of [Answer].
type Explanation struct {
	SysPath string  `json:"sysfsPath"`
	Device  *Device `json:"device"` // present state of the device, or null if unknown
	Steps   []Step  `json:"steps"`
	Verdict string  `json:"verdict"`
	// Would suggests a [[resource]] in TOML for a device that no configured rule is meant for.
	Would string `json:"would,omitempty"`
}

// Step is one decision about a device.
type Step struct {
	// The kind of decision: "node", "udev", "class", "identity", "rule", "offer", "health", "nodes", "state", "evidence" or "kubelet".
	What string `json:"what"`
	Name string `json:"name"` // name of the class or the resource
	OK   bool   `json:"ok"`   // the step does not withhold the device from pods
	Why  string `json:"why"`

	Where string `json:"where,omitempty"` // "FILE:LINE" of the setting that caused the decision
}

// TimeFormat is the format in which times are shown, in UTC.
const TimeFormat = "2006-01-02 15:04:05Z"
