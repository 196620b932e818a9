// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/integration/need"
)

// fixture is a node for the doctor, with its files and the answers of metalplugd.
type fixture struct {
	files   map[string]string // keys are paths; values are the text, "socket", "link", "link TARGET" or "dir"
	status  *api.Status       // nil if the daemon does not answer
	devices []api.Device
	counts  *api.KubeletCounts // nil if the kubelet does not answer
	toml    string             // the configuration in addition to the defaults
	label   string             // SELinux label of the kubelet's directory
	missing []string           // complaints about the units of the configuration
}

const (
	kubeletDir    = "/var/lib/kubelet/device-plugins"
	kubeletSocket = kubeletDir + "/kubelet.sock"
	resetSocket   = "/run/metalplug/reset.sock"
	holdersSocket = "/run/metalplug/holders.sock"
)

// soundMachine returns a node without a problem.
func soundMachine() fixture {
	resources := []api.Resource{{
		Name: nvmeName, Class: "nvme", Shares: 1, Totals: api.Totals{Healthy: 1}, Registration: api.Registration{Registered: true, Connected: true},
	}}
	return fixture{
		files: map[string]string{
			"/run/udev/control": "socket", kubeletSocket: "socket", resetSocket: "socket", holdersSocket: "socket",
			"/etc/containerd/config.toml":             "[plugins.x]\n  SystemdCgroup = true # as the kubelet\n",
			"/sys/bus/pci/devices/0000:65:00.0/class": "0x010802", "/sys/bus/pci/devices/0000:65:00.0/driver": "link",
		},
		status: &api.Status{
			Version: "1.0", Ready: true, Source: "udev", Resources: resources, Uptime: 60,
			Devices: api.Totals{Healthy: 1}, Events: api.Counts{Events: 3, LastEvent: time.Now()},
		},
		devices: []api.Device{{
			ID: "nvme-1", Resource: nvmeName, Class: "nvme", Health: "Healthy", Nodes: []string{"/dev/nvme1n1"}, Hardware: api.Hardware{Present: true},
		}},
		counts: &api.KubeletCounts{Allocatable: map[string]int{nvmeName: 1}},
	}
}

// TestDoctor runs the doctor on each node in testdata/doctor/nodes.
func TestDoctor(t *testing.T) {
	text, err := os.ReadFile("testdata/doctor/nodes")
	if err != nil {
		t.Fatal(err)
	}
	nodes := make(map[string]string)
	for _, text := range strings.Split(string(text), "\n== ")[1:] {
		name, differences, _ := strings.Cut(text, "\n")
		nodes[name] = differences
	}
	for name := range nodes {
		t.Run(name, func(t *testing.T) {
			f := soundMachine()
			f.change(t, nodes, name)
			found := f.examine(t)
			s := screen{}
			s.writeFindings(found)
			golden(t, filepath.Join("doctor", name+".txt"), s.String(), `\(last \d+s ago\)`, "(last 0s ago)")
		})
	}
}

// change makes a sound node different, as the lines for the named node say. JSON replaces only the given fields.
func (f *fixture) change(t *testing.T, nodes map[string]string, name string) {
	t.Helper()
	for line := range strings.Lines(nodes[name]) {
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		path, text, _ := strings.Cut(rest, " ")
		var err error
		switch verb {
		case "", "#":
		case "like":
			f.change(t, nodes, rest)
		case "file":
			f.files[path], err = strconv.Unquote(text)
		case "link":
			f.files[path] = "link " + text
		case "socket":
			f.files[rest] = "socket"
		case "directory":
			f.files[rest] = "dir"
		case "remove":
			if _, ok := f.files[rest]; !ok {
				err = os.ErrNotExist
			}
			delete(f.files, rest)
		case "runs": // a process with this command line (proc(5), /proc/pid/cmdline)
			f.files["/proc/4711/cmdline"] = strings.ReplaceAll(rest, " ", "\x00") + "\x00"
			f.files["/proc/4711/ns/mnt"], f.files["/proc/self/ns/mnt"] = "link mnt:[1]", "link mnt:[1]"
		case "config":
			f.toml, err = strconv.Unquote(rest)
		case "nvme":
			f.toml = nvmeOffered + rest + "\n"
		case "label":
			f.label = rest
		case "unit":
			f.missing = append(f.missing, rest)
		case "status":
			err = merge(rest, f.status)
		case "resource":
			err = merge(rest, &f.status.Resources[0])
		case "count":
			err = merge(rest, f.counts)
		case "disk":
			err = merge(rest, &f.devices[0])
		case "device":
			var added api.Device
			err = merge(rest, &added)
			f.devices = append(f.devices, added)
		case "refused":
			refusal := api.Refusal{Time: time.Now().Add(-2 * time.Hour)}
			err = merge(rest, &refusal)
			f.status.Refused = append(f.status.Refused, refusal)
		case "without":
			err = f.remove(rest)
		default:
			err = errors.New("unknown line")
		}
		if err != nil {
			t.Fatalf("%s: %s: %v", name, line, err)
		}
	}
}

