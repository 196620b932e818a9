// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/udev"
)

// Answer tells why something is offered, or is not. The steps are in the order in which the daemon decides: what udev
// knows, the classes, the identity, the rules, whether the host uses it, its health, its nodes; then what only the
// inventory knows, such as a cordon or an event that has left a mark; then the kubelet.
type Answer struct {
	What  string        `json:"what"`  // as it was asked
	Found []Explanation `json:"found"` // one for each device that it leads to; never empty
}

// Explanation is everything that was decided about one device, in that order.
type Explanation struct {
	SysPath   string  `json:"sysfsPath"`
	Node      string  `json:"node,omitempty"`
	Subsystem string  `json:"subsystem,omitempty"`
	Device    *Device `json:"device"` // as it stands now; null: nothing is known of it
	Steps     []Step  `json:"steps"`
	Verdict   string  `json:"verdict"`
	Would     string  `json:"would,omitempty"` // a [[resource]] that would take it, in TOML, where none is about such devices
}

// Step is one decision.
type Step struct {
	What string `json:"what"` // "node", "udev", "class", "identity", "rule", "offer", "health", "nodes", "state", "evidence", "units" or "kubelet"
	Name string `json:"name"` // of the class or the resource that was tried
	OK   bool   `json:"ok"`   // it does not keep the device from pods
	Why  string `json:"why"`

	Where string `json:"where,omitempty"` // "FILE:LINE" of what has decided it in the configuration
}

// timeFormat is how a time is told, in UTC.
const timeFormat = "2006-01-02 15:04:05Z"

// askLimit is how long somebody waits for the answer to another's question, which takes a second on a large machine; for
// longer only where hardware does not answer. It leaves time for the own one ([answerLimit]).
const askLimit = 10 * time.Second

// errBusy: another's question is not answered.
var errBusy = errors.New("it has not answered an earlier question yet: some hardware does not answer; see 'metalplugctl list'")

// errNothing: what was asked for leads to no device of this machine.
var errNothing = errors.New("no device that udev knows")

// sendWhy explains what is asked for: an ID, a node in /dev, the address of a PCI function or a path in sysfs. One at a
// time is answered, for it enumerates the whole machine.
func (s *Server) sendWhy(w http.ResponseWriter, r *http.Request) {
	what := r.URL.Query().Get("what")
	if what == "" || len(what) > 1024 {
		refuse(w, http.StatusBadRequest, errors.New("what= is to be an ID, a node in /dev, a PCI address or a path in sysfs"))
		return
	}
	select {
	case s.asking <- struct{}{}:
		defer func() { <-s.asking }()
	case <-r.Context().Done():
		return
	case <-time.After(askLimit):
		refuse(w, http.StatusServiceUnavailable, errBusy)
		return
	}
	answer, err := s.why(what)
	if err != nil {
		refuse(w, http.StatusNotFound, err)
		return
	}
	send(w, answer)
}

// why finds what is asked for and explains it. Hardware that is gone is explained by what is kept of it; everything
// else is looked at anew, so that the answer holds now and not as of the last event.
func (s *Server) why(what string) (Answer, error) {
	snapshot, _ := s.Inventory.Snapshot()
	answer := Answer{What: what}
	known := statusOf(snapshot, what)
	if known != nil && !known.Present {
		answer.Found = []Explanation{s.absent(known)}
		return answer, nil
	}
	devices, err := s.Enumerate()
	if err != nil {
		return answer, err
	}
	candidates := s.candidates(devices, what, known)
	if len(candidates) == 0 {
		candidates = suspects(snapshot, devices, what)
	}
	explained := s.explain(devices, candidates)
	for _, e := range explained {
		if known == nil || len(explained) == 1 || claims(e.Device.ID, known) {
			answer.Found = append(answer.Found, s.told(snapshot, devices, e))
		}
	}
	oneFor(snapshot, &answer)
	if len(answer.Found) == 0 && slices.ContainsFunc(s.Rules(), func(r device.Rule) bool { return r.Resource == what }) {
		return answer, fmt.Errorf("%s is a resource: 'metalplugctl list --all' shows every device with its reason; then ask for one", what)
	}
	if len(answer.Found) == 0 {
		return answer, fmt.Errorf("%s: %w, and no ID: see 'metalplugctl list --all', 'udevadm info %s'", what, errNothing, what)
	}
	return answer, nil
}

// told adds to what a look finds what the inventory and the kubelet make of it. The look and the inventory may disagree
// for a moment, when something has just happened; both are told.
func (s *Server) told(snapshot *inventory.Snapshot, devices []udev.Device, e device.Sighting) Explanation {
	u := e.Device.Udev
	known := e.Device.SysPath + " is in subsystem " + u.Subsystem
	if u.DevNode != "" {
		known += ", its node is " + u.DevNode
	}
	x := Explanation{
		SysPath: e.Device.SysPath, Node: u.DevNode, Subsystem: u.Subsystem, Steps: []Step{{What: "udev", OK: true, Why: known}},
	}
	for _, step := range e.Steps {
		x.Steps = append(x.Steps, Step{What: step.What, Name: step.Name, OK: step.OK, Why: step.Why, Where: s.whereIs(step)})
	}
	var err error
	x.Would, err = s.would(e)
	for d := range everyDevice(snapshot) {
		if d.Present && d.Device.SysPath == e.Device.SysPath && claims(e.Device.ID, d) {
			s.conclude(&x, d)
			return x
		}
	}
	x.Verdict = "not offered: nothing on this machine's list of devices stands for it"
	if e.Device.Class == nil {
		x.Verdict = "not offered: " + s.untaken(devices, e, err)
	}
	return x
}

