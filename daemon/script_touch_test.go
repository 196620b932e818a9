// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/turnover"
)

// helpers stand in a story for the programs that touch devices.
type helpers struct {
	mu      sync.Mutex
	content map[string]string // of disks, by name: "nvme1n1"
	open    map[string]string // the pod that has a device open; "host" is none
	done    []string          // "erase nvme1n1 zero"
	changed chan struct{}     // closed and replaced when something was done
}

func newHelpers() *helpers {
	return &helpers{content: make(map[string]string), open: make(map[string]string), changed: make(chan struct{})}
}

func (h *helpers) touch() *device.Touch {
	return &device.Touch{Probe: h.probe, Reset: h.reset, Erase: h.erase, Holders: h.holders}
}

func (h *helpers) probe(_ context.Context, t device.Target, held bool) (device.Reading, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if held {
		return device.Reading{}, nil
	}
	return device.Reading{Content: h.content[path.Base(t.SysPath)]}, nil
}

func (h *helpers) reset(_ context.Context, t device.Target, method string, leftover bool) (string, error) {
	return h.act(t, "reset", method, leftover)
}

func (h *helpers) erase(_ context.Context, t device.Target, scrub string, leftover bool) (string, error) {
	return h.act(t, "erase", scrub, leftover)
}

func (h *helpers) act(t device.Target, what, method string, leftover bool) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	name := path.Base(t.SysPath)
	if h.content[name] != "" && !leftover {
		return "", fmt.Errorf("%w: %s is on it", turnover.ErrUnfit, h.content[name])
	}
	if what == "erase" {
		delete(h.content, name)
	}
	h.done = append(h.done, what+" "+name+" "+method)
	close(h.changed)
	h.changed = make(chan struct{})
	return what, nil
}

func (h *helpers) holders(_ context.Context, nodes []string) ([]device.Holder, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []device.Holder
	for _, node := range nodes {
		if pod := h.open[path.Base(node)]; pod != "" {
			all = append(all, device.Holder{PID: 7, Command: "dd", Node: node, PodUID: strings.TrimPrefix(pod, "host")})
		}
	}
	return all, nil
}

// useHelpers lets the story have helpers, as a machine with real devices has.
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

func (s *story) open(words []string) error {
	s.helpers.mu.Lock()
	defer s.helpers.mu.Unlock()
	s.helpers.open[words[0]] = strings.Join(words[1:], " ")
	return nil
}

// touched waits until that is what the helpers have done next.
func (s *story) touched(words []string) error {
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

// untouched wants the helpers to have been asked for nothing more.
func (s *story) untouched([]string) error {
	s.helpers.mu.Lock()
	defer s.helpers.mu.Unlock()
	if len(s.helpers.done) > 0 {
		return fmt.Errorf("they were asked to %s", strings.Join(s.helpers.done, ", "))
	}
	return nil
}

// allocateAtLast asks again, as pod after pod would, until the devices are there.
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
