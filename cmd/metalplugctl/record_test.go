// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/udev/recording"
)

// TestRecordedMachineOffersTheSame checks that each bundled recording has devices, and that all of them are Healthy. preview
// shows the same for a recording of this machine. If the serial numbers are masked, the number of devices is the same.
func TestRecordedMachineOffersTheSame(t *testing.T) {
	for _, b := range recording.Bundled() {
		t.Run(b.Name, func(t *testing.T) {
			parsed, err := recording.Parse(b.Text)
			if err != nil {
				t.Fatal(err)
			}
			root := t.TempDir()
			if err := parsed.Write(root); err != nil {
				t.Fatal(err)
			}
			c := config.Default()
			c.Paths.Sysfs, c.Paths.Dev, c.Paths.Proc = filepath.Join(root, "sys"), filepath.Join(root, "dev"), filepath.Join(root, "proc")
			want := runPreview(t, string(b.Text))
			for _, d := range want.Devices {
				if d.Resource != "" && (d.Health != "Healthy" || len(d.Nodes) == 0) {
					t.Errorf("%s is %s (%s) with nodes %v", d.ID, d.Health, d.Reason, d.Nodes)
				}
			}
			if b.Title == "" || len(want.Devices) == 0 {
				t.Errorf("%d devices of %q", len(want.Devices), b.Title)
			}
			for _, serials := range []bool{true, false} {
				r := &recording.Recorder{Tree: sysfsOf(c), Serials: serials}
				got := runPreview(t, record(r, c, parsed.Devices()))
				if serials && !reflect.DeepEqual(got, want) {
					t.Errorf("recorded %+v\nwant %+v", got, want)
				}
				if !reflect.DeepEqual(got.Resources, want.Resources) || len(got.Devices) != len(want.Devices) {
					t.Errorf("masked: %+v\nwant %+v", got, want)
				}
			}
		})
	}
}

// runPreview returns the output of preview for a recording.
func runPreview(t *testing.T, text string) previewState {
	t.Helper()
	file := filepath.Join(t.TempDir(), "recording")
	if err := place(file, text); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := ctl(t, "preview", "--config", withDisks(t), "--recording", file, "-o", "json")
	var s previewState
	if err := json.Unmarshal([]byte(stdout), &s); code != exitOK || err != nil {
		t.Fatalf("exit %d, %v: %s", code, err, stderr)
	}
	s.Machine = ""
	for i := range s.Devices {
		s.Devices[i].Since, s.Devices[i].Serial = time.Time{}, ""
	}
	return s
}

