// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/integration/udevtest"
	"github.com/metalplug/metalplug/udev"
)

// everything offers all hardware of the classes that have a match of their own.
var everything = []device.Rule{
	{Resource: "test/gpu", Class: &device.GPU},
	{Resource: "test/fpga", Class: &device.FPGA},
	{Resource: "test/infiniband", Class: &device.InfiniBand},
	{Resource: "test/nvme", Class: &device.NVMe},
}

// TestSights reads the files in testdata/sights. A case names a recording. Its other lines change the text of the recording, or are
// rules in JSON; without a rule, it has one for each class, without a match. Lines about a probe give the answer of metalplug-reset.
// After an empty line, the case lists the expected sightings in the format of [formatSightings].
func TestSights(t *testing.T) {
	files, err := filepath.Glob("testdata/sights/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no sights: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range strings.Split(string(text), "\n== ")[1:] {
			name, text, _ := strings.Cut(text, "\n")
			head, want, _ := strings.Cut(text, "\n\n")
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt")+"/"+name, func(t *testing.T) {
				h, devices, rules, probe := readSight(t, head)
				want, _, _ := strings.Cut(want, "\n#")
				if got := formatSightings(inspectAll(h, rules, devices)) + probe.kind; got != strings.TrimSpace(want) {
					t.Errorf("saw\n%s\n\nwant\n%s", got, want)
				}
			})
		}
	}
}

// probe is the probe of the disk in the recording "nvme".
type probe struct {
	t      *testing.T
	report device.Report
	err    error
	kind   string // text about the kind of the probe, or empty if there was none
}

// noAnswers are errors of a probe, by name.
var noAnswers = map[string]error{
	"claimed":    fmt.Errorf("%w: it cannot be opened exclusively", device.ErrInUse),
	"unanswered": fmt.Errorf("%w: x", device.ErrUnanswered),
	"no socket":  errors.New("connect to /run/metalplug/reset.sock: no such file or directory"),
}

func (p *probe) answer(ctx context.Context, target device.Target, held bool) (device.Report, error) {
	switch p.kind = "\nprobed as a free disk"; {
	case held:
		p.kind = "\nprobed as a held disk"
	case target.Offered:
		p.kind = "\nprobed as a disk that will be erased"
	}
	if end, ok := ctx.Deadline(); !ok || time.Until(end) > 20*time.Second {
		p.t.Error("it may take for ever")
	}
	if !target.Disk || target.SysPath == "" {
		p.t.Errorf("target is %+v", target)
	}
	return p.report, p.err
}

// readSight makes the machine and the rules of a case.
func readSight(t *testing.T, head string) (*device.Host, []udev.Device, []device.Rule, *probe) {
	t.Helper()
	var recording string
	var changes []func(h *device.Host)
	var edits []string
	var rules []device.Rule
	var note device.Note
	probe := &probe{t: t}
	touch := device.Touch{}
	for line := range strings.Lines(head) {
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		var err error
		switch verb {
		case "recording":
			recording = rest
		case "edit":
			var old, now string
			_, err = fmt.Sscanf(rest, "%q -> %q", &old, &now)
			edits = append(edits, old, now)
		case "rule":
			var rule struct {
				device.Rule
				Class string
			}
			err = strictJSON(rest, &rule)
			rule.Rule.Class, rule.Resource = device.ClassNamed(rule.Class), cmp.Or(rule.Resource, "test/"+rule.Class)
			rules = append(rules, rule.Rule)
		case "probe":
			touch.Probe, err = probe.answer, strictJSON(rest, &probe.report)
		case "no-answer":
			touch.Probe, probe.err = probe.answer, noAnswers[rest]
		case "note":
			err = strictJSON(rest, &note)
		case "missing":
			changes = append(changes, func(h *device.Host) { remove(t, h, rest) })
		case "node":
			changes = append(changes, func(h *device.Host) { makeNode(t, h, rest) })
		case "link":
			name, target, _ := strings.Cut(rest, " ")
			changes = append(changes, func(h *device.Host) { link(t, h, target, name) })
		case "file":
			name, content, _ := strings.Cut(rest, " ")
			changes = append(changes, func(h *device.Host) { write(t, h, name, content+"\n") })
		default:
			err = errors.New("unknown line")
		}
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	if rules == nil {
		rules = everything
	}
	h, devices := loadMachine(t, recording, edits...)
	h.Touch, h.Notes = touch, map[string]device.Note{"nvme-eui.36344830545001230025384300000001": note}
	for _, change := range changes {
		change(h)
	}
	return h, devices, rules, probe
}

func remove(t *testing.T, h *device.Host, name string) {
	t.Helper()
	if err := os.Remove(h.Path(name)); err != nil {
		t.Fatal(err)
	}
}

// makeNode replaces a file by the device node char 0:0, because every process may create this one (vfs_mknod).
func makeNode(t *testing.T, h *device.Host, name string) {
	t.Helper()
	remove(t, h, name)
	if err := unix.Mknod(h.Path(name), unix.S_IFCHR|0o600, 0); err != nil {
		t.Fatalf("make %s: %v", name, err)
	}
}

func link(t *testing.T, h *device.Host, target, name string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(h.Path(name)), 0o755), os.Symlink(target, h.Path(name))); err != nil {
		t.Fatal(err)
	}
}

