// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/bundle"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/verdict"
	"github.com/metalplug/metalplug/udev"
)

// sendWhy explains the device with the given name. The name is an ID, a node in /dev, a PCI address or a sysfs path.
func (s *Server) sendWhy(w http.ResponseWriter, r *http.Request) {
	what := r.URL.Query().Get("what")
	if what == "" {
		refuse(w, http.StatusBadRequest, errors.New("invalid what=: must be an ID, a node in /dev, a PCI address or a path in sysfs"))
		return
	}
	q := question{Server: s, what: what, config: s.Config.Load()}
	answer, err := q.answer()
	if err != nil {
		refuse(w, http.StatusNotFound, err)
		return
	}
	send(w, answer)
}

// question is a request for an explanation, with metalplugd's state at the time of the request.
type question struct {
	*Server
	what     string
	config   *config.Config
	rules    []device.Rule
	snapshot *inventory.Snapshot
	devices  []udev.Device // all udev devices that currently exist
}

// answer finds the devices with the requested name and explains them. The inventory provides the explanation for absent hardware.
// All other hardware is inspected again, so that the answer is correct even if an event was lost.
func (q *question) answer() (answer api.Answer, err error) {
	q.rules, answer.What = q.config.Rules(), q.what
	q.snapshot, _ = q.Inventory.Snapshot()
	var known *inventory.Status
	users := q.findKnown()
	if len(users) > 0 {
		known = users[0]
	}
	if known != nil && known.Members != nil {
		answer.Found = []api.Explanation{q.explainBundle(known)}
		return answer, nil
	}
	if known != nil && !known.Present {
		x := api.Explanation{SysPath: known.Device.SysPath}
		add(&x, "udev", "", false, "the hardware is absent; the last sysfs path of the device was "+known.Device.SysPath)
		q.conclude(&x, known)
		answer.Found = []api.Explanation{x}
		return answer, nil
	}
	if q.devices, err = q.Source.Enumerate(); err != nil {
		return answer, err
	}
	explained := q.explainCandidates(known)
	// If two devices have the same identity, the ID of one of them ends with its location.
	for i, e := range explained {
		same := func(other device.Explained) bool {
			return other.Device.SysPath == e.Device.SysPath && other.Device.ID == e.Device.ID
		}
		if slices.ContainsFunc(explained[:i], same) {
			continue // the same device was found near several others
		}
		if known == nil || len(explained) == 1 || strings.HasPrefix(known.Device.ID, e.Device.ID) {
			answer.Found = append(answer.Found, q.addState(e))
		}
	}
	switch n := len(users); {
	case len(answer.Found) > 0 && n > 1: // the explanation is the same for all devices that share the node
		answer.Found = answer.Found[:1]
		answer.Found[0].Steps = slices.Insert(answer.Found[0].Steps, 0, api.Step{
			What: "node", OK: true, Why: fmt.Sprintf("%d devices match %s; this is one of them", n, q.what),
		})
	case len(answer.Found) > 0:
	case slices.ContainsFunc(q.rules, func(r device.Rule) bool { return r.Resource == q.what }):
		err = fmt.Errorf("%s is a resource, not a device; to see all devices: metalplugctl list --all", q.what)
	default:
		err = unknown(q.what)
	}
	return answer, err
}

// addState adds states from the inventory and from the kubelet to the result of an inspection. After a change to the hardware or
// the configuration, these states are out of date until the inventory has inspected the device. In that case, the verdict says
// so.
func (q *question) addState(e device.Explained) api.Explanation {
	u := e.Device.Udev
	known := e.Device.SysPath + " is in subsystem " + u.Subsystem
	if u.DevNode != "" {
		known += ", its node is " + u.DevNode
	}
	x := api.Explanation{SysPath: e.Device.SysPath, Steps: []api.Step{{What: "udev", OK: true, Why: known}}}
	for _, step := range e.Steps {
		x.Steps = append(x.Steps, api.Step{What: step.What, Name: step.Name, OK: step.OK, Why: step.Why, Where: q.config.Where(step.Rule, step.Key)})
	}
	var err error
	x.Would, err = q.suggestResource(e)
	for d := range q.snapshot.All() {
		if d.Present && d.Device.SysPath == e.Device.SysPath && strings.HasPrefix(d.Device.ID, e.Device.ID) {
			q.conclude(&x, d)
			if d.Resource != "" || d.Taker == e.Resource {
				return x
			}
		}
	}
	x.Verdict = "not offered: metalplugd has not applied the last change yet; repeat the command in a few seconds"
	if e.Device.Class == nil {
		x.Verdict = "not offered: " + q.explainNoMatch(e, err)
	}
	return x
}

