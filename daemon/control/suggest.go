// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/udev"
)

// suggestResource suggests a [[resource]] for a device, or returns "" if the configuration has a rule for the device's class. The
// suggestion is a built-in resource, or a resource of class node. A suggestion for a disk matches no other disk. If neither
// resource would match the device, the error explains why.
func (q *question) suggestResource(e device.Explained) (text string, err error) {
	rules := config.BuiltinRules()
	if e.Device.Class == nil {
		rules = nodeRules(*e.Device.Udev)
	}
	for _, step := range e.Steps {
		if step.Rule != "" && (step.OK || step.What == "rule") || strings.HasPrefix(step.Key, "exclude.") || !step.OK && step.What != "class" && step.What != "rule" {
			return "", nil
		}
	}
	rule, err := e.Taker(q.Host, rules)
	if err != nil {
		return "", err
	}
	if rule.Class == &device.NVMe { // without a pattern, the resource would offer and erase all unused disks of the node
		rule.Match = map[string]string{device.IDProperty: e.Device.ID}
	}
	return inTOML(rule), nil
}

// nodeRules returns rules of class node that match a udev device with a device node. The first rules match an identity that
// survives a reboot, and the last one matches the name of the node.
func nodeRules(u udev.Device) []device.Rule {
	if u.DevNode == "" {
		return nil
	}
	matches := []map[string]string{{"DEVNAME": u.DevNode}}
	for _, key := range []string{"ID_PATH", "ID_SERIAL"} {
		if value := u.Properties.Value(key); value != "" {
			matches = slices.Insert(matches, 0, map[string]string{"SUBSYSTEM": u.Subsystem, key: value})
		}
	}
	var rules []device.Rule
	for _, match := range matches {
		rules = append(rules, device.Rule{Resource: "example.org/" + cmp.Or(u.Subsystem, "device"), Class: &device.Generic, Match: match})
	}
	return rules
}

// inTOML returns a rule in the syntax of the configuration.
func inTOML(r *device.Rule) string {
	text := fmt.Sprintf("[[resource]]\nname = %q\nclass = %q\n", r.Resource, r.Class.Name)
	var match []string
	for _, key := range slices.Sorted(maps.Keys(r.Match)) {
		match = append(match, fmt.Sprintf("%s = %q", key, r.Match[key]))
	}
	if len(match) > 0 {
		text += "match = { " + strings.Join(match, ", ") + " }\n"
	}
	if r.Class == &device.NVMe || r.Resource == "example.org/block" {
		text += "reset.scrub = \"discard\" # or another; \"none\" offers it again only if the pod left it blank\nreset.when = \"release\"\n"
	}
	return text
}

// explainNoMatch explains a udev device that matches no class. The result says why the device is not offered, and lists the
// device nodes below it. The parameter noRule is the reason why no rule of class node matches the device.
func (q *question) explainNoMatch(e device.Explained, noRule error) string {
	if noRule == nil {
		return "no resource matches the device" // the steps show the resources that were tried
	}
	u := e.Device.Udev
	if u.DevNode != "" {
		return "no class matches the device, not even class node: " + noRule.Error()
	}
	var nodes []string
	for _, below := range q.devices {
		if strings.HasPrefix(below.SysPath, u.SysPath+"/") && below.DevNode != "" {
			nodes = append(nodes, below.DevNode)
		}
	}
	if len(nodes) == 0 {
		return "no class matches the device, and neither the device nor its children have a device node"
	}
	return "no class matches the device, and the device has no device node; the nodes of its children are " + strings.Join(nodes, " ")
}
