// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/device"
)

// whiteout creates the device node char 0:0, because every process may create this one (vfs_mknod).
func whiteout(t *testing.T, h *device.Host, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(h.Path(name)), 0o755); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(h.Path(name))
	if err := unix.Mknod(h.Path(name), unix.S_IFCHR|0o600, 0); err != nil {
		t.Fatalf("make %s: %v", name, err)
	}
}

func TestReloadWarning(t *testing.T) {
	const lost = "/dev/kvm has no link /dev/char/0:0: systemctl daemon-reload would take it from running containers"
	for _, test := range []struct {
		name string
		make func(t *testing.T, h *device.Host)
		want string
	}{
		{"no device node, as in a recording", func(*testing.T, *device.Host) {}, ""},
		{"no link", func(t *testing.T, h *device.Host) { whiteout(t, h, "/dev/kvm") }, lost},
		{"a link", func(t *testing.T, h *device.Host) {
			whiteout(t, h, "/dev/kvm")
			link(t, h, "../kvm", "/dev/char/0:0")
		}, ""},
		{"a link to what is gone", func(t *testing.T, h *device.Host) {
			whiteout(t, h, "/dev/kvm")
			link(t, h, "../none", "/dev/char/0:0")
		}, lost},
		{"a link to something else", func(t *testing.T, h *device.Host) {
			whiteout(t, h, "/dev/kvm")
			link(t, h, "../net/tun", "/dev/char/0:0")
		}, lost},
	} {
		t.Run(test.name, func(t *testing.T) {
			h, devices := loadMachine(t, "node-virtual")
			test.make(t, h)
			for _, rules := range [][]device.Rule{anyNode(map[string]string{"DEVNAME": "/dev/kvm"}), grouped(device.Group{Nodes: []string{"/dev/kvm"}}, nil)} {
				sightings := inspectAll(h, rules, devices)
				if last := sightings[len(sightings)-1]; last.Warning != test.want || last.Offer != nil {
					t.Errorf("%s: warning %q, want %q; held back: %v", last.Device.ID, last.Warning, test.want, last.Offer)
				}
			}
		})
	}
}

func link(t *testing.T, h *device.Host, target, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(h.Path(name)), 0o755); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(h.Path(name))
	if err := os.Symlink(target, h.Path(name)); err != nil {
		t.Fatal(err)
	}
}