// conclude adds a device's state and the verdict. The state may have a cause that an inspection does not show, such as an event,
// an error counter, a cordon or frequent health changes.
func (q *question) conclude(x *api.Explanation, d *inventory.Status) {
	shown := NewDevice(d, q.heldBy())
	x.Device = &shown
	if d.Healthy { // the verdict on an unhealthy device contains the reason
		add(x, "state", "", true, "Healthy since "+shown.Since.Format(api.TimeFormat))
	}
	addEvidence(x, d)
	if by := d.Cordon; by != nil && !by.Since.IsZero() {
		add(x, "state", "", false, fmt.Sprintf("cordoned by %s, %s", by.By(), by.Since.UTC().Format(api.TimeFormat)))
	}
	if d.Failure != "" && !strings.Contains(d.Reason, d.Failure) {
		add(x, "state", "", false, "the last work failed: "+d.Failure)
	}
	if d.Reserved != "" {
		add(x, "state", "", true, "only the pod that holds the device may use it: "+d.Reserved)
	}
	if d.Warning != "" {
		add(x, "state", "", true, "warning: "+d.Warning)
	}
	if d.Resource == "" {
		x.Verdict = "not offered: " + d.Reason
		return
	}
	resource, as := d.Resource, d.Resource
	if b := q.snapshot.Find(d.Bundle); d.Bundle != "" && b != nil {
		resource, as = b.Resource, fmt.Sprintf("%s in %s", b.Resource, b.Device.ID)
	}
	connected := q.addKubelet(x, resource)
	x.Verdict = fmt.Sprintf("offered as %s, Healthy", as)
	if !d.Healthy {
		x.Verdict = fmt.Sprintf("belongs to %s, not available to new pods: %s", as, d.Reason)
	} else if !connected {
		x.Verdict += ", but the kubelet is not connected"
	}
	if by := shown.Allocated; by != nil {
		x.Verdict += fmt.Sprintf(", held by %s/%s (%s)", by.Namespace, by.Name, by.Container)
	} else if len(shown.Claims) > 0 {
		x.Verdict += ", held by claim " + strings.Trim(fmt.Sprint(shown.Claims), "[]")
	} else if d.Held() {
		x.Verdict += ", held by a pod"
	}
}

// addEvidence adds the evidence that a disk is unused.
func addEvidence(x *api.Explanation, d *inventory.Status) {
	v := d.Evidence
	at := v.Since.UTC().Format(api.TimeFormat)
	ok, why := false, ""
	switch {
	case v.Kind == evidence.Blank:
		ok, why = true, fmt.Sprintf("blank since %s: all %d bytes were read; each time the disk is plugged in, metalplug checks both ends and random blocks again", at, v.Size)
	case v.Kind == evidence.Erased:
		ok, why = true, fmt.Sprintf("erased by metalplug at %s, and verified", at)
	case v.Scrub != "":
		why = fmt.Sprintf("adopted by the operator at %s, to be erased with %s", at, v.Scrub)
	case v.Kind == evidence.Adopted:
		ok, why = true, fmt.Sprintf("adopted by the operator, erased at %s, and verified", at)
	case v.Found != "":
		why = fmt.Sprintf("none: a full read since %s found %s", at, v.Found)
	case d.Todo == verdict.ReadDisk && v.Size > 0:
		why = fmt.Sprintf("none yet: %d of %d bytes were read since %s and are blank", v.Read, v.Size, at)
	case d.State == lease.Unproven:
		why = "none: no full read, no erasure by metalplug, not adopted"
	case d.Reserved != "" && d.Barred != d.Reserved:
		ok, why = true, "the disk contains data from a pod on this node; metalplug erases the data before the next container starts"
	default:
		return
	}
	add(x, "evidence", "", ok, why)
}

