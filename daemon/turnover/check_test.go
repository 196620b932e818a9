// SPDX-License-Identifier: Apache-2.0

package turnover_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/audit"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/lease"
	"github.com/metalplug/metalplug/daemon/turnover"
)

// checks has the commands that check a state.
func (n *node) checks() map[string]verb {
	of := func(check func(s *inventory.Status, text string) error) verb {
		return func(name, text string) error {
			s, err := n.status(name)
			if err != nil {
				return err
			}
			if err := check(s, text); err != nil {
				return fmt.Errorf("%w; %s: healthy %t, resource %q, reason %q, evidence %+v", err, s.State, s.Healthy, s.Resource, s.Reason, s.Evidence)
			}
			return nil
		}
	}
	fails := func(word string) verb { // COMMAND-fails NAME TEXT...
		return func(name, text string) error { return matches(n.do(word+" "+name), text) }
	}
	return map[string]verb{
		"did":      func(a, b string) error { return checkEqual(n.since(), strings.TrimSpace(a+" "+b)) }, // the work of the helpers, which may be empty
		"did-also": func(a, b string) error { done := n.since(); return must(strings.Contains(done, a+" "+b), done) },
		"did-once": func(a, b string) error { done := n.since(); return must(strings.Count(done, a+" "+b) == 1, done) },
		"did-both": func(a, b string) error { // both actions, in any order
			sorted := func(text string) string {
				return strings.Join(slices.Sorted(strings.SplitSeq(text, ", ")), ", ")
			}
			return checkEqual(sorted(n.since()), sorted(a+" "+b))
		},
		"read":  n.wantRead,
		"audit": n.wantAudit,
		"healthy": of(func(s *inventory.Status, _ string) error {
			return must(s.Healthy && s.Resource != "", "it is not healthy")
		}),
		"unhealthy": of(func(s *inventory.Status, text string) error { // unhealthy NAME REASON; the reason may end in "..."
			return errors.Join(must(!s.Healthy, "it is healthy"), checkEqual(s.Reason, text))
		}),
		"withheld": of(func(s *inventory.Status, _ string) error {
			return must(!s.Healthy || s.Resource == "", "a pod may get it")
		}),
		"warns":    of(func(s *inventory.Status, text string) error { return checkEqual(s.Warning, text) }),
		"state":    of(func(s *inventory.Status, text string) error { return checkEqual(string(s.State), text) }),
		"bundle":   of(func(s *inventory.Status, text string) error { return checkEqual(s.Bundle, text) }),
		"resource": of(func(s *inventory.Status, text string) error { return checkEqual(s.Resource, text) }),
		"evidence": of(func(s *inventory.Status, text string) error {
			proven := s.Healthy && s.Resource != "" && s.State != lease.Unproven
			return must(s.Evidence.Kind == text && proven == (text != ""), "the evidence is another")
		}),
		"intact": func(name, _ string) error { // the disk has data, and the helpers have erased nothing
			n.mu.Lock()
			defer n.mu.Unlock()
			done := strings.Join(n.done, ", ")
			return must((n.content[name] != "" || n.hidden[name] > 0) && !strings.Contains(done, "erase "+name),
				fmt.Sprintf("on it is %q, and the helpers did %q", n.content[name], done))
		},
		"listing": func(string, string) error { n.lists = n.listed(); return nil },
		"unlisted": func(string, string) error { // the kubelet has received no list since the step "listing"
			return must(n.listed() == n.lists, "the kubelet was sent a list")
		},
		"safe": of(func(s *inventory.Status, _ string) error { // no pod may get the disk with data
			n.mu.Lock()
			defer n.mu.Unlock()
			name := path.Base(s.Device.SysPath)
			return must(!s.Healthy || s.Resource == "" || n.content[name] == "" && n.hidden[name] == 0, "a pod gets data")
		}),
		"blank": func(name, _ string) error { return checkEqual(n.contentOf(name), "") },
		"took":  func(duration, _ string) error { return checkEqual(n.took.String(), duration) }, // duration of the last start
		"allocate-fails": func(pod, text string) error {
			name, text, _ := strings.Cut(text, " ")
			return matches(n.allocate(pod, name), text)
		},
		"occupied": of(func(s *inventory.Status, text string) error { // occupied NAME [no]; metalplugctl cordon --wait waits while it is
			return must(s.Occupied() == (text != "no"), fmt.Sprintf("occupied: %t", s.Occupied()))
		}),
		"start-fails":         fails("start"),
		"cordon-fails":        fails("cordon"),
		"adopt-fails":         fails("adopt"),
		"by-hand-fails":       fails("by-hand"),
		"erase-by-hand-fails": func(name, text string) error { return matches(n.do("by-hand "+name+" zero"), text) },
		"untouchable": func(name, text string) error { // the error text if there are no helpers
			of := &turnover.Turnover{Inventory: n.inventory, Host: &device.Host{}, Log: n.turnover.Log, Configured: n.careOf}
			return matches(of.ByHand(context.Background(), idOf(name), api.Change{Scrub: "zero"}), text)
		},
	}
}

func (n *node) listed() uint64 {
	snapshot, _ := n.inventory.Snapshot()
	return snapshot.Offer(diskResource).Listed
}

func must(ok bool, what string) error {
	if !ok {
		return errors.New(what)
	}
	return nil
}

// checkEqual returns an error unless the texts are equal. If want ends in "...", got must begin with it. "nothing" means the
// empty text.
func checkEqual(got, want string) error {
	begin, open := strings.CutSuffix(want, "...")
	ok := got == strings.TrimPrefix(strings.TrimSpace(want), "nothing") || open && strings.HasPrefix(got, begin)
	return must(ok, fmt.Sprintf("it is %q", got))
}

func matches(err error, text string) error {
	if err == nil || !strings.Contains(err.Error(), text) {
		return fmt.Errorf("want an error with %q: %w", text, cmp.Or(err, errors.New("it did not fail")))
	}
	return nil
}

// wantRead compares the reads since the last call. "read NAME" means a read of the whole disk. "read NAME BYTE..." means
// reads from these offsets. "read nothing" means no read.
func (n *node) wantRead(name, from string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	got := strings.Join(n.read, ", ")
	n.read = nil
	var want []string
	for at := range strings.FieldsSeq(cmp.Or(from, "0 131072 262144 393216")) {
		want = append(want, name+" "+at)
	}
	if name == "nothing" {
		want = nil
	}
	return must(name == "..." || got == strings.Join(want, ", "), fmt.Sprintf("the helpers read %q", got))
}

// wantAudit compares the audit with entries of the form "EVENT METHOD RESULT of PODS", joined by ";". Empty parts and "ok"
// are omitted.
func (n *node) wantAudit(a, b string) error {
	n.end()
	f, err := os.Open(n.state + "/audit.jsonl")
	if err != nil {
		return err
	}
	defer f.Close()
	var all []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e audit.Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return err
		}
		if e.Time.IsZero() || e.Device != idOf("nvme1n1") || e.Resource != diskResource || e.Identity["wwid"] != "eui.11" || e.Identity["diskseq"] != "7" {
			return fmt.Errorf("entry %+v", e)
		}
		words := []string{string(e.Event), e.Method}
		if e.Result != "ok" {
			words = append(words, e.Result)
		}
		if len(e.Pods) > 0 {
			words = append(words, "of "+strings.Join(e.Pods, ","))
		}
		all = append(all, strings.Join(strings.Fields(strings.Join(words, " ")), " "))
	}
	return checkEqual(strings.Join(all, "; "), a+" "+b)
}
