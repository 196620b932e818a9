// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon"
	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	kubelet "github.com/metalplug/metalplug/integration/kubelettest"
)

// patience is how long a test waits for an expected result.
const patience = 20 * time.Second

var update = flag.Bool("update", false, "replace the golden files")

// node is a simulated node with metalplugd.
type node struct {
	t         *testing.T
	dir       string
	inventory *inventory.Inventory
	touch     *device.Touch  // nil if no device can be opened
	hangup    chan os.Signal // makes metalplugd reload
	stop      func()
}

// nvmeOffered is a [[resource]] that offers NVMe disks.
const nvmeOffered = "[[resource]]\nname = \"metalplug.io/nvme\"\nreset.scrub = \"none\"\n"

// newNode runs metalplugd on a recording, in its own directories. If extra is empty, it has the built-in resources and
// nvmeOffered. If touch is given, the devices can be opened.
func newNode(t *testing.T, recording, extra string, touch ...*device.Touch) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "mp") // a short name, because the path of a unix socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: dir, hangup: make(chan os.Signal), stop: func() {}}
	if len(touch) > 0 {
		n.touch = touch[0]
	}
	t.Cleanup(func() {
		n.stop()
		os.RemoveAll(dir)
	})
	n.plug(recording)
	builtin := extra == ""
	if builtin {
		extra = nvmeOffered
	}
	text := fmt.Sprintf("builtin = %v\nhardware.source = \"recording:recording\"\n[paths]\ndevice_plugins = %q\npod_resources = %q\nstate = %q\nrun = %q\ncdi = %q\n%s",
		builtin, n.path("plugins"), n.path("pr.sock"), n.path("state"), n.path("run"), n.path("cdi"), extra)
	if err := errors.Join(os.Mkdir(n.path("plugins"), 0o755), os.WriteFile(n.path("t.toml"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	n.start()
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) plug(recording string) {
	n.t.Helper()
	if err := os.WriteFile(n.path("next"), []byte(recording), 0o600); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(n.path("next"), n.path("recording")); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) start() {
	n.t.Helper()
	c, err := config.Load(n.path("t.toml"))
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	watching := make(chan *inventory.Inventory, 1)
	go func() {
		done <- daemon.Run(ctx, daemon.Options{
			Touch:  n.touch,
			Config: c, File: n.path("t.toml"), Log: slog.New(slog.DiscardHandler), Version: "1.0",
			Load: func() (config.Config, error) { return config.Load(n.path("t.toml")) }, Reload: n.hangup,
			Watching: func(i *inventory.Inventory) { watching <- i },
		})
	}()
	n.stop = func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Errorf("daemon: %v", err)
		}
		n.stop = func() {}
	}
	n.inventory = <-watching
	waitAnswer(n, "/v1/status", func(s api.Status) bool { return s.Ready })
}

func (n *node) socket() string { return n.path("run/control.sock") }