// merge decodes JSON into a value. Fields that the text does not name stay the same.
func merge(text string, value any) error {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(value)
}

// remove removes a part of the node.
func (f *fixture) remove(part string) error {
	switch part {
	case "daemon":
		f.status = nil
	case "count":
		f.counts = nil
	case "device":
		f.devices = nil
	default:
		return errors.New("unknown part")
	}
	return nil
}

// TestProcessOfAnother checks that doctor ignores a process of another user that has the name of a kubelet.
func TestProcessOfAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		need.Lacks(t, "root", "only root can make a process of another user")
	}
	dir := t.TempDir()
	if err := place(filepath.Join(dir, "/proc/4711/cmdline"), "kubelet\x00--root-dir=/data\x00"); err != nil {
		t.Fatal(err)
	}
	d := &doctor{machine: machine{root: dir}, config: config.Default()}
	if found := d.runChecks("kubelet's directories"); len(found) != 1 || found[0].Level != levelFail {
		t.Errorf("root's: %+v", found)
	}
	if err := os.Chown(filepath.Join(dir, "/proc/4711"), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if found := d.runChecks("kubelet's directories"); found != nil {
		t.Errorf("another's: %+v", found)
	}
}

// TestUnreadableFilesAreSkipped checks that doctor skips files that only root can read. Such a file counts neither as ok nor as
// missing.
func TestUnreadableFilesAreSkipped(t *testing.T) {
	if os.Geteuid() != 0 {
		need.Lacks(t, "root", "only root can become somebody else")
	}
	dir := t.TempDir()
	for _, name := range []string{"/run/metalplug/x", "/sys/fs/selinux/enforce", "/var/lib/kubelet/x", "/var/log/audit/audit.log", kubeletDir + "/kubelet_internal_checkpoint"} {
		if err := place(filepath.Join(dir, name), "1\n"); err != nil {
			t.Fatal(err)
		}
	}
	for _, closed := range []string{"/run/metalplug", "/var/log/audit", kubeletDir} {
		if err := os.Chmod(filepath.Join(dir, closed), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "/sys/fs/selinux/enforce"), 0o644); err != nil {
		t.Fatal(err)
	}
	for above := dir; above != os.TempDir() && above != "/"; above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d := &doctor{machine: machine{root: dir}, config: config.Default(), client: api.Client{Socket: "/s"}, askErr: unix.EACCES}
	d.label = func(name string) (string, error) {
		return "", &os.PathError{Op: "lgetxattr", Path: name, Err: unix.EACCES}
	}
	found := make(chan []finding)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETFSUID, 65534, 0, 0); errno != 0 {
			t.Error(errno)
		}
		found <- d.runChecks("daemon", "helper sockets", "kubelet", "kubelet's checkpoint", "SELinux")
	}()
	var got []string
	for _, f := range <-found {
		got = append(got, f.Level+" "+f.Check+": "+f.Text+" -> "+f.Remedy)
	}
	const asRoot = " -> run doctor as root, and not in a container; if that fails: ausearch -m avc -ts recent"
	want := []string{
		"skip daemon: not checked: /s: permission denied" + asRoot,
		"skip helper sockets: not checked: " + holdersSocket + ": permission denied" + asRoot,
		"skip helper sockets: not checked: " + resetSocket + ": permission denied" + asRoot,
		"skip kubelet: not checked: " + kubeletSocket + ": permission denied" + asRoot,
		"skip kubelet's checkpoint: not checked: only root can read the file: permission denied" + asRoot,
		"skip SELinux: not checked: the label of " + kubeletDir + " cannot be read: permission denied" + asRoot + "; or ls -Zd " + kubeletDir,
		"skip SELinux: not checked: denials cannot be counted: /var/log/audit/audit.log: permission denied" + asRoot + "; or ausearch -m avc -c metalplugd; without auditd: journalctl -k -g avc",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant\n%q", got, want)
	}
}

