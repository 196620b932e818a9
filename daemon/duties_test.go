// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// However often it has not answered: only an answer can tell that another plugin has nothing to do with us any more.
func TestKubeletThatDoesNotCountIsAskedAgain(t *testing.T) {
	d := &daemon{endpoints: &endpoints{}}
	d.Config.Paths.PodResources = filepath.Join(t.TempDir(), "none.sock")
	pause := 10 * time.Second
	for range 10 {
		if pause = d.compare(t.Context(), pause); pause <= 0 || pause > lastComparison {
			t.Fatalf("asked again after %v", pause)
		}
	}
}

func TestStatusLine(t *testing.T) {
	snapshot := &inventory.Snapshot{
		Offers: map[string]*inventory.Offer{
			"a/x": {Devices: []*inventory.Status{{Healthy: true}, {Healthy: false}}},
			"a/y": {Devices: []*inventory.Status{{Healthy: true}}},
		},
		Others: []*inventory.Status{{}},
	}
	const counts = "2 devices healthy, 1 unhealthy, 1 seen and not offered; kubelet connected to 1 of 2 resources"
	for _, c := range []struct{ refused, want string }{
		{"", counts},
		{"/etc/a.toml:2: class: is missing", "the configuration was not reloaded: /etc/a.toml:2: class: is missing; " + counts},
		{"a:1: one\nb:2: two", "the configuration was not reloaded: a:1: one; " + counts},
	} {
		if got := statusLine(snapshot, 1, 2, c.refused); got != c.want {
			t.Errorf("refused %q:\n got %q\nwant %q", c.refused, got, c.want)
		}
	}
}
