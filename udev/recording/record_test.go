// SPDX-License-Identifier: Apache-2.0

package recording_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/udev"
	"github.com/metalplug/metalplug/udev/recording"
)

// record writes the tree of a recording and records it again.
func record(t *testing.T, text string, serials bool) (*recording.Recording, string) {
	t.Helper()
	first, root := mustParse(t, text), t.TempDir()
	if err := first.Write(root); err != nil {
		t.Fatal(err)
	}
	r := recording.Recorder{Tree: sysfs.At(root), Serials: serials}
	out := r.Record(first.Devices())
	return mustParse(t, out), out
}

// TestRecordingOfARecording checks that recording each bundled machine again gives the same result.
func TestRecordingOfARecording(t *testing.T) {
	for _, b := range recording.Bundled() {
		t.Run(b.Name, func(t *testing.T) {
			first := mustParse(t, string(b.Text))
			second, _ := record(t, string(b.Text), true)
			if !slices.EqualFunc(first.Devices(), second.Devices(), func(a, b udev.Device) bool { return reflect.DeepEqual(plain(a), plain(b)) }) {
				t.Errorf("devices %v\nwant\n%v", second.Devices(), first.Devices())
			}
			a, b := files(t, first), files(t, second)
			for name, content := range a {
				if again, ok := b[name]; !ok || again != content {
					t.Errorf("%s is %q, recorded %q (%v)", name, content, again, ok)
				}
			}
		})
	}
}

// plain removes the order of links, which has no meaning, and the time.
func plain(d udev.Device) udev.Device {
	properties := maps.Collect(d.Properties.All())
	delete(properties, "USEC_INITIALIZED")
	links := strings.Fields(properties["DEVLINKS"])
	slices.Sort(links)
	properties["DEVLINKS"] = strings.Join(links, " ")
	d.Properties = udev.NewProperties(properties)
	return d
}

// files returns the content or link target of each file in the tree of a recording, except files that are omitted on
// purpose, and the content of disks, which is private.
func files(t *testing.T, r *recording.Recording) map[string]string {
	t.Helper()
	root := t.TempDir()
	if err := r.Write(root); err != nil {
		t.Fatal(err)
	}
	all := listing(t, root)
	maps.DeleteFunc(all, func(name, content string) bool {
		isDisk := strings.HasPrefix(name, "dev/") && !strings.HasPrefix(content, "-> ")
		return isDisk || strings.HasSuffix(name, "/") || strings.Contains(name, "/gids/") || strings.Contains(name, "/hw_counters/")
	})
	for name, content := range all {
		if filepath.Base(name) == "uevent" { // the order of lines in this file has no meaning
			all[name] = strings.Join(slices.Sorted(strings.Lines(content)), "")
		}
	}
	return all
}

const secretDisk = `P: /devices/pci0000:00/0000:00:01.0/nvme/nvme0
E: SUBSYSTEM=nvme
A: serial=S64HNE0T500123      \n
A: model=Drive\n
A: subsysnqn=nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427\n

P: /devices/pci0000:00/0000:00:01.0/nvme/nvme0/nvme0n1
N: nvme0n1
S: disk/by-id/nvme-Drive_S64HNE0T500123
S: disk/by-id/nvme-eui.36344830545001230025384300000001
E: SUBSYSTEM=block
E: DEVTYPE=disk
E: MAJOR=259
E: MINOR=0
E: ID_SERIAL=Drive_S64HNE0T500123
E: ID_SERIAL_SHORT=S64HNE0T500123
E: ID_WWN=eui.36344830545001230025384300000001
A: wwid=eui.36344830545001230025384300000001\n
A: fallback=nvme.144d-533634484e453054353030313233\n
A: size=1024\n

F: /proc/driver/nvidia/gpus/0000:18:00.0/information=Model: H100\nGPU UUID: \t GPU-5c1f9a0e-7d34-4b7e-9a51-0f3e2d1c4b6a\n
F: /proc/self/mountinfo=36 25 259:0 / /srv rw - xfs /dev/nvme0n1 rw\n40 25 0:50 / /home/walter rw - nfs server:/home rw\n

`