func strictJSON(text string, value any) error {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(value)
}

// loadMachine makes a machine from a recording in testdata.
func loadMachine(t testing.TB, name string, edits ...string) (*device.Host, []udev.Device) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".umockdev"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for edit := range slices.Chunk(edits, 2) {
		if !strings.Contains(text, edit[0]) {
			t.Fatalf("%s: nothing to replace: %q", name, edit[0])
		}
		text = strings.ReplaceAll(text, edit[0], edit[1])
	}
	return machine(t, text)
}

func machine(t testing.TB, text string) (*device.Host, []udev.Device) {
	t.Helper()
	m := udevtest.New(t, text)
	devices, err := m.Enumerate()
	if err != nil {
		t.Fatal(err)
	}
	root := m.Root()
	return &device.Host{Tree: sysfs.At(root)}, devices
}

func inspectAll(h *device.Host, rules []device.Rule, devices []udev.Device) []device.Sighting {
	var sightings []device.Sighting
	for _, u := range devices {
		sightings = append(sightings, device.Inspect(h, rules, &u)...)
	}
	return sightings
}

// formatSightings formats sightings, one line for the device and one for each of its facts.
func formatSightings(sightings []device.Sighting) string {
	var out strings.Builder
	for _, s := range sightings {
		id := s.Device.ID
		if id == "" {
			id = "(" + filepath.Base(s.Device.SysPath) + ")"
		}
		fmt.Fprintf(&out, "%s", id)
		if s.Device.Model != "" {
			fmt.Fprintf(&out, " %q", s.Device.Model)
		}
		if s.Device.NUMANode >= 0 {
			fmt.Fprintf(&out, " numa%d", s.Device.NUMANode)
		}
		out.WriteByte('\n')
		if s.Offer != nil {
			fmt.Fprintf(&out, "  held back: %v\n", s.Offer)
		}
		if s.Health != nil {
			fmt.Fprintf(&out, "  sick: %v\n", s.Health)
		}
		if s.Warning != "" {
			fmt.Fprintf(&out, "  warning: %s\n", s.Warning)
		}
		for _, c := range s.Counters {
			if c.Value > 0 {
				fmt.Fprintf(&out, "  counted: %s of %s is %d\n", c.Name, filepath.Base(c.SysPath), c.Value)
			}
		}
		if s.HostUse(true) {
			out.WriteString("  used by the host, even while a pod holds the device\n")
		} else if s.HostUse(false) {
			out.WriteString("  used by the host, unless a pod holds the device\n")
		}
		if s.Fingerprint != "" {
			fmt.Fprintf(&out, "  fingerprint: %s\n", s.Fingerprint)
		}
		if len(s.Functions) > 0 {
			fmt.Fprintf(&out, "  reached through %s\n", baseNames(s.Functions))
		}
		if s.Target != nil {
			formatTarget(&out, s.Target)
		}
		if !slices.Equal(s.Nodes, s.Allocation.Nodes) {
			fmt.Fprintf(&out, "  nodes that exist: %s\n", formatNodes(s.Nodes))
		}
		for _, n := range s.Allocation.Nodes {
			fmt.Fprintf(&out, "  %s", n.Container)
			if n.Host != n.Container {
				fmt.Fprintf(&out, " = %s", n.Host)
			}
			out.WriteByte('\n')
		}
		for _, key := range slices.Sorted(maps.Keys(s.Allocation.Env)) {
			fmt.Fprintf(&out, "  %s=%s\n", key, s.Allocation.Env[key])
		}
	}
	return strings.TrimSpace(out.String())
}

// formatTarget formats all that a target contains before a pod gets the device.
func formatTarget(out *strings.Builder, target *device.Target) {
	kind := "device"
	if target.Disk {
		kind = "disk"
	}
	if target.Sole {
		kind += " for one pod"
	}
	if target.Auto != "" {
		kind += ", reset automatically by " + target.Auto
	}
	fmt.Fprintf(out, "  target: %s\n", kind)
	for _, name := range slices.Sorted(maps.Keys(target.Identity)) {
		fmt.Fprintf(out, "    %s is %s\n", name, target.Identity[name])
	}
	if medium := target.Medium(); medium != "" {
		fmt.Fprintf(out, "    medium: %s\n", medium)
	}
	if len(target.Siblings) > 0 {
		fmt.Fprintf(out, "    a reset also affects %s\n", baseNames(target.Siblings))
	}
}

func baseNames(paths []string) string {
	var names []string
	for _, p := range paths {
		names = append(names, filepath.Base(p))
	}
	return strings.Join(names, " ")
}

func formatNodes(nodes []device.Node) string {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Container)
	}
	return strings.Join(names, " ")
}
