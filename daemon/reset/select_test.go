// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
)

// TestSelected checks that the helper does only work that a resource of the configuration names.
func TestSelected(t *testing.T) {
	const scratch = `
[[resource]]
name = "example.org/scratch"
class = "nvme"
match = { ID_MODEL = "Scratch*" }
[resource.reset]
method = "auto"
scrub = "discard"
when = "both"
`
	const kept = `
[[resource]]
name = "example.org/kept"
class = "nvme"
match = { "ATTR{wwid}" = "eui.01" }
[resource.reset]
method = "none"
scrub = "none"
`
	erase := func(resource, scrub string) Request {
		r := eraseOf0(scrub)
		r.Resource = resource
		return r
	}
	byHand := func(resource, scrub string) Request {
		r := erase(resource, scrub)
		r.Tenant, r.ByHand = false, true
		return r
	}
	reset := func(resource, method string) Request {
		r := resetOf0(method)
		r.Resource = resource
		return r
	}
	for _, c := range []struct {
		name    string
		text    string
		request Request
		want    Result
		detail  string
	}{
		{"as configured", scratch, erase("example.org/scratch", "discard"), OK, ""},
		{"another scrub", scratch, erase("example.org/scratch", "zero"), Refused, `resource example.org/scratch (FILE:8) has scrub "discard", not "zero"`},
		{"another scrub by hand", scratch, byHand("example.org/scratch", "zero"), OK, ""},
		{"a scrub of a resource that does not erase", kept, erase("example.org/kept", "discard"), Refused, `(FILE:8) has scrub "none", not "discard"`},
		{"that by hand", kept, byHand("example.org/kept", "zero"), OK, ""},
		{"a disk of several pods, by hand", strings.Replace(kept, "match", "shares = 2\nmatch", 1), byHand("example.org/kept", "zero"), Refused, "offers disks that other processes may use, so metalplug does not erase them"},
		{"a disk that the host may use, by hand", strings.Replace(kept, "match", "allow_in_use = true\nmatch", 1), byHand("example.org/kept", "zero"), Refused, "offers disks that other processes may use, so metalplug does not erase them"},
		{"the method of the class", scratch, reset("example.org/scratch", "nvme-controller"), OK, ""},
		{"another method", scratch, reset("example.org/scratch", "pci:flr"), Refused, `(FILE:7) has reset method "auto", not "pci:flr"`},
		{"a method of a resource without", kept, reset("example.org/kept", "nvme-controller"), Refused, `(FILE:7) has reset method "none", not "nvme-controller"`},
		{"no resource", scratch, erase("", "discard"), Refused, `no resource "" is configured (FILE)`},
		{"a resource that is not there", scratch, erase("example.org/other", "discard"), Refused, `no resource "example.org/other" is configured (FILE)`},
		{"a disk that it does not match", strings.Replace(scratch, "Scratch*", "Other*", 1), erase("example.org/scratch", "discard"), Refused, "resource example.org/scratch (FILE:5) does not select nvme0n1: "},
		{"a disk that it does not match, by hand", strings.Replace(scratch, "Scratch*", "Other*", 1), byHand("example.org/scratch", "zero"), Refused, "does not select nvme0n1: "},
		{"a disk of an earlier resource", kept + scratch, erase("example.org/scratch", "discard"), Refused, "does not select nvme0n1: the device belongs to example.org/kept"},
		{"a disk of a later resource", scratch + kept, erase("example.org/kept", "discard"), Refused, "does not select nvme0n1: the device belongs to example.org/scratch"},
		{"an excluded disk", strings.Replace(scratch, "match =", `exclude = { ID_SERIAL_SHORT = "S1" }`+"\nmatch =", 1), erase("example.org/scratch", "discard"), Refused, "excluded by ID_SERIAL_SHORT"},
		{"a file that is wrong", scratch + "nonsense = 1\n", erase("example.org/scratch", "discard"), Refused, "read the configuration: FILE:10: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, n := oneNVMe(t)
			n.fill()
			was := string(n.data)
			m.files(map[string]string{
				"/run/udev/data/b259:0": "S:disk/by-id/x\nI:1\nE:ID_MODEL=Scratch 1\nE:ID_SERIAL_SHORT=S1\nG:systemd\nV:1\n",
				disk0 + "/uevent":       "MAJOR=259\nMINOR=0\nDEVNAME=nvme0n1\nDEVTYPE=disk\n",
			})
			file := filepath.Join(t.TempDir(), "m.toml")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			m.settings = func() (config.Config, error) { return config.Load(file) }
			c.request.TimeoutMS = minute
			got := (&task{host: m.host, Request: c.request}).attempt(t.Context())
			if detail := strings.ReplaceAll(got.Detail, file, "FILE"); got.Result != c.want || !strings.Contains(detail, c.detail) {
				t.Errorf("answer is %s: %s; want %s with %q", got.Result, detail, c.want, c.detail)
			}
			if c.want != OK {
				m.checkUntouched()
				if string(n.data) != was {
					t.Error("the disk has changed")
				}
			}
		})
	}
}

