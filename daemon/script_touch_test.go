// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/checkpoint"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/turnover"
)

// helpers simulate the helper programs in a story.
type helpers struct {
	mu      sync.Mutex
	content map[string]string // content of disks by name, such as "nvme1n1"
	open    map[string]string // pod that has a device open, or "host"
	done    []string          // work, such as "erase nvme1n1 zero"
	unread  string            // pod whose processes cannot be read, or empty
	hidden  map[string]bool   // disks with data that only a full read finds
	read    map[string]int    // number of full reads by disk
	probed  int               // number of probes that opened a disk
	changed chan struct{}     // closed and replaced after each request
	slow    chan struct{}     // delays resets and erasures until it is closed, or nil
}

func newHelpers() *helpers {
	return &helpers{
		content: make(map[string]string), open: make(map[string]string), changed: make(chan struct{}),
		hidden: make(map[string]bool), read: make(map[string]int),
	}
}

func (h *helpers) touch() *device.Touch {
	return &device.Touch{Probe: h.probe, Survey: h.survey, Prepare: h.prepare, Holders: h.holders}
}

// diskSize is the size of each disk.
const diskSize = 1 << 20

func (h *helpers) probe(_ context.Context, t device.Target, held bool) (device.Report, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if held {
		return device.Report{}, nil
	}
	h.probed++
	content := h.content[path.Base(t.SysPath)]
	return device.Report{Content: content, Fingerprint: "5eed:" + content, Size: diskSize}, nil
}

// survey also finds data that probes do not find.
func (h *helpers) survey(_ context.Context, t device.Target, from int64) (device.Report, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	name := path.Base(t.SysPath)
	h.read[name]++
	if h.hidden[name] {
		return device.Report{Read: max(from, 4096), Size: diskSize, Content: "unknown data at byte 4096"}, nil
	}
	return device.Report{Read: diskSize, Size: diskSize}, nil
}