// add adds a step to an explanation.
func add(x *api.Explanation, what, name string, ok bool, why string) {
	x.Steps = append(x.Steps, api.Step{What: what, Name: name, OK: ok, Why: why})
}

// addKubelet adds a step that shows whether the kubelet receives a resource's device list.
func (q *question) addKubelet(x *api.Explanation, resource string) (connected bool) {
	text := "the resource is no longer configured: metalplugd removes the resource once no pod holds its devices"
	if r, ok := q.config.Resource(resource); ok {
		text, connected = api.Resource{Serve: r.Serve, Registration: q.Registrations()[resource]}.KubeletState()
	}
	add(x, "kubelet", resource, connected, text)
	return connected
}

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
	if rule.Class == &device.NVMe { // without a pattern, the resource would offer and erase all unused disks on the node
		rule.Match = map[string]string{device.IDProperty: e.Device.ID}
	}
	return inTOML(rule), nil
}

// nodeRules returns rules of class node that match a udev device with a device node. The first rules match an identity that
// survives a reboot, and the last one matches the node's name.
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

// inTOML returns a rule in the configuration's syntax.
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

// maxOthers is the maximum number of other devices that a bundle's explanation lists.
const maxOthers = 4

// explainBundle explains why a bundle has its members, and shows the state of each member.
func (q *question) explainBundle(b *inventory.Status) (x api.Explanation) {
	first := b.Members[0]
	x.SysPath = first.Device.SysPath
	for _, m := range b.Members {
		why := m.Device.ID
		switch {
		case m != first:
			why += fmt.Sprintf(" is %s from it; %s", distance(first, m), q.listOthers(first, m))
		case first.Device.Udev != nil:
			why += "; the other members are near this device"
		}
		if !m.Healthy {
			why += "; Unhealthy: " + m.Reason
		}
		add(&x, "member", m.Resource, m.Healthy, why)
	}
	q.conclude(&x, b)
	return x
}

// distance returns the distance between two devices. If a device is not on PCI, the distance depends only on the NUMA
// nodes.
func distance(a, b *inventory.Status) api.Distance {
	return bundle.PlaceOf(a.Device).Distance(bundle.PlaceOf(b.Device))
}

// listOthers lists the nearest devices that could replace the given member of the bundle. For each of these devices, listOthers
// says why the device was not chosen.
func (q *question) listOthers(first, member *inventory.Status) string {
	var all []*inventory.Status
	for d := range q.snapshot.All() {
		if d.Taker == member.Resource && d.Bundle != member.Bundle {
			all = append(all, d)
		}
	}
	if len(all) == 0 {
		return "there is no other device"
	}
	slices.SortStableFunc(all, func(a, b *inventory.Status) int {
		return cmp.Compare(slices.Index(bundle.Distances, distance(first, a)), slices.Index(bundle.Distances, distance(first, b)))
	})
	var names []string
	for _, d := range all[:min(len(all), maxOthers)] {
		name := fmt.Sprintf("%s %s", distance(first, d), d.Device.ID)
		if function := device.FunctionIn(d.Device.SysPath); function != "" {
			name = fmt.Sprintf("%s %s", distance(first, d), path.Base(function))
		}
		switch {
		case d.Bundle != "":
			name += " in " + d.Bundle
		case d.Resource == "":
			name += " not offered"
		case !d.Healthy:
			name += " Unhealthy"
		default:
			name += " offered on its own"
		}
		names = append(names, name)
	}
	if more := len(all) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return "others: " + strings.Join(names, ", ")
}
