// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/kubelet"
)

// drives answers the requests to the helpers. Each disk has data until it is erased.
type drives struct {
	mu     sync.Mutex
	erased map[string]string // the erase methods; keys are disk names
	open   string            // the node that a process of the host has open
}

func (d *drives) touch() *device.Touch {
	const size = 1 << 20
	return &device.Touch{
		Probe: func(_ context.Context, t device.Target, held bool) (device.Report, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			if held || d.erased[path.Base(t.SysPath)] != "" {
				return device.Report{Size: size}, nil
			}
			return device.Report{Content: "ext4", Fingerprint: "5eed:ext4", Size: size}, nil
		},
		Survey: func(context.Context, device.Target, int64) (device.Report, error) {
			return device.Report{}, errors.New("no disk is to be read here")
		},
		Prepare: func(_ context.Context, t device.Target, w device.Work) (device.Report, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.erased[path.Base(t.SysPath)] = w.Scrub
			return device.Report{Done: "done", Erased: w.Scrub != "", Appearance: t.Appearance(), Size: size}, nil
		},
		Holders: func(_ context.Context, nodes []string) (all []device.Holder, _ error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			for _, node := range nodes {
				if path.Base(node) == d.open {
					all = append(all, device.Holder{PID: 7, Command: "fio"})
				}
			}
			return all, nil
		},
	}
}

// scrubs returns the erasures so far.
func (d *drives) scrubs() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Sprint(d.erased)
}

// recordAdoptable returns a recording of disks with data. It has NVMe drives, of which one is mounted, and a virtual disk
// without an identity.
func recordAdoptable() string {
	text := "F: /proc/sys/kernel/random/boot_id=b007\n\nF: /proc/self/mountinfo=30 22 259:4 / /data rw - ext4 /dev/nvme4n1 rw\n\n"
	for i := 1; i <= 6; i++ {
		text += fmt.Sprintf("P: /devices/pci0000:00/0000:00:0%[1]d.0/nvme/nvme%[1]d\nE: SUBSYSTEM=nvme\nA: state=live\nA: transport=pcie\n\n"+
			"P: /devices/pci0000:00/0000:00:0%[1]d.0/nvme/nvme%[1]d/nvme%[1]dn1\nN: nvme%[1]dn1\nE: SUBSYSTEM=block\nE: DEVTYPE=disk\nE: DEVNAME=/dev/nvme%[1]dn1\n"+
			"E: MAJOR=259\nE: MINOR=%[1]d\nA: dev=259:%[1]d\nA: diskseq=%[1]d\nA: wwid=eui.%[1]d\nA: size=1024\n\n", i)
	}
	return text + "P: /devices/pci0000:00/0000:00:0f.0/virtio1/block/vda\nN: vda\nE: SUBSYSTEM=block\nE: DEVTYPE=disk\nE: DEVNAME=/dev/vda\n" +
		"E: MAJOR=254\nE: MINOR=0\nE: ID_PATH=pci-0000:00:0f.0\nA: dev=254:0\nA: diskseq=70\nA: size=1024\n\n" +
		"P: /devices/pci0000:00/0000:00:10.0/widget/w0\nN: w0\nE: SUBSYSTEM=widget\nE: DEVNAME=/dev/w0\nE: MAJOR=240\nE: MINOR=0\nE: ID_SERIAL=S1\nE: ID_SERIAL_SHORT=S1\n\n"
}

const adoptableResources = `
[[resource]]
name = "example.org/nvme"
class = "nvme"
exclude = { DEVNAME = "/dev/nvme5n1" }
reset = { scrub = "zero", method = "none" }

[[resource]]
name = "example.org/virtual"
class = "node"
match = { DEVNAME = "/dev/vda" }
reset = { scrub = "zero" }

[[resource]]
name = "example.org/widget"
class = "node"
match = { SUBSYSTEM = "widget" }
`

