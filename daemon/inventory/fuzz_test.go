// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/integration/udevtest"
)

// FuzzState starts the inventory with random state files. The next start must be able to read the file that the first
// start has saved.
func FuzzState(f *testing.F) {
	for _, text := range []string{
		`{"version":2,"health":{},"devices":[]}`,
		`{"version":2,"devices":[{"id":"a","class":"nvme","resource":"x/y","numaNode":-1,"present":true,"state":"in-use","hold":"started","used":true,"tenants":["p"]}]}`,
		`{"version":2,"devices":[{"id":"node-A-w","class":"node","resource":"example.org/widget","state":"failed","used":true,"order":"later"}]}`,
		`{"version":2,"devices":[{"id":"node-A-w","class":"node","resource":"example.org/widget","state":"of a later version"}]}`,
		`{"version":2,"cordons":{"node-A-w":{"reason":"x"}},"disks":{"m":{"kind":"blank"}}}`,
		`{"version":3}`, `{`, ``, `null`, `{"version":2,"devices":null}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		state := t.TempDir()
		if err := os.WriteFile(filepath.Join(state, "state.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		m := udevtest.New(t, widget("w0", "A"))
		start(t, m, state, settledSoon).end()
		var log strings.Builder
		r := start(t, m, "", logs(&log, state), func(o *inventory.Options) { o.Machine = "" })
		if snapshot, _ := r.Snapshot(); snapshot.Find("node-A-w") == nil {
			t.Errorf("the device is missing: %s", describe(snapshot))
		}
		r.end()
		if strings.Contains(log.String(), "state lost") {
			t.Errorf("%q was saved as something that cannot be read:\n%s", text, log.String())
		}
	})
}