func (h *helpers) prepare(ctx context.Context, t device.Target, w device.Work) (device.Report, error) {
	h.mu.Lock()
	slow := h.slow
	h.mu.Unlock()
	if slow != nil {
		select {
		case <-slow:
		case <-ctx.Done():
			return device.Report{}, ctx.Err()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	name := path.Base(t.SysPath)
	switch content := h.content[name]; {
	case content == "" && !(w.Scrub != "" && !w.Tenant && !w.ByHand), w.ByHand:
	case !w.Tenant, t.Fingerprint != "" && t.Fingerprint != "5eed:"+content:
		return device.Report{}, fmt.Errorf("%w: %w: the disk contains %s", turnover.ErrUnfit, device.ErrForeign, content)
	}
	if w.Method != "" {
		h.did("reset " + name + " " + w.Method)
	}
	if w.Scrub != "" {
		delete(h.content, name)
		delete(h.hidden, name)
		h.did("erase " + name + " " + w.Scrub)
	}
	return device.Report{Done: "done", Erased: w.Scrub != "", Appearance: t.Appearance(), Size: diskSize}, nil
}

// did records a request. h.mu is held.
func (h *helpers) did(what string) {
	h.done = append(h.done, what)
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *helpers) holders(_ context.Context, nodes []string) ([]device.Holder, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []device.Holder
	for _, node := range nodes {
		if pod := h.open[path.Base(node)]; pod != "" {
			all = append(all, device.Holder{PID: 7, Command: "dd", PodUID: strings.TrimPrefix(pod, "host")})
		}
	}
	if h.unread != "" {
		all = append(all, device.Holder{PodUID: h.unread, Unread: "process 7: it has too many descriptors"})
	}
	return all, nil
}

// slowWork delays resets and erasures from now on.
func (s *story) slowWork([]string) error {
	s.helpers.mu.Lock()
	defer s.helpers.mu.Unlock()
	s.helpers.slow = make(chan struct{})
	return nil
}

// useHelpers gives the story helpers, as on a machine with real devices.
func (s *story) useHelpers([]string) error {
	s.helpers = newHelpers()
	return nil
}

func (s *story) write(words []string) error {
	s.helpers.mu.Lock()
	defer s.helpers.mu.Unlock()
	s.helpers.content[words[0]] = strings.Join(words[1:], " ")
	return nil
}

// noCheckpoint removes the kubelet's checkpoint.
func (s *story) noCheckpoint([]string) error {
	return os.Remove(s.path("plugins/" + checkpoint.File))
}

func (s *story) open(words []string) error {
	s.helpers.mu.Lock()
	defer s.helpers.mu.Unlock()
	s.helpers.open[words[0]] = strings.Join(words[1:], " ")
	return nil
}

// setUnreadable makes the processes of a pod unreadable, or of no pod.
func (s *story) setUnreadable(words []string) error {
	s.helpers.mu.Lock()
	defer s.helpers.mu.Unlock()
	s.helpers.unread = strings.Join(words, "")
	return nil
}

// checkRequest waits for the next request to the helpers and compares it.
func (s *story) checkRequest(words []string) error {
	want, limit := strings.Join(words, " "), time.After(patience)
	for {
		s.helpers.mu.Lock()
		done, changed := slices.Clone(s.helpers.done), s.helpers.changed
		if len(done) > 0 {
			s.helpers.done = done[1:]
		}
		s.helpers.mu.Unlock()
		if len(done) > 0 {
			if done[0] != want {
				return fmt.Errorf("they were asked to %s", done[0])
			}
			return nil
		}
		select {
		case <-changed:
		case <-limit:
			return errors.New("they were asked for nothing")
		}
	}
}

// checkNoRequest checks that there was no further request to the helpers.
func (s *story) checkNoRequest([]string) error {
	s.helpers.mu.Lock()
	defer s.helpers.mu.Unlock()
	if len(s.helpers.done) > 0 {
		return fmt.Errorf("they were asked to %s", strings.Join(s.helpers.done, ", "))
	}
	return nil
}

// allocateAtLast repeats the request, as new pods would, until it succeeds.
func (s *story) allocateAtLast(words []string) error {
	limit := time.After(patience)
	for {
		changed := s.kubelet.Changed()
		err := s.allocate(words)
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-limit:
			return err
		}
	}
}

// hide puts data on a disk that only a full read finds.
func (s *story) hide(words []string) error {
	s.helpers.mu.Lock()
	defer s.helpers.mu.Unlock()
	s.helpers.hidden[words[0]] = true
	return nil
}

// checkReads checks how often a disk was read in full since the start of the story.
func (s *story) checkReads(words []string) error {
	s.helpers.mu.Lock()
	defer s.helpers.mu.Unlock()
	if got := fmt.Sprint(s.helpers.read[words[0]]); got != words[1] {
		return fmt.Errorf("it was read %s times", got)
	}
	return nil
}

// client returns a client of the daemon's control socket.
func (s *story) client() api.Client {
	return api.Client{Socket: s.path("run") + "/control.sock"}
}

// find returns the device with that name of its directory, or with that ID, from the control socket.
func (s *story) find(name string) (d api.Device, err error) {
	var all []api.Device
	if err := s.client().Get(context.Background(), "/v1/devices", &all); err != nil {
		return d, err
	}
	i := slices.IndexFunc(all, func(d api.Device) bool { return path.Base(d.SysPath) == name || d.ID == name })
	if i < 0 {
		return d, errors.New("no such device")
	}
	return all[i], nil
}

// state waits until the lease of a disk has that state and reason.
func (s *story) state(words []string) error {
	want := strings.Join(words[1:], " ")
	return s.pollDevice(words[0], func(d api.Device) error {
		if got := strings.TrimSpace(d.State + " " + d.Reason); got != want {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
}

// pollDevice polls a device until the check returns nil.
func (s *story) pollDevice(name string, check func(api.Device) error) error {
	return eventually(func() error {
		d, err := s.find(name)
		if err != nil {
			return err
		}
		return check(d)
	})
}

// eventually repeats a check until it returns nil, and returns its last error after [patience].
func eventually(check func() error) error {
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for limit := time.After(patience); ; {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-limit:
			return err
		}
	}
}

// why waits until the reasons for a decision about a device contain a text.
func (s *story) why(words []string) error {
	return eventually(func() error { return s.whyNow(words) })
}

func (s *story) whyNow(words []string) error {
	var answer api.Answer
	if err := s.client().Get(context.Background(), "/v1/why?what="+words[0], &answer); err != nil {
		return err
	}
	want := strings.Join(words[1:], " ")
	var all []string
	for _, step := range answer.Found[0].Steps {
		all = append(all, step.Why)
	}
	all = append(all, answer.Found[0].Verdict)
	if !slices.ContainsFunc(all, func(why string) bool { return strings.Contains(why, want) }) {
		return fmt.Errorf("the reasons are %q", all)
	}
	return nil
}

// whyOpensNothing explains a disk that a pod holds. Its explanation must not open the disk.
func (s *story) whyOpensNothing(words []string) error {
	probed := func() int {
		s.helpers.mu.Lock()
		defer s.helpers.mu.Unlock()
		return s.helpers.probed
	}
	before := probed()
	if err := s.whyNow(words); err != nil {
		return err
	}
	if after := probed(); after != before {
		return fmt.Errorf("the explanation probed %d disks", after-before)
	}
	return nil
}

// waitHeld waits until the daemon knows which pod holds a device.
func (s *story) waitHeld(words []string) error {
	return s.pollDevice(words[0], func(d api.Device) error {
		if d.Allocated == nil {
			return errors.New("no pod is known to hold it")
		}
		return nil
	})
}

// evidence checks with which evidence a disk is offered.
func (s *story) evidence(words []string) error {
	d, err := s.find(words[0])
	switch {
	case err != nil:
		return err
	case d.Evidence == nil || d.Evidence.Kind != words[1]:
		return fmt.Errorf("it is %+v", d.Evidence)
	}
	return nil
}

// adopt adopts a disk, like the operator.
func (s *story) adopt(words []string) error { return s.post(words[0], "adopt", api.Change{}) }

// post changes a device.
func (s *story) post(name, act string, change api.Change) error {
	d, err := s.find(name)
	if err != nil {
		return err
	}
	return s.client().Post(context.Background(), "/v1/devices/"+d.ID+"/"+act, change, new(api.ChangedDevice))
}

func (s *story) cordon(words []string) error {
	return s.post(words[0], "cordon", api.Change{Reason: words[1]})
}

func (s *story) uncordon(words []string) error { return s.post(words[0], "uncordon", api.Change{}) }

func (s *story) unhealthy(words []string) error {
	return eventually(func() error {
		var status api.Status
		err := s.client().Get(context.Background(), "/v1/status", &status)
		if got := []string{fmt.Sprint(status.Devices.Unhealthy), fmt.Sprint(status.Devices.Cordoned)}; err == nil && !slices.Equal(got, words) {
			err = fmt.Errorf("they are %v", got)
		}
		return err
	})
}

func (s *story) adoptFails(words []string) error {
	err, want := s.adopt(words), strings.Join(words[1:], " ")
	if err == nil || !strings.Contains(err.Error(), want) {
		return fmt.Errorf("%w, want an error with %q", err, want)
	}
	return nil
}