// TestAdoptIsRefused checks that the command and the control socket refuse these disks, and that nothing is erased.
func TestAdoptIsRefused(t *testing.T) {
	d := &drives{erased: make(map[string]string), open: "nvme6n1"}
	n := newNode(t, recordAdoptable(), adoptableResources, d.touch())
	n.inventory.Allocated(map[string][]string{"nvme-eui.2": {"nvme-eui.2"}}, "")
	n.inventory.Confirm(kubelet.Answer{Written: time.Now(), Booked: map[string][]string{"nvme-eui.3": {"A"}}})
	n.inventory.Confirm(kubelet.Answer{Asked: time.Now(), Holdings: map[string]kubelet.Holding{"nvme-eui.3": kubelet.Held}})
	const virtual = "node-pci-0000:00:0f.0"
	for _, c := range []struct {
		name, id string
		body     string // body of the request; if empty, the test sends {} and also runs the command
		code     int
		text     string
	}{
		{"unknown", "nvme-eui.9", "", http.StatusNotFound, "no such device"},
		{"another way up", "..", "", http.StatusNotFound, "no such device"},
		{"allocated", "nvme-eui.2", "", http.StatusConflict, "busy: a pod holds the device"},
		{"held", "nvme-eui.3", "", http.StatusConflict, "busy: a pod holds the device"},
		{"in use by the host", "nvme-eui.4", "", http.StatusConflict, "in use: nvme4n1 is mounted on /data"},
		{"open on the host", "nvme-eui.6", "{}", http.StatusConflict, `busy: a process of the host has the device open ("fio", pid 7)`},
		{"of no resource", "nvme-eui.5", "", http.StatusConflict, "not possible: no resource matches the device; see metalplugctl why"},
		{"without identity", virtual, "", http.StatusConflict, "the disk has no wwid or serial number, so another disk could be mistaken for it; metalplugctl reset " + virtual + " --scrub zero erases and offers the disk"},
		{"not a disk", "node-S1-w", "", http.StatusConflict, "not possible: the device is not a disk"},
		{"no such scrub", "nvme-eui.1", `{"scrub":"shred"}`, http.StatusBadRequest, `"shred": must be one of crypto-erase,`},
		{"an unknown field", "nvme-eui.1", `{"force":true}`, http.StatusBadRequest, `unknown field "force"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if code, text := n.post(pathOf(c.id)+"/adopt", c.body); code != c.code || !strings.Contains(text, c.text) {
				t.Errorf("the daemon answers %d, %s; want %d with %q", code, text, c.code, c.text)
			}
			if c.body != "" {
				return
			}
			for _, args := range [][]string{{"adopt", c.id, "--yes"}, {"adopt", c.id}} { // the command must not ask for the ID of such a disk
				code, stdout, stderr := n.ctl(args...)
				if code != exitProblem || stdout != "" || !strings.HasPrefix(stderr, "metalplugctl: adopt "+c.id+": ") || !strings.Contains(stderr, c.text) {
					t.Errorf("%v: exit %d, %q, %q; want %q", args, code, stdout, stderr, c.text)
				}
			}
			if code, text := n.post(pathOf(c.id)+"/reset", `{"scrub":"zero","dry_run":true}`); code != c.code && c.id != virtual {
				t.Errorf("a dry run of an erasure is answered with %d, %s", code, text)
			}
		})
	}
	if got := d.scrubs(); got != "map[]" {
		t.Errorf("erased: %s", got)
	}
}

// TestDiskWithoutIdentity checks that the reason for such a disk names a command that makes the disk available.
func TestDiskWithoutIdentity(t *testing.T) {
	d := &drives{erased: make(map[string]string)}
	n := newNode(t, recordAdoptable(), adoptableResources, d.touch())
	const id = "node-pci-0000:00:0f.0"
	const why = "unproven: the disk contains ext4; metalplugctl reset " + id + " --scrub zero erases and offers the disk"
	n.waitDevice(id, func(d api.Device) bool { return d.Health == "Unhealthy" && d.Reason == why })
	if code, _, stderr := n.ctl("reset", id, "--scrub", "zero"); code != exitProblem || !strings.Contains(stderr, "Type its ID to erase it: \nmetalplugctl: erase "+id+": the typed ID does not match, so nothing was erased") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if code, _, stderr := n.ctl("reset", id, "--scrub", "zero", "--yes"); code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	n.waitDevice(id, func(d api.Device) bool { return d.Health == "Healthy" && d.Reason == "" })
	if got := d.scrubs(); got != "map[vda:zero]" {
		t.Errorf("erased: %s", got)
	}
}

// post sends a request to metalplugd like any other client.
func (n *node) post(path, body string) (code int, text string) {
	n.t.Helper()
	err := api.Client{Socket: n.socket()}.Post(n.t.Context(), path, json.RawMessage(cmp.Or(body, "{}")), new(api.ChangedDevice))
	var refused *api.Refused
	switch {
	case err == nil:
		return http.StatusOK, ""
	case !errors.As(err, &refused):
		n.t.Fatalf("%s: %v", path, err)
	}
	return refused.Code, refused.Text
}