// TestModuleFilesMatchPackages checks that the names that doctor uses for the package and the module are the names
// in the policy and in the recipes of the packages.
func TestModuleFilesMatchPackages(t *testing.T) {
	has := func(name, want string) {
		if text, err := os.ReadFile(filepath.Join("../..", name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s does not contain %q: %v", name, want, err)
		}
	}
	has("selinux/metalplug.te", "gen_tunable("+filepath.Base(moduleBoolean)+",")
	has("packaging/debian/rules", strings.TrimPrefix(moduleFiles[0].file, "/"))
	has("packaging/rpm/metalplug.spec", "%{_datadir}"+strings.TrimPrefix(moduleFiles[1].file, "/usr/share"))
}

// examine creates the node and runs the doctor on it. It removes the real paths of the files from the findings.
func (f *fixture) examine(t *testing.T) []finding {
	t.Helper()
	dir, err := os.MkdirTemp("", "mp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for name, content := range f.files {
		if err := place(filepath.Join(dir, name), content); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "t.toml")
	if err := os.WriteFile(file, []byte(f.toml), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &doctor{
		ctx: t.Context(), file: file, client: api.Client{Socket: filepath.Join(dir, "none.sock")},
		machine: machine{
			root: dir, label: func(name string) (string, error) {
				if f.label == "" {
					return "", &os.PathError{Op: "lgetxattr", Path: name, Err: unix.ENODATA}
				}
				return f.label, nil
			},
		},
	}
	if d.config, err = config.Load(file); err != nil {
		d.config = config.Default()
	}
	d.units = func(...string) []string { return f.missing }
	if f.status != nil {
		answers := map[string]any{"/v1/status": f.status, "/v1/devices": f.devices}
		if f.counts != nil {
			answers["/v1/kubelet"] = f.counts
		}
		d.client.Socket = serveAnswers(t, answers)
	}
	found := d.examine()
	for i := range found {
		found[i].Text = strings.ReplaceAll(found[i].Text, dir, "")
	}
	return found
}

// runChecks runs the named checks and returns their findings.
func (d *doctor) runChecks(names ...string) []finding {
	d.found = nil
	for _, c := range checks {
		if slices.Contains(names, c.name) {
			d.runCheck(c)
		}
	}
	return d.found
}

// place creates one file of a fixture.
func place(name, content string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if target, ok := strings.CutPrefix(content, "link "); ok {
		return os.Symlink(target, name)
	}
	switch content {
	case "dir":
		return os.MkdirAll(name, 0o755)
	case "link":
		return os.Symlink("target", name)
	case "socket":
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
		if err != nil {
			return err
		}
		l.SetUnlinkOnClose(false)
		return l.Close()
	}
	return os.WriteFile(name, []byte(content), 0o600)
}

func TestDoctorCommand(t *testing.T) {
	n := newNode(t, bundledText(t, "gpu-server"), "")
	code, stdout, stderr := n.ctl("doctor", "-o", "json", "--config", n.path("t.toml"))
	var found []finding
	if err := json.Unmarshal([]byte(stdout), &found); err != nil || stderr != "" {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	by := make(map[string]string)
	for _, f := range found {
		by[f.Check] = f.Level
		if (f.Level == levelOK) != (f.Remedy == "") {
			t.Errorf("%+v: what is not ok has a remedy, and nothing else", f)
		}
	}
	if found[0].Check != "configuration" || found[0].Text != n.path("t.toml") {
		t.Errorf("it looks at another configuration than the one that was named: %+v", found[0])
	}
	if by["daemon"] != levelOK || by["kubelet"] != levelFail || code != exitProblem {
		t.Errorf("exit %d: %v", code, by)
	}
	if code, _, stderr := ctl(t, "--socket", n.path("none"), "doctor"); code != exitNoAnswer || stderr != "" {
		t.Errorf("without a daemon: exit %d, %s", code, stderr)
	}
}

func TestSocketOfTheConfiguration(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "t.toml")
	if err := place(file, "paths.run = \"/run/other\"\n"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ flag, file, want string }{
		{"", file, "/run/other/control.sock"},
		{"/tmp/x.sock", file, "/tmp/x.sock"},
		{"", filepath.Join(dir, "none.toml"), "/run/metalplug/control.sock"},
	} {
		o := clientOptions{socket: test.flag}
		if _, c := o.loadConfig(test.file); c.Socket != test.want {
			t.Errorf("%q, %s: %s, want %s", test.flag, test.file, c.Socket, test.want)
		}
	}
}

// TestNoFileOfTheDaemonIsOpened checks that doctor does not open files of metalplugd. An attacker may have taken over
// metalplugd, and an operator runs doctor as root.
func TestNoFileOfTheDaemonIsOpened(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.toml")
	if err := place(file, "nonsense = 1\n"); err != nil {
		t.Fatal(err)
	}
	socket := serveAnswers(t, map[string]any{
		"/v1/status": api.Status{Configuration: api.Configuration{File: file}}, "/v1/devices": []api.Device{},
	})
	for _, command := range []string{"doctor", "check"} {
		if _, stdout, stderr := ctl(t, "--socket", socket, command); strings.Contains(stdout+stderr, "nonsense") {
			t.Errorf("%s: %s%s", command, stdout, stderr)
		}
	}
	_, stdout, _ := ctl(t, "--socket", socket, "doctor")
	if text := strings.Join(strings.Fields(stdout), " "); !strings.Contains(text, "the daemon reads \""+file+"\", not "+config.DefaultFile) {
		t.Errorf("the file is not named:\n%s", stdout)
	}
}
