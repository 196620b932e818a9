// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

// resetOf0 is the request to reset disk0.
func resetOf0(method string) Request {
	return Request{Do: Prepare, Target: device.Target{SysPath: disk0, Class: "nvme", Identity: byWWID("eui.01")}, Work: device.Work{Method: method}, TimeoutMS: minute}
}

const resetIoctl = "ioctl nvme0 0x4e44 0000000000000000"

// TestComesBack checks that a reset ends when the same disk is present again, even if it has a new diskseq.
func TestComesBack(t *testing.T) {
	for _, c := range []struct {
		name   string
		after  time.Duration // time until the device is present again
		wwid   string
		state  string
		want   Result
		detail string
	}{
		{"soon", 3 * time.Second, "eui.01", "live", OK, ""},
		{"never", time.Hour, "eui.01", "live", Gone, "nvme0n1 has not come back: " + disk0 + " does not exist"},
		{"another one", 3 * time.Second, "eui.02", "live", Refused, `wwid is "eui.02", not "eui.01"`},
		{"given up", 3 * time.Second, "eui.01", "dead", Failed, `controller nvme0 is "dead"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, _ := oneNVMe(t)
				m.onIoctl = func(n *fakeNode, _ uintptr, _ []byte) (int, error) {
					away := m.root + "/away"
					m.nodes["/dev/nvme0n1"].seq = 10
					m.rename(m.root+disk0, away)
					m.files(map[string]string{"/away/wwid": c.wwid + "\n", "/away/diskseq": "10\n", controller0 + "/state": c.state + "\n"})
					time.AfterFunc(c.after, func() { m.rename(away, m.root+disk0) })
					return 0, nil
				}
				r := resetOf0("nvme-controller")
				r.Identity["diskseq"] = "9"
				began := time.Now()
				m.expect(r, c.want, c.detail)
				if took := time.Since(began); c.want == OK && (took < c.after || took > c.after+time.Second) || c.want != OK && took < r.Timeout() {
					t.Errorf("it took %v", took)
				}
				if !slices.Equal(m.calls, []string{resetIoctl}) {
					t.Errorf("it did %q", m.calls)
				}
			})
		})
	}
}

const (
	subsystem0  = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0"
	headPath    = subsystem0 + "/nvme0n1"
	function1   = "/sys/devices/pci0000:00/0000:00:1e.0/0000:03:00.0"
	controller1 = function1 + "/nvme/nvme1"
)

// twoPaths returns a machine with a disk that has two controllers.
func twoPaths(t *testing.T) (*machine, *fakeNode) {
	t.Helper()
	m := newMachine(t)
	m.controller(function0, "nvme0", "S1")
	m.controller(function1, "nvme1", "S1")
	n := m.disk(headPath, "259:8", "eui.09")
	m.files(map[string]string{
		subsystem0 + "/subsystem": in(subsystem0, "/sys/class/nvme-subsystem"), subsystem0 + "/nvme0": in(subsystem0, controller0),
		subsystem0 + "/nvme1": in(subsystem0, controller1), "/sys/class/nvme-subsystem/nvme-subsys0": in("/sys/class/nvme-subsystem", subsystem0),
	})
	for i, c := range []string{controller0, controller1} {
		hidden := c + "/nvme0c" + string(rune('0'+i)) + "n1"
		m.files(map[string]string{hidden + "/hidden": "1\n", hidden + "/subsystem": in(hidden, "/sys/class/block"), hidden + "/nsid": "1\n"})
	}
	return m, n
}

// addDeepDirs adds directories with a path that is too long for open, which therefore fails even for root.
func (m *machine) addDeepDirs(dir string) {
	m.Helper()
	root, err := os.OpenRoot(m.root + dir)
	if err != nil {
		m.Fatal(err)
	}
	defer root.Close()
	if err := root.MkdirAll(strings.Repeat(strings.Repeat("x", 255)+"/", 17), 0o755); err != nil {
		m.Fatal(err)
	}
}