// TestRecordThisMachine records the machine on which the tests run.
func TestRecordThisMachine(t *testing.T) {
	code, stdout, stderr := ctl(t, "record", "--config", "/dev/null")
	if code != exitOK || !strings.HasPrefix(stdout, "# Recorded by metalplugctl unreleased. Serial numbers were replaced.\n") {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	if _, err := recording.Parse([]byte(stdout)); err != nil {
		t.Error(err)
	}
	code, answer, stderr := ctl(t, "record", "--config", "/dev/null", "-o", "json")
	var got struct{ Recording string }
	if err := json.Unmarshal([]byte(answer), &got); code != exitOK || err != nil {
		t.Fatalf("exit %d: %v, %s", code, err, stderr)
	}
	if _, err := recording.Parse([]byte(got.Recording)); err != nil || !strings.HasPrefix(got.Recording, "# Recorded by metalplugctl") {
		t.Errorf("%v in %.100s", err, got.Recording)
	}
}

// unpackArchive returns the files of an archive.
func unpackArchive(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	packed, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for archive := tar.NewReader(packed); ; {
		header, err := archive.Next()
		if err == io.EOF {
			return all
		}
		content, readErr := io.ReadAll(archive)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		all[header.Name] = string(content)
	}
}

// TestBundle checks that a report has no secrets. The secrets are identities of the hardware and of an absent disk, names of
// pods, users and the node, and a password in the configuration.
func TestBundle(t *testing.T) {
	const gone = "36344830545001990025384300000001"
	bin := t.TempDir()
	entry := fmt.Sprintf(`{"__REALTIME_TIMESTAMP":"1795644211000000","_SYSTEMD_UNIT":"metalplugd.service","_HOSTNAME":"node-in-vienna",`+
		`"METALPLUG_DEVICE":"nvme-eui.%[1]s","METALPLUG_POD":"warehouse/ledger-0/postgres","METALPLUG_USER":"ann as root",`+
		`"MESSAGE":"device held device=nvme-eui.%[1]s pod=warehouse/ledger-0/postgres on node-in-vienna by ann as root"}`, gone)
	if err := os.WriteFile(filepath.Join(bin, "journalctl"), []byte("#!/bin/sh\necho '"+entry+"'\necho nonsense\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	n := newNode(t, bundledText(t, "gpu-server"), "[[resource]]\nname = \"nvidia.com/gpu\"\nclass = \"gpu\"\n"+
		"[[resource]]\nname = \"metalplug.io/nvme\"\nclass = \"nvme\"\nreset.scrub = \"none\"\nenv = { TOKEN = \"hunter2-and-more\", WHERE = \"{node}\" }\n")
	change := api.Change{Reason: "ticket 4711", Login: "ann"}
	if err := (api.Client{Socket: n.socket()}).Post(t.Context(), pathOf(lastDisk)+"/cordon", change, new(api.ChangedDevice)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "report.tar.gz")
	code, stdout, stderr := n.ctl("record", "--config", n.path("t.toml"), "--bundle", file)
	if code != exitOK || stderr != "" || stdout != file+": read it before you send it\n" {
		t.Fatalf("exit %d, %s, %s", code, stdout, stderr)
	}
	files := unpackArchive(t, file)
	machine, _ := os.Hostname()
	for name, text := range files {
		for _, secret := range []string{
			strings.TrimPrefix(lastDisk, "nvme-eui."), "36f675cc-81e7-4ef5-a8e2-5d940ed90475", gone, "warehouse", "ledger-0", "postgres", "ann as", "\"ann\"", "vienna",
			"hunter2",
		} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q:\n%s", name, secret, text)
			}
		}
		if len(machine) > 4 && strings.Contains(text, machine) {
			t.Errorf("%s has the name of the machine", name)
		}
	}
	for name, want := range map[string]string{
		"machine.umockdev":                 "# Recorded by metalplugctl",
		"configuration" + n.path("t.toml"): "WHERE = \"{node}\"",
		"devices.json":                     "cordoned: ticket 4711",
		"status.json":                      "\"connected\": false",
		"kubelet.json":                     "not available: ",
		"doctor.txt":                       "fail  kubelet: ",
		"journal.txt":                      "2026-11-25 22:03:31Z metalplugd.service device held device=nvme-eui.",
		"versions.txt":                     "metalplugctl unreleased\n",
	} {
		if !strings.Contains(files["metalplug/"+name], want) {
			t.Errorf("%s has no %q:\n%s", name, want, files["metalplug/"+name])
		}
	}
	if code, _, stderr := n.ctl("record", "--bundle", file); code != exitProblem || !strings.Contains(stderr, "file exists") {
		t.Errorf("a second time: exit %d, %s", code, stderr)
	}
	if code, stdout, stderr := ctl(t, "record", "--socket", "/none", "--serials", "--bundle", file+"2"); code != exitOK {
		t.Errorf("without the daemon: exit %d, %s, %s", code, stdout, stderr)
	}
	if text := unpackArchive(t, file+"2")["metalplug/status.json"]; !strings.Contains(text, "not available: metalplugd does not answer") {
		t.Errorf("without the daemon: %s", text)
	}
}

// TestBundleHidesEnv checks that passwords in invalid configurations are masked.
func TestBundleHidesEnv(t *testing.T) {
	const resource = "[[resource]]\nname = \"example.org/x\"\nclass = \"gpu\"\n"
	for _, text := range []string{
		resource + "env = { TOKEN = \"hunter2-and-more\", URL = \"https://me:hunter2@{node}\" }\n", // valid
		resource + "reset.scrub = \"no such scrub\"\nenv.TOKEN = \"hunter2-and-more\"\n",
		resource + "env = { TOKEN = \"hunter2{and-more}\" }\n",
		resource + "env = { TOKEN = \"\\u0068unter2-hunter2\" }\n",
		resource + "[env]\nTOKEN = \"hunter2-and-more\"\n",
		resource + "env = { TOKEN = \"hunter2-and-more\" \n",
	} {
		dir := t.TempDir()
		main := filepath.Join(dir, "metalplug.toml")
		if err := os.Mkdir(filepath.Join(dir, "conf.d"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{main, filepath.Join(dir, "conf.d", "1.toml")} {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		report := filepath.Join(dir, "report.tar.gz")
		if code, _, stderr := ctl(t, "record", "--config", main, "--socket", "/none", "--bundle", report); code != exitOK {
			t.Fatalf("exit %d, %s", code, stderr)
		}
		files := unpackArchive(t, report)
		for name, content := range files {
			if strings.Contains(content, "hunter2") {
				t.Errorf("%s\n%s has the password:\n%s", text, name, content)
			}
		}
		if files["metalplug/configuration"+filepath.Join(dir, "conf.d", "1.toml")] == "" {
			t.Errorf("%s\nthe report does not have the drop-in: %v", text, files["metalplug/doctor.txt"])
		}
	}
}

// TestBundleHidesPods checks that pods are hidden even if their name is too short for masking.
func TestBundleHidesPods(t *testing.T) {
	device := api.Device{ID: "GPU-1", Held: true, Allocated: &api.Pod{Namespace: "ns", Name: "p", Container: "c"}}
	o := clientOptions{socket: serveAnswers(t, map[string]any{"/v1/devices": []api.Device{device}})}
	b := bugReport{recorder: new(recording.Recorder)}
	b.addAnswers(t.Context(), o.client())
	if text := b.files[0].text; !strings.Contains(text, "\"pod\": \"pod\"") || strings.Contains(text, "\"ns\"") {
		t.Error(text)
	}
}