func TestMaskedRecording(t *testing.T) {
	r, text := record(t, secretDisk, false)
	for _, secret := range []string{
		"S64HNE0T500123", "36344830545001230025384300000001", "5c1f9a0e", "1b4e28ba", "533634484e453054353030313233", "walter", "server:",
	} {
		if strings.Contains(text, secret) {
			t.Errorf("%q is in it:\n%s", secret, text)
		}
	}
	for _, kept := range []string{"Drive_", "wwid=eui.", "size=1024", "GPU-", "/srv", "259:0", "uuid:"} {
		if !strings.Contains(text, kept) {
			t.Errorf("%q is not in it:\n%s", kept, text)
		}
	}
	var disk udev.Device
	for _, d := range r.Devices() {
		if d.Subsystem == "block" {
			disk = d
		}
	}
	short := disk.Properties.Value("ID_SERIAL_SHORT")
	if len(short) != len("S64HNE0T500123") || disk.Properties.Value("ID_SERIAL") != "Drive_"+short ||
		!strings.Contains(disk.Properties.Value("DEVLINKS"), "/dev/disk/by-id/nvme-Drive_"+short) ||
		!strings.Contains(disk.Properties.Value("DEVLINKS"), "/dev/disk/by-id/nvme-"+disk.Properties.Value("ID_WWN")) {
		t.Errorf("what was one identity is not any more: %v", disk.Properties)
	}
	if _, again := record(t, secretDisk, false); again == text {
		t.Error("two recordings have the same made-up identities")
	}
	if _, open := record(t, secretDisk, true); !strings.Contains(open, "S64HNE0T500123") {
		t.Errorf("asked for, and not in it:\n%s", open)
	}
}

// TestMask checks that a text without an identity stays, and that a longer identity is replaced as a whole. Otherwise it would be
// replaced in two parts, which would match the other texts only by chance.
func TestMask(t *testing.T) {
	var r recording.Recorder
	common := []string{"", "1234", "0x0000000000000000", "00000000-0000-0000-0000-000000000000", "eui.0000", "unknown serial"}
	r.Hide(common...)
	if text := strings.Join(common, " "); r.Mask(text) != text {
		t.Errorf("%q", r.Mask(text))
	}
	r.Hide("ABCDE", "eui.ABCDEFGHIJ")
	masked := r.Mask("ABCDEFGHIJ ABCDE x")
	if fields := strings.Fields(masked); strings.Contains(masked, "ABCDE") || fields[2] != "x" || strings.HasPrefix(fields[0], fields[1]) {
		t.Errorf("%q", masked)
	}
}

// Attributes that are too deep, other devices, and links to nothing in sysfs are left out.
func TestSkippedAttributes(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "sys/devices/x")
	for name, text := range map[string]string{
		"state": "live\n", "vpd": "x", "resource0": "x", "uevent": "x", "config": strings.Repeat("\xff", 256), "long": strings.Repeat("x", 2*sysfs.AttrSize),
		"ports/1/state": "4: ACTIVE\n", "child/uevent": "", "child/state": "x", "a/b/c/d/e/f": "x",
	} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o444)); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"driver": "../../bus/pci/drivers/nvme", "absolute": "/etc", "subsystem": "../x"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	r := recording.Recorder{Tree: sysfs.At(root)}
	want := "P: /devices/x\nH: config=" + strings.Repeat("ff", 64) + "\nL: driver=../../bus/pci/drivers/nvme\nA: long=" +
		strings.Repeat("x", sysfs.AttrSize) + "\nA: ports/1/state=4: ACTIVE\\n\nA: state=live\\n\n\n"
	if got := r.Record([]udev.Device{{SysPath: "/sys/devices/x"}}); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
