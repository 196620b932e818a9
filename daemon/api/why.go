// SPDX-License-Identifier: Apache-2.0

package api

// Answer explains why a device is or is not offered. The steps are in the order of metalplugd's decisions. First come
// udev, the classes, the identity, the rules, use by the host, health and nodes. Then come facts that only the
// inventory has, such as a cordon or a fault. The kubelet is last.
type Answer struct {
	What  string        `json:"what"`  // the name in the request
	Found []Explanation `json:"found"` // an entry for each device with the requested name, never empty
}

// Explanation has all decisions about one device, in that order.
type Explanation struct {
	SysPath string  `json:"sysfsPath"`
	Device  *Device `json:"device"` // present state of the device, or null if unknown
	Steps   []Step  `json:"steps"`
	Verdict string  `json:"verdict"`
	Would   string  `json:"would,omitempty"` // suggestion of a [[resource]] in TOML for a device that no configured rule is meant for
}

// Step is one decision.
type Step struct {
	What string `json:"what"` // "node", "udev", "class", "identity", "rule", "offer", "health", "nodes", "state", "evidence" or "kubelet"
	Name string `json:"name"` // name of the class or the resource
	OK   bool   `json:"ok"`   // the step does not withhold the device from pods
	Why  string `json:"why"`

	Where string `json:"where,omitempty"` // "FILE:LINE" in the configuration that caused the decision
}

// TimeFormat is the format of times, in UTC.
const TimeFormat = "2006-01-02 15:04:05Z"