// TestProvenWithoutConfiguration checks that a request that only reads needs no resource.
func TestProvenWithoutConfiguration(t *testing.T) {
	m, _ := oneNVMe(t)
	m.settings = func() (config.Config, error) { return config.Config{}, os.ErrNotExist }
	for _, r := range []Request{
		{Do: Probe, Target: device.Target{SysPath: disk0, Class: "nvme"}},
		surveyOf0(0),
		{Do: Prepare, Target: device.Target{SysPath: disk0, Class: "nvme", Identity: byWWID("eui.01"), Fingerprint: Blank}},
	} {
		r.TimeoutMS = minute
		if got := (&task{host: m.host, Request: r}).attempt(t.Context()); got.Result != OK {
			t.Errorf("%s: %+v", r.Do, got)
		}
	}
}

// TestReplacedAfterSelection puts another disk in the selected disk's place after the configuration has selected the disk. A
// process with uid 0 can stop the helper at this point for any length of time. The request's identity fits both disks.
func TestReplacedAfterSelection(t *testing.T) {
	m, n := oneNVMe(t)
	n.fill()
	was := string(n.data)
	m.selects = func(r Request) error {
		err := m.checkSelected(r)
		m.files(map[string]string{disk0 + "/diskseq": "10\n", disk0 + "/wwid": "eui.02\n"})
		n.seq = 10
		return err
	}
	r := eraseOf0("zero")
	r.Identity = map[string]string{"nsid": "1"}
	m.expect(r, Gone, "was replaced by another disk")
	m.checkUntouched()
	if string(n.data) != was {
		t.Error("the disk has changed")
	}
}

// TestReconfiguredAfterSelection takes the disk out of the configuration after the configuration has selected the disk. A
// process with uid 0 can stop the helper at this point, and continue it after the host has used the disk.
func TestReconfiguredAfterSelection(t *testing.T) {
	m, n := oneNVMe(t)
	file := filepath.Join(t.TempDir(), "m.toml")
	configure := func(disk string) {
		text := "[[resource]]\nname = \"example.org/scratch\"\nclass = \"nvme\"\nmatch = { \"ATTR{wwid}\" = \"" + disk + "\" }\n[resource.reset]\nscrub = \"zero\"\nmethod = \"none\"\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure("eui.01")
	m.settings = newHost(file).settings
	m.selects = func(r Request) error {
		err := m.checkSelected(r)
		configure("eui.02")
		n.ext4()
		return err
	}
	r := eraseOf0("zero")
	r.Resource = "example.org/scratch"
	m.expect(r, Refused, "does not select nvme0n1")
	if n.blank() {
		t.Error("the host's data is gone")
	}
}
