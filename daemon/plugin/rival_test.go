// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/plugin"
)

// What the kubelet counts, one comparison after the other, and what the endpoint makes of it: after what time it is to be
// compared again, and whether the endpoint registers again.
func TestCompare(t *testing.T) {
	const soon, contested = time.Second, 10 * time.Second
	id := []string{"node-A-widget"}
	rivals := []string{"node-A-widget", "x"}
	type comparison struct {
		counted []string
		again   time.Duration
		anew    bool // it registers again
	}
	for _, test := range []struct {
		name        string
		comparisons []comparison
	}{
		{"nothing is wrong", []comparison{{id, 0, false}, {id, 0, false}}},
		{"a list is under way", []comparison{{nil, soon, false}, {id, 0, false}}},
		{"a device has just gone", []comparison{{[]string{"y"}, soon, false}, {[]string{"z"}, soon, false}, {id, 0, false}}},
		{"another plugin comes, and ends", []comparison{
			{rivals, soon, false},
			{rivals, contested, false},
			{rivals, contested, false},
			{nil, soon, false},
			{nil, contested, true},
			{id, 0, false},
		}},
		{"it ends, and our next list is there before that is noticed", []comparison{
			{rivals, soon, false}, {rivals, contested, false}, {id, soon, false}, {id, contested, true}, {id, 0, false},
		}},
		{"it has come and ended before anybody compared", []comparison{{nil, soon, false}, {nil, contested, true}, {id, 0, false}}},
		{"once a minute is enough", []comparison{
			{nil, soon, false}, {nil, contested, true}, {nil, soon, false}, {nil, contested, false}, {nil, contested, false}, {id, 0, false},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			registered := make(chan error, 10)
			b := newBench(t, func(e *plugin.Endpoint) {
				e.Tally.Registered = func(_ string, err error) { registered <- err }
			})
			k := b.startKubelet()
			b.allocatable(k, 1)
			<-registered
			for i, c := range test.comparisons {
				if again := b.endpoint.Compare(c.counted); again != c.again {
					t.Fatalf("comparison %d: again after %v, want %v", i, again, c.again)
				}
				if c.anew {
					if err := <-registered; err != nil {
						t.Fatal(err)
					}
					b.allocatable(k, 1)
				}
			}
			select {
			case <-registered:
				t.Error("registered again without need")
			default:
			}
		})
	}
}

// A registration that is of no use, as where another kubelet's PodResources is asked, is repeated less and less often.
func TestRegistrationOfNoUse(t *testing.T) {
	registered := make(chan error, 10)
	b := newBench(t, func(e *plugin.Endpoint) {
		e.Tally.Registered = func(_ string, err error) { registered <- err }
	})
	k := b.startKubelet()
	b.allocatable(k, 1)
	<-registered
	for _, pause := range []time.Duration{0, time.Minute, 2 * time.Minute, 4 * time.Minute} {
		b.endpoint.Compare(nil)
		b.endpoint.AgeContest(pause - time.Second)
		if pause > 0 && b.endpoint.Compare(nil) != 10*time.Second {
			t.Errorf("it is not waited for %v", pause)
		}
		b.endpoint.AgeContest(time.Second)
		b.endpoint.Compare(nil)
		if err := <-registered; err != nil {
			t.Fatal(err)
		}
		b.allocatable(k, 1)
	}
}

// Without a healthy device, and without a kubelet, there is nothing to compare.
func TestCompareNothing(t *testing.T) {
	b := newBench(t)
	if again := b.endpoint.Compare(nil); again != 0 {
		t.Errorf("without a kubelet: again after %v", again)
	}
	k := b.startKubelet()
	b.allocatable(k, 1)
	b.machine.Unplug("/sys/devices/virtual/widget/widget0")
	b.allocatable(k, 0)
	if again := b.endpoint.Compare(nil); again != 0 {
		t.Errorf("without a device: again after %v", again)
	}
}

func TestForeign(t *testing.T) {
	b := newBench(t)
	if got := b.endpoint.Foreign([]string{"node-A-widget"}); got != "" {
		t.Errorf("foreign %q, want none", got)
	}
	if got := b.endpoint.Foreign([]string{"node-A-widget", "x"}); got != "x" {
		t.Errorf("foreign %q, want x", got)
	}
}

// Sockets of other plugins are hinted at; the kubelet's checkpoint, the files that it is written to, and our own are not.
func TestOthers(t *testing.T) {
	b := newBench(t)
	others := b.endpoint.Watch.Others()
	ours, _ := b.endpoint.Watch.Subscribe()
	touch := func(name string) {
		t.Helper()
		path := filepath.Join(b.dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{".213", "kubelet_internal_checkpoint", "mp-x.sock"} {
		touch(name)
	}
	<-ours // all that came before has been seen
	select {
	case <-others:
		t.Error("a hint at another plugin")
	default:
	}
	touch("nvidia-gpu.sock")
	<-others
	if slices.Contains(b.sockets(), "nvidia-gpu.sock") {
		t.Error("it counts as ours")
	}
}