// connect starts a kubelet and waits until it knows the resources.
func (n *node) connect(resources ...string) *kubelet.Kubelet {
	n.t.Helper()
	k, err := kubelet.Start(n.path("plugins"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(k.Stop)
	limit := time.After(patience)
	for _, name := range resources {
		for changed := k.Changed(); !k.Resource(name).Connected; changed = k.Changed() {
			select {
			case <-changed:
			case <-limit:
				n.t.Fatalf("%s never connects", name)
			}
		}
	}
	return k
}

// waitAnswer requests a path of the control socket until the answer meets a condition, and returns this answer.
func waitAnswer[T any](n *node, path string, is func(T) bool) T {
	n.t.Helper()
	for limit := time.After(patience); ; {
		var answer T
		err := api.Client{Socket: n.socket()}.Get(n.t.Context(), path, &answer)
		if err == nil && is(answer) {
			return answer
		}
		select {
		case <-limit:
			n.t.Fatalf("%s: %+v, %v", path, answer, err)
		case <-time.After(time.Millisecond):
		}
	}
}

// waitDevice waits until a device meets a condition.
func (n *node) waitDevice(id string, is func(api.Device) bool) {
	n.t.Helper()
	waitAnswer(n, pathOf(id), is)
}

// waitComplaint waits until metalplugd reports this complaint about a resource.
func (n *node) waitComplaint(resource, complaint string) {
	n.t.Helper()
	waitAnswer(n, "/v1/resources", func(all []api.Resource) bool {
		return slices.ContainsFunc(all, func(r api.Resource) bool { return r.Name == resource && strings.Contains(r.Complaint, complaint) })
	})
}

func isHeld(d api.Device) bool { return d.Held }

// ctl runs the program with the socket of metalplugd.
func (n *node) ctl(args ...string) (code int, stdout, stderr string) {
	n.t.Helper()
	return ctl(n.t, append([]string{"--socket", n.socket()}, args...)...)
}

// golden compares output with a file in testdata. It replaces the parts that change in each run.
func golden(t *testing.T, name, got string, changing ...string) {
	t.Helper()
	for i := 0; i+1 < len(changing); i += 2 {
		got = regexp.MustCompile(changing[i]).ReplaceAllString(got, changing[i+1])
	}
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || got != string(want) {
		t.Errorf("%s (-update replaces it): %v\n%s\nwant\n%s", file, err, got, want)
	}
}

// bundledText returns a bundled recording.
func bundledText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../udev/recording/bundled/" + name + ".umockdev")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const (
	lastDisk  = "nvme-eui.36344830545001270025384300000001"
	lastPCI   = "cf:00.0"
	rootDisk  = "/dev/nvme0n1"
	nvmeName  = "metalplug.io/nvme"
	anyTime   = `\d{4}-\d\d-\d\dT[0-9:.]+Z`
	anyDay    = `\d{4}-\d\d-\d\d`
	anySecond = `since \d{4}-\d\d-\d\d [0-9:]+Z`
)

// TestListStatusWhyCordon runs the commands in testdata/operator.txt while a pod holds a disk.
func TestListStatusWhyCordon(t *testing.T) {
	n := newNode(t, bundledText(t, "gpu-server"), "")
	k := n.connect("nvidia.com/gpu", "metalplug.io/infiniband", nvmeName)
	if _, err := k.Allocate(t.Context(), nvmeName, 1); err != nil {
		t.Fatal(err)
	}
	waitAnswer(n, "/v1/devices", func(all []api.Device) bool { return slices.ContainsFunc(all, isHeld) })
	n.transcript("operator.txt")
}

// transcript runs the commands of a transcript. Times, the user's name and the directory differ in each run.
func (n *node) transcript(name string) {
	n.t.Helper()
	transcript(n.t, name, n.ctl, anyTime, "TIME", anySecond, "since TIME", `up \d+s`, "up 1s", regexp.QuoteMeta(n.dir), "DIR",
		`\(by [^,)]+, `+anyDay+` [0-9:]+Z\)`, "(by WHO, TIME)", `cordoned by [^,]+, `+anyDay+` [0-9:]+Z`, "cordoned by WHO, TIME")
}

// TestWhyOfUnknownNodes runs why for a missing node that all devices need, and for a node of a GPU that is not known
// yet.
func TestWhyOfUnknownNodes(t *testing.T) {
	text := strings.ReplaceAll(bundledText(t, "gpu-server"), "F: /dev/nvidia-uvm=\n", "")
	text = strings.ReplaceAll(text, "GPU UUID: \\t GPU-6513270e-269e-4d37-b2a7-4de452e6b438", "GPU UUID: \\t GPU-????????-????-????-????-????????????")
	n := newNode(t, text, "")
	n.transcript("why-unknown-nodes.txt")
}

// TestWhyNotOffered runs why for the node of a device, for a node next to it, and for an address without a rule. The
// answer names the line of the rule, or suggests a rule. The list shows each reason once.
func TestWhyNotOffered(t *testing.T) {
	const sound = "P: /devices/pci0000:00/0000:00:1f.0\nE: SUBSYSTEM=pci\nE: PCI_CLASS=40300\nE: PCI_SLOT_NAME=0000:00:1f.0\n\n" +
		"P: /devices/pci0000:00/0000:00:1f.0/sound/card0/controlC0\nN: snd/controlC0\nE: SUBSYSTEM=sound\nE: DEVNAME=/dev/snd/controlC0\nE: ID_PATH=pci-0000:00:1f.0\n\n" +
		"P: /devices/pci0000:00/0000:00:1f.4\nE: SUBSYSTEM=pci\nE: PCI_CLASS=c0500\nE: PCI_SLOT_NAME=0000:00:1f.4\n\n"
	n := newNode(t, sound+bundledText(t, "gpu-server"), `
[[resource]]
name = "nvidia.com/gpu"
class = "gpu"
exclude = { PCI_SLOT_NAME = "0000:18:*" }

[[resource]]
name = "example.org/tty"
class = "node"
match = { SUBSYSTEM = "tty" }
`)
	n.waitComplaint("nvidia.com/gpu", "waiting for the kubelet")
	n.transcript("why-not-offered.txt")
}

// TestCordonOfAnAbsentDevice cordons a device that is not offered and then disappears. The cordon stays visible, and the
// beginning of the ID is enough to end it.
func TestCordonOfAnAbsentDevice(t *testing.T) {
	n := newNode(t, bundledText(t, "gpu-server"), "")
	if code, _, stderr := n.ctl("cordon", "gpu-0000:03:00.0", "--reason", "flickers"); code != exitOK {
		t.Fatal(stderr)
	}
	n.stop()
	n.plug(strings.ReplaceAll(bundledText(t, "gpu-server"), "0000:03:00.0", "0000:04:00.0"))
	n.start()
	if _, stdout, stderr := n.ctl("list", "--all"); !strings.Contains(stdout, "cordoned: flickers (by ") || !strings.Contains(stdout, "Z); gone, or no resource matches it\n") {
		t.Errorf("the list has no cordon: %s%s", stdout, stderr)
	}
	if code, stdout, stderr := n.ctl("uncordon", "gpu-0000:03"); code != exitOK || stdout != "gpu-0000:03:00.0: Not offered: gone\n" {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	if _, stdout, _ := n.ctl("list", "--all"); strings.Contains(stdout, "flickers") {
		t.Errorf("the cordon did not end: %s", stdout)
	}
}

// TestCordonWaits cordons a device that a pod holds. The command prints the cordon at once, and ends when no pod holds the
// device.
func TestCordonWaits(t *testing.T) {
	n := newNode(t, bundledText(t, "gpu-server"), "")
	held := map[string][]string{lastDisk: {lastDisk}}
	n.inventory.Allocated(held, "")
	n.waitDevice(lastDisk, isHeld)
	waiting, interrupted := n.follow("cordon", "nvme1n1", lastPCI, "--wait"), n.follow("cordon", lastDisk, "--wait")
	waiting.waitText(lastDisk, "Cordoned: by the operator; held by a pod")
	interrupted.waitText(lastDisk, "held by a pod")
	interrupted.cancel()
	if code := <-interrupted.code; code != exitProblem {
		t.Errorf("interrupted: exit %d", code)
	}
	n.stop()
	n.start()
	n.inventory.Released([]string{lastDisk})
	if code := <-waiting.code; code != exitOK {
		t.Errorf("exit %d: %s", code, &waiting.stderr)
	}
}

// TestDaemonRefusals runs the commands in testdata/refusals.txt. The daemon refuses each of them.
func TestDaemonRefusals(t *testing.T) {
	transcript(t, "refusals.txt", newNode(t, bundledText(t, "gpu-server"), "").ctl)
}

// TestRemovedDevice removes disks after the operator has seen them in the list, and then names them. The daemon forgets the
// disk that was not offered. The other stays in the list, because the kubelet may know it. testdata/removed.txt has the commands.
func TestRemovedDevice(t *testing.T) {
	all := bundledText(t, "gpu-server")
	n := newNode(t, all, "")
	const system = "nvme-eui.36344830545001200025384300000001"
	if _, stdout, _ := n.ctl("list", "--all"); !strings.Contains(stdout, lastDisk) || !strings.Contains(stdout, system) {
		t.Fatal(stdout)
	}
	blocks := strings.Split(all, "\n\n")
	n.plug(strings.Join(slices.DeleteFunc(blocks, func(block string) bool {
		return strings.Contains(block, lastPCI) || strings.Contains(block, "0000:1c:00.0")
	}), "\n\n"))
	n.waitDevice(lastDisk, func(d api.Device) bool { return !d.Present })
	waitAnswer(n, "/v1/devices", func(all []api.Device) bool {
		return !slices.ContainsFunc(all, func(d api.Device) bool { return d.ID == system })
	})
	n.waitComplaint(nvmeName, "waiting for the kubelet")
	n.transcript("removed.txt")
}

// TestHardwareSteersNoTerminal gives disks names with control characters, and looks for these in the output of each command.
func TestHardwareSteersNoTerminal(t *testing.T) {
	const bad = "SAM\x1b[2J\u009b31m\u202e\rSUNG"
	text := strings.ReplaceAll(bundledText(t, "gpu-server"), "SAMSUNG MZQL2", bad+" MZQL2")
	text = strings.ReplaceAll(text, "MZQL23T8HCLS-00A07", "MZQL2\\nFAKE")
	n := newNode(t, text, "")
	if code, _, stderr := n.ctl("cordon", lastDisk, "--reason", bad); code != exitOK {
		t.Fatal(stderr)
	}
	follower := n.follow("events")
	follower.waitText("listening")
	n.plug(strings.ReplaceAll(text, "A: state=live\\n\n", "A: state=dead"+bad+"\\n\n"))
	follower.waitText("is dead")
	follower.cancel()
	<-follower.code
	for _, args := range [][]string{
		{"list"},
		{"list", "--all"},
		{"status"},
		{"why", lastDisk},
		{"why", bad},
		{"watch", "--once"},
		{"topology"},
		{"topology", "-o", "svg"},
		{"doctor", "--config", n.path("t.toml")},
		{"check", "--explain", n.path("t.toml")},
		{"preview", "--once", "--config", n.path("t.toml")},
		{"cordon", bad},
		{"reset", lastDisk},
		{"list", "-o", "json"},
	} {
		_, stdout, stderr := n.ctl(args...)
		if strings.ContainsAny(stdout+stderr, "\x1b\r\u009b\u202e") || strings.Contains(stdout, "\nFAKE") {
			t.Errorf("%q: %q%q", args, stdout, stderr)
		}
		if args[0] == "list" && !strings.Contains(stdout, "SUNG") {
			t.Errorf("%q lists no such disk: %s", args, stdout)
		}
	}
}

func TestNoDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	for _, args := range [][]string{{"list"}, {"status"}, {"why", "x"}, {"cordon", "x"}, {"uncordon", "x"}, {"reset", "x"}, {"adopt", "x"}} {
		code, stdout, stderr := ctl(t, append([]string{"--socket", socket}, args...)...)
		if code != exitNoAnswer || stdout != "" || !strings.Contains(stderr, "the socket does not exist") ||
			!strings.Contains(stderr, "systemctl start metalplugd") {
			t.Errorf("%v: exit %d, %q, %q", args, code, stdout, stderr)
		}
	}
}

func TestScrubAsksForID(t *testing.T) {
	for input, ok := range map[string]bool{"disk-1\n": true, "disk-1": true, " disk-1 \n": true, "y\n": false, "": false, "disk-2\n": false} {
		var out bytes.Buffer
		if err := confirm(strings.NewReader(input), &out, "disk-1"); (err == nil) != ok {
			t.Errorf("%q: %v", input, err)
		}
	}
}

// broken is a reader that has disconnected.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, fmt.Errorf("write: %w", unix.EPIPE) }

func TestClosedPipe(t *testing.T) {
	n := newNode(t, bundledText(t, "gpu-server"), "")
	t.Setenv("TMPDIR", n.path("")) // short, for the sockets of preview
	for _, args := range [][]string{
		{"list"},
		{"status"},
		{"list", "-o", "json"},
		{"why", lastDisk},
		{"topology"},
		{"watch", "--once"},
		{"events"},
		{"--version"},
		{"--help"},
		{"preview", "--recording", "nvme-blank"},
	} {
		var stderr bytes.Buffer
		if code := run(t.Context(), append([]string{"--socket", n.socket()}, args...), broken{}, &stderr); code != exitOK || stderr.Len() > 0 {
			t.Errorf("%v: exit %d, %s", args, code, stderr.String())
		}
	}
	if left, err := filepath.Glob(n.path("metalplug-*")); err != nil || left != nil {
		t.Errorf("preview has left %v, %v", left, err)
	}
}

// TestUnregisteredResource checks that each command shows the kubelet's error, or why the kubelet does not answer, with a
// remedy.
func TestUnregisteredResource(t *testing.T) {
	n := newNode(t, bundledText(t, "nvme-blank"), "")
	var devices []api.Device
	if err := (api.Client{Socket: n.socket()}).Get(t.Context(), "/v1/devices", &devices); err != nil || len(devices) != 1 {
		t.Fatalf("%v, %v", devices, err)
	}
	told := func(cause, do string) {
		t.Helper()
		for _, args := range [][]string{{"status"}, {"doctor", "--config", n.path("t.toml")}, {"why", devices[0].ID}} {
			code, stdout, stderr := n.ctl(args...)
			text := strings.Join(strings.Fields(stdout), " ")
			if code != exitProblem || stderr != "" || !strings.Contains(text, cause) || !strings.Contains(text, "-> "+do) {
				t.Errorf("%v: exit %d, %s\n%s", args, code, stderr, stdout)
			}
		}
	}
	n.waitComplaint(nvmeName, "waiting for the kubelet")
	told("waiting for the kubelet: find "+n.path("plugins/kubelet.sock")+": no such file or directory", "systemctl start kubelet")
	if err := errors.Join(os.Rename(n.path("plugins"), n.path("gone")), os.WriteFile(n.path("plugins"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	n.waitComplaint(nvmeName, "not a directory")
	told("not a directory", moveFileRemedy)
}

// TestPartlyReloaded checks that status reports settings which a reload does not apply, until the file and metalplugd agree.
// A refused reload does not change that.
func TestPartlyReloaded(t *testing.T) {
	n := newNode(t, bundledText(t, "nvme-blank"), "")
	n.connect(nvmeName)
	text, err := os.ReadFile(n.path("t.toml"))
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), n.path("plugins"), n.path("other"), 1) + "[reset]\nholders = \"/elsewhere.sock\"\n"
	plugins := "paths.device_plugins is " + n.path("plugins") + " until metalplugd is restarted, then " + n.path("other")
	holders := "reset.holders is /run/metalplug/holders.sock until metalplugd is restarted, then /elsewhere.sock"
	for _, test := range []struct {
		toml string
		told int
		code int
	}{{changed, 1, exitOK}, {"nonsense", 1, exitProblem}, {string(text), 0, exitOK}} {
		if err := os.WriteFile(n.path("t.toml"), []byte(test.toml), 0o600); err != nil {
			t.Fatal(err)
		}
		n.hangup <- nil
		n.hangup <- nil // waits until the first reload is done
		code, status, stderr := n.ctl("status")
		_, doctor, _ := n.ctl("doctor", "--config", n.path("t.toml"))
		if code != test.code || stderr != "" {
			t.Errorf("exit %d, %s", code, stderr)
		}
		for _, said := range []string{status, doctor} {
			text := strings.Join(strings.Fields(said), " ")
			if strings.Count(text, "until metalplugd is restarted") != 2*test.told || strings.Count(text, plugins) != test.told ||
				strings.Count(text, holders) != test.told || strings.Count(text, "paths.device_plugins is") != test.told {
				t.Errorf("%d of each are wanted in:\n%s", test.told, said)
			}
			if test.told > 0 && !strings.Contains(text, "-> systemctl restart metalplugd") {
				t.Errorf("nothing is said to do:\n%s", said)
			}
		}
	}
}
