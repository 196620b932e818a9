// SPDX-License-Identifier: Apache-2.0

package api

// Answer tells why something is offered, or is not. The steps are in the order in which the daemon decides: what udev
// knows, the classes, the identity, the rules, whether the host uses it, its health, its nodes; then what only the
// inventory knows, such as a cordon or an event that has left a mark; then the kubelet.
type Answer struct {
	What  string        `json:"what"`  // as it was asked
	Found []Explanation `json:"found"` // one for each device that it leads to, never empty
}

// Explanation is everything that was decided about one device, in that order.
type Explanation struct {
	SysPath string  `json:"sysfsPath"`
	Device  *Device `json:"device"` // as it stands now, or null if nothing is known of it
	Steps   []Step  `json:"steps"`
	Verdict string  `json:"verdict"`
	Would   string  `json:"would,omitempty"` // a [[resource]] that would take it, in TOML, where none is about such devices
}

// Step is one decision.
type Step struct {
	What string `json:"what"` // "node", "udev", "class", "identity", "rule", "offer", "health", "nodes", "state", "evidence" or "kubelet"
	Name string `json:"name"` // of the class or the resource that was tried
	OK   bool   `json:"ok"`   // it does not keep the device from pods
	Why  string `json:"why"`

	Where string `json:"where,omitempty"` // "FILE:LINE" of what has decided it in the configuration
}

// TimeFormat is how a time is shown, in UTC.
const TimeFormat = "2006-01-02 15:04:05Z"
