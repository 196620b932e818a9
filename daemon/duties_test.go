// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"

	"github.com/metalplug/metalplug/daemon/inventory"
)

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
