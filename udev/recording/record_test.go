// SPDX-License-Identifier: Apache-2.0

package recording_test

import (
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
	first, err := recording.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := first.Write(root); err != nil {
		t.Fatal(err)
	}
	r := recording.Recorder{Tree: sysfs.At(root), Serials: serials}
	out := r.Record(first.Devices())
	second, err := recording.Parse([]byte(out))
	if err != nil {
		t.Fatalf("what was recorded cannot be read: %v", err)
	}
	return second, out
}

// TestRecordingOfARecording checks that recording each bundled machine again gives the same result.
func TestRecordingOfARecording(t *testing.T) {
	for _, b := range recording.Bundled() {
		t.Run(b.Name, func(t *testing.T) {
			first, err := recording.Parse(b.Text)
			if err != nil {
				t.Fatal(err)
			}
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
// purpose.
func files(t *testing.T, r *recording.Recording) map[string]string {
	t.Helper()
	root := t.TempDir()
	if err := r.Write(root); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	err := filepath.WalkDir(root, func(name string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.Contains(name, "/gids/") || strings.Contains(name, "/hw_counters/") {
			return err
		}
		rest := strings.TrimPrefix(name, root)
		if target, err := os.Readlink(name); err == nil {
			all[rest] = "-> " + target
			return nil
		}
		content, err := os.ReadFile(name)
		if filepath.Base(name) == "uevent" { // the order of lines in this file has no meaning
			lines := strings.Split(string(content), "\n")
			slices.Sort(lines)
			content = []byte(strings.Join(lines, "\n"))
		}
		if !strings.HasPrefix(rest, "/dev/") { // the content of a disk is private
			all[rest] = string(content)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
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
A: fallback=nvme.144d-533634484e45305435303031 3233\n
A: size=1024\n

F: /proc/driver/nvidia/gpus/0000:18:00.0/information=Model: H100\nGPU UUID: \t GPU-5c1f9a0e-7d34-4b7e-9a51-0f3e2d1c4b6a\n
F: /proc/self/mountinfo=36 25 259:0 / /srv rw - xfs /dev/nvme0n1 rw\n40 25 0:50 / /home/somebody rw - nfs server:/home rw\n

`

func TestMaskedRecording(t *testing.T) {
	r, text := record(t, secretDisk, false)
	for _, secret := range []string{
		"S64HNE0T500123", "36344830545001230025384300000001", "5c1f9a0e", "1b4e28ba", "somebody", "server:",
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