// whereIs tells where the rule is written that a step is about; empty for none, and for a default one.
func (s *Server) whereIs(step device.Step) string {
	if step.Rule == "" {
		return ""
	}
	return s.Where(step.Rule, step.Key)
}

// absent explains a device of which the hardware is not there.
func (s *Server) absent(d *inventory.Status) Explanation {
	x := Explanation{SysPath: d.Device.SysPath, Steps: []Step{
		{What: "udev", Why: "its hardware is not there; it was last at " + d.Device.SysPath},
	}}
	s.conclude(&x, d)
	return x
}

// conclude adds how a device stands, and the verdict. The state may say more than the look: what an event or a counter
// has said of the hardware, what an operator has, and whether it comes and goes too often.
func (s *Server) conclude(x *Explanation, d *inventory.Status) {
	shown := newDevice(d, s.Holders())
	x.Device = &shown
	switch {
	case d.Healthy:
		x.add("state", "", true, "Healthy since "+shown.Since.Format(timeFormat))
	default:
		x.add("state", "", false, d.Reason)
	}
	x.evidence(d)
	if by := shown.Cordon; by != nil && by.Since != nil {
		x.add("state", "", false, fmt.Sprintf("cordoned by %s, %s", by.Who(), by.Since.Format(timeFormat)))
	}
	if d.Reserved != "" {
		x.add("state", "", true, "only the pod that holds it may have it: "+d.Reserved)
	}
	if d.Warning != "" {
		x.add("state", "", true, "warning: "+d.Warning)
	}
	if d.Resource == "" {
		x.Verdict = "not offered: " + d.Reason + x.decidedAt()
		return
	}
	connected := s.tellKubelet(x, d.Resource)
	switch {
	case !d.Healthy:
		x.Verdict = fmt.Sprintf("offered as %s, Unhealthy: %s", d.Resource, d.Reason)
	case !connected:
		x.Verdict = fmt.Sprintf("offered as %s, Healthy, but the kubelet is not connected", d.Resource)
	default:
		x.Verdict = fmt.Sprintf("offered as %s, Healthy", d.Resource)
	}
	if shown.Allocated != nil {
		x.Verdict += fmt.Sprintf(", held by %s/%s (%s)", shown.Allocated.Namespace, shown.Allocated.Pod, shown.Allocated.Container)
	} else if d.Held() {
		x.Verdict += ", held by a pod"
	}
}

// evidence adds what is known of a disk, and what that rests on.
func (x *Explanation) evidence(d *inventory.Status) {
	v := d.Evidence
	at := v.Since.UTC().Format(timeFormat)
	switch {
	case v.Kind == inventory.Blank:
		x.add("evidence", "", true, fmt.Sprintf("blank since %s: all %d bytes were read; at each plug random places, both ends and the known offsets are read again", at, v.Size))
	case v.Kind == inventory.Erased:
		x.add("evidence", "", true, fmt.Sprintf("erased by metalplug at %s, and verified", at))
	case v.Scrub != "":
		x.add("evidence", "", false, fmt.Sprintf("adopted by the operator at %s, to be erased by %s", at, v.Scrub))
	case v.Kind == inventory.Adopted:
		x.add("evidence", "", true, fmt.Sprintf("adopted by the operator, erased at %s, and verified", at))
	case v.Found != "":
		x.add("evidence", "", false, fmt.Sprintf("none: a full read since %s found %s", at, v.Found))
	case d.Todo == inventory.ReadDisk && v.Size > 0:
		x.add("evidence", "", false, fmt.Sprintf("none yet: %d of %d bytes were read since %s and are blank", v.Read, v.Size, at))
	case d.State == lease.Unproven:
		x.add("evidence", "", false, "none: no full read, no erasure by metalplug, not adopted")
	case d.Reserved != "" && d.Barred != d.Reserved:
		x.add("evidence", "", true, "a pod of this node left what is on it, which is erased before the next container starts")
	}
}

// decidedAt tells, of a device that no rule takes, where the rule is written that decides, if it is one alone.
func (x *Explanation) decidedAt() string {
	where := ""
	for _, step := range x.Steps {
		switch {
		case step.What != "rule":
		case step.OK || where != "":
			return ""
		default:
			where = step.Where
		}
	}
	return inBrackets(where)
}

// inBrackets is how a place is added to a sentence; nothing is for none.
func inBrackets(where string) string {
	if where == "" {
		return ""
	}
	return " (" + where + ")"
}

// add adds a step.
func (x *Explanation) add(what, name string, ok bool, why string) {
	x.Steps = append(x.Steps, Step{What: what, Name: name, OK: ok, Why: why})
}

// tellKubelet adds whether the kubelet hears of a resource.
func (s *Server) tellKubelet(x *Explanation, resource string) (connected bool) {
	for _, r := range s.Resources() {
		if r.Name != resource {
			continue
		}
		switch {
		case r.Held != "":
			x.add("kubelet", resource, false, "the resource is held back: "+r.Held)
		case r.Connected:
			x.add("kubelet", resource, true, "it is registered, and the kubelet's stream is open")
		case r.Registered:
			x.add("kubelet", resource, false, "it is registered, but the kubelet has opened no stream")
		default:
			x.add("kubelet", resource, false, strings.TrimSuffix("it is not registered: "+r.Complaint, ": "))
		}
		return r.Connected
	}
	x.add("kubelet", resource, false, "the resource is not configured any more: it goes once no pod holds it")
	return false
}
