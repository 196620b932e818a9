// SPDX-License-Identifier: Apache-2.0

package api

// Answer explains why a device is or is not offered. Answer lists the steps in the order in which metalplugd decides. The first
// steps are about udev, the classes, the identity, the rules, use by the host, health and nodes. The next steps show facts that
// only the inventory knows, such as a cordon or a fault. The last step is about the kubelet.
type Answer struct {
	What string `json:"what"` // the name that was requested
	// Found contains an entry for each device with the requested name. Found is never empty.
	Found []Explanation `json:"found"`
}

// Explanation contains all decisions about one device, in the order that [Answer] describes.
type Explanation struct {
	SysPath string  `json:"sysfsPath"`
	Device  *Device `json:"device"` // current state of the device, or null if unknown
	Steps   []Step  `json:"steps"`
	Verdict string  `json:"verdict"`
	// Would suggests a [[resource]] in TOML if the configuration has no rule for the device.
	Would string `json:"would,omitempty"`
}

// Step is one decision about a device.
type Step struct {
	// The kind of decision is "node", "udev", "class", "identity", "rule", "offer", "health", "nodes", "state", "evidence" or
	// "kubelet".
	What string `json:"what"`
	Name string `json:"name"` // name of the class or resource
	OK   bool   `json:"ok"`   // false if the step withholds the device from pods
	Why  string `json:"why"`

	Where string `json:"where,omitempty"` // file and line of the setting that caused the decision, as "FILE:LINE"
}

// TimeFormat is the format for times that operators see. Times are in UTC.
const TimeFormat = "2006-01-02 15:04:05Z"
