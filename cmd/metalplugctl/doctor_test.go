// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
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
	counts  map[string]int    // the kubelet's count
	foreign map[string]string // the kubelet's count for other plugins, by resource
	toml    string            // the configuration in addition to the defaults
	label   string            // SELinux label of the kubelet's directory
	missing []string          // complaints about the units of the configuration
}

const (
	kubeletDir    = "/var/lib/kubelet/device-plugins"
	kubeletSocket = kubeletDir + "/kubelet.sock"
	hcaName       = "metalplug.io/infiniband"
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
		counts: map[string]int{nvmeName: 1},
	}
}

// TestDoctor checks a node without a problem, and the same node with one fault at a time. testdata has the output for each
// node.
func TestDoctor(t *testing.T) {
	ago, lastYear := time.Now().Add(-2*time.Hour), time.Date(2025, 1, 2, 3, 4, 5, 0, time.Local)
	for name, spoil := range map[string]func(*fixture){
		"sound":      func(*fixture) {},
		"no-daemon":  func(f *fixture) { f.status = nil },
		"bad-config": func(f *fixture) { f.toml = "nonsense = 1\n" },
		"reload":     func(f *fixture) { f.status.Configuration.Problem = "t.toml:1: nonsense: unknown key" },
		"unwritten": func(f *fixture) {
			f.status.Unwritten = []string{"state not saved: write /var/lib/metalplug/state.json.new: no space left on device"}
		},
		"not-ready":  func(f *fixture) { f.status.Ready = false },
		"no-udevd":   func(f *fixture) { delete(f.files, "/run/udev/control") },
		"udevd-busy": func(f *fixture) { f.files["/run/udev/queue"] = "" },
		"no-driver": func(f *fixture) {
			f.files["/sys/bus/pci/devices/0000:3b:00.0/class"] = "0x030200\n"
			f.files["/sys/bus/pci/devices/0000:3b:00.0/vendor"] = "0x10de\n"
		},
		"withheld": func(f *fixture) {
			missing := api.Device{ID: "GPU-1", Class: "gpu", Reason: "not complete: /dev/nvidia-uvm is missing; nvidia-modprobe -u -c 0 creates it"}
			f.devices = append(f.devices, missing, missing, // doctor prints one finding for each reason, and none for disks in use by the host
				api.Device{Class: "nvme", Reason: "no resource matches the device"}, // the operator named other disks
				api.Device{Class: "fpga", Reason: "no resource of class fpga is configured", SysPath: "/sys/devices/x"},
				api.Device{Class: "nvme", Reason: "in use: nvme0n1p2 is mounted on /"},
				api.Device{Class: "gpu", Reason: "a display adapter with driver ast, not a GPU"})
		},
		"sandbox": func(f *fixture) {
			f.files["/proc/sys/user/max_user_namespaces"] = "0\n"
			f.files["/etc/systemd/system/metalplugd.service"] = "link /dev/null"
			f.files["/run/systemd/system/metalplug-unit@.service"] = "link /dev/null"
			f.files["/etc/systemd/system/metalplugd-control.socket"] = "[Unit]" // a file of the operator, not a mask
			f.files["/etc/systemd/system/kubelet.service"] = "link /dev/null"
		},
		"units": func(f *fixture) {
			f.toml = nvmeOffered + "units = { init = \"b@.service\", release = \"a@.service\" }\n"
			f.missing = []string{"the unit a@.service is missing on this machine", "the unit b@.service is masked on this machine"}
			f.files["/run/metalplug/unit.sock"] = "socket"
		},
		"no-helpers":      func(f *fixture) { delete(f.files, resetSocket); delete(f.files, holdersSocket) },
		"no-kubelet":      func(f *fixture) { delete(f.files, kubeletSocket); f.files[kubeletDir] = "dir" },
		"kubelet-never":   func(f *fixture) { delete(f.files, kubeletSocket) },
		"kubelet-no-sock": func(f *fixture) { f.files[kubeletSocket] = "text" },
		"not-registered":  func(f *fixture) { f.status.Resources[0].Registered, f.status.Resources[0].Connected = false, false },
		"kubelet-refuses": func(f *fixture) {
			f.status.Resources[0].Registered, f.status.Resources[0].Connected = false, false
			f.status.Resources[0].Complaint = "endpoint not registered: register metalplug.io/nvme with the kubelet: disconnected"
		},
		"held-back": func(f *fixture) {
			f.status.Resources[0].Connected = false
			f.status.Resources[0].Held = "another plugin serves metalplug.io/nvme: the kubelet counts x"
		},
		"no-stream":     func(f *fixture) { f.status.Resources[0].Connected = false },
		"other-count":   func(f *fixture) { f.counts[nvmeName] = 7 },
		"foreign-count": func(f *fixture) { f.foreign = map[string]string{nvmeName: "GPU-x"} },
		"no-count":      func(f *fixture) { f.counts = nil },
		"unknown-device": func(f *fixture) {
			f.files[kubeletDir+"/kubelet_internal_checkpoint"] = `{"Data":{"PodDeviceEntries":[{"ResourceName":"metalplug.io/nvme",` +
				`"DeviceIDs":{"0":["nvme-1","nvme-lost"]}}]}}`
		},
		"known-device": func(f *fixture) {
			f.files[kubeletDir+"/kubelet_internal_checkpoint"] = `{"Data":{"PodDeviceEntries":[{"ResourceName":"metalplug.io/nvme",` +
				`"DeviceIDs":{"0":["nvme-1"]}}]}}`
		},
		"kubelet-no-directory": func(f *fixture) {
			delete(f.files, kubeletSocket)
			f.files["/var/lib/kubelet"] = ""
		},
		"bad-checkpoint": func(f *fixture) { f.files[kubeletDir+"/kubelet_internal_checkpoint"] = "{" },
		"refused": func(f *fixture) {
			f.status.Refused = []api.Refusal{
				{Time: ago, Resource: nvmeName, Call: "Allocate", Reason: "nvme-1 is unhealthy: gone"},
				{Time: ago, Resource: nvmeName, Call: "PreStartContainer", Reason: "nvme-1 is unhealthy: gone"},
				{Time: ago, Resource: "claim ns/c", Call: "prepare", Reason: "nvme-1: cordoned: repair -> metalplugctl uncordon nvme-1"},
			}
		},
		"no-device": func(f *fixture) {
			f.status.Resources[0].Healthy, f.status.Devices.Healthy, f.devices, f.counts = 0, 0, nil, map[string]int{}
		},
		"none-at-all": func(f *fixture) {
			f.status.Resources[0].Healthy, f.status.Resources[0].Optional, f.status.Resources[0].Connected = 0, true, false
			f.status.Devices, f.devices, f.counts = api.Totals{NotOffered: 2}, nil, map[string]int{}
		},
		"unhealthy": func(f *fixture) { f.devices[0].Health, f.devices[0].Reason = "Unhealthy", "controller nvme1 is dead" },
		"unhealthy-many": func(f *fixture) {
			f.devices[0].Health, f.devices[0].Reason = "Unhealthy", "controller nvme1 is dead"
			for i := range 5 {
				f.devices = append(f.devices,
					api.Device{ID: fmt.Sprint("gpu-", i), Resource: "t/g", Class: "gpu", Health: "Unhealthy", Reason: "Xid 79"},
					api.Device{ID: fmt.Sprint("warm-", i), Resource: "t/g", Class: "gpu", Health: "Healthy", Warning: "it is warm"})
			}
		},
		"cordoned": func(f *fixture) {
			f.devices[0].Health, f.devices[0].Cordoned, f.devices[0].Reason = "Unhealthy", true, "cordoned: loose"
			f.devices[0].Cordon = &api.Cordon{Reason: "loose", User: "root", Login: "ann", Since: lastYear}
		},
		"warning": func(f *fixture) { f.devices[0].Warning = "the link is narrow" },
		"cdi-off": func(f *fixture) {
			f.toml = nvmeOffered + "inject = \"cdi\"\n"
			f.files["/etc/containerd/config.toml"] += "  enable_cdi = false\n"
		},
		"cdi-unset": func(f *fixture) { f.toml = nvmeOffered + "inject = \"cdi\"\n" },
		"memlock": func(f *fixture) {
			f.devices = append(f.devices, api.Device{ID: "hca", Resource: hcaName, Class: "infiniband", Health: "Healthy", Hardware: api.Hardware{Present: true}})
			f.files["/proc/812/comm"] = "containerd\n"
			f.files["/proc/812/limits"] = "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         8388608              8388608              bytes\n"
		},
		"claims":           (*fixture).claims,
		"claims-not-there": func(f *fixture) { f.claims(); delete(f.files, driverProgram) },
		"claims-stopped":   func(f *fixture) { f.claims(); delete(f.files, draSocket); delete(f.files, draRegistration) },
		"claims-unshared":  func(f *fixture) { f.claims(); f.status.Driver.Problem = api.NoSharing },
		"claims-expired": func(f *fixture) {
			f.claims()
			f.status.Driver.Problem = "the identity has expired, because the clock of this node shows 2126-11-18 11:06:41Z"
		},
		"claims-no-node": func(f *fixture) {
			f.claims()
			f.status.Driver.Problem = `the ResourceSlices are not written: retrieve node "a": nodes "a" not found`
		},
		"claims-silent":  func(f *fixture) { f.claims(); f.status.Driver = api.Driver{} },
		"claims-killed":  func(f *fixture) { f.claims(); delete(f.files, "/proc/42/stat") },
		"claims-refused": func(f *fixture) { f.claims(); delete(f.files, "/run/metalplug/claims.sock") },
		"selinux": func(f *fixture) {
			f.files["/sys/fs/selinux/enforce"] = "1"
			f.files["/var/log/audit/audit.log"] = "type=AVC msg=audit(1): avc:  denied  { read } for pid=1 comm=\"metalplugd\"\ntype=USER_LOGIN\n"
			f.label = "system_u:object_r:var_lib_t:s0"
		},
		"selinux-sound": func(f *fixture) {
			f.files["/sys/fs/selinux/enforce"], f.label = "1", "system_u:object_r:container_file_t:s0"
			f.files["/var/log/audit/audit.log"] = "type=USER_LOGIN\n"
			f.files["/usr/share/selinux/packages/metalplug/metalplug.te"] = "policy_module(metalplug, 1.0.0)\n"
			f.files["/sys/fs/selinux/booleans/metalplugd_metrics_tcp"] = "0 0"
		},
		"selinux-not-loaded": func(f *fixture) {
			f.files["/sys/fs/selinux/enforce"], f.label = "1", "system_u:object_r:container_file_t:s0"
			f.files["/var/log/audit/audit.log"] = "type=USER_LOGIN\n"
			f.files["/usr/share/selinux/packages/metalplug/metalplug.te"] = "policy_module(metalplug, 1.0.0)\n"
			f.files["/sys/fs/selinux/booleans/httpd_enable_cgi"] = "1 1"
		},
		"selinux-not-loaded-deb": func(f *fixture) {
			f.files["/sys/fs/selinux/enforce"], f.label = "0", "system_u:object_r:container_file_t:s0"
			f.files["/var/log/audit/audit.log"] = "type=USER_LOGIN\n"
			f.files["/usr/share/selinux/packages/metalplug.pp.bz2"] = "BZh9"
		},
		"selinux-unknown": func(f *fixture) { f.files["/sys/fs/selinux/enforce"] = "1" },
		"recording":       func(f *fixture) { f.status.Source = "recording:/tmp/x" },
		"preview":         func(f *fixture) { f.status.Preview, f.status.Source = true, "recording:/tmp/x" },
		"no-runtime":      func(f *fixture) { delete(f.files, "/etc/containerd/config.toml"); f.needRuntime() },
		"crio": func(f *fixture) {
			delete(f.files, "/etc/containerd/config.toml")
			f.needRuntime()
			f.files["/etc/crio/crio.conf"] = "[crio.runtime]\ncgroup_manager = \"systemd\"\n"
			f.files["/etc/crio/crio.conf.d/10-crun.conf"] = "[crio.runtime.runtimes.crun]\n"
			f.files["/proc/812/comm"] = "crio\n"
			f.files["/proc/812/limits"] = "Max locked memory         unlimited            unlimited            bytes\n"
		},
		"kubelet-root": func(f *fixture) {
			f.run("/usr/bin/kubelet", "--config", "/etc/kubelet.yaml", "--root-dir=/data/kubelet", "--v=2")
		},
		"kubelet-default": func(f *fixture) {
			f.run("/usr/bin/kubelet", "--kubeconfig=/etc/kubernetes/kubelet.conf", "--config=/var/lib/kubelet/config.yaml")
		},
		"kubelet-root-set": func(f *fixture) {
			f.toml = "[paths]\npod_resources = \"/var/lib/k0s/kubelet/pod-resources/kubelet.sock\"\n"
			f.run("/var/lib/k0s/bin/kubelet", "--root-dir", "/elsewhere", "--root-dir", "/var/lib/k0s/kubelet")
		},
		"kubelet-plugins-moved": func(f *fixture) {
			f.toml = "[paths]\ndevice_plugins = \"/var/lib/k0s/kubelet/device-plugins\"\n"
			f.run("/var/lib/k0s/bin/kubelet", "--root-dir=/var/lib/k0s/kubelet")
		},
		"kubelet-microk8s": func(f *fixture) { // version 1.27 creates the link
			delete(f.files, kubeletSocket)
			f.files["/var/lib/kubelet"] = "link ../snap/microk8s/common/var/lib/kubelet"
			f.files["/var/snap/microk8s/common/var/lib/kubelet/device-plugins/kubelet.sock"] = "socket"
			f.microk8s()
		},
		"kubelet-microk8s-unlinked": (*fixture).microk8s,
		"kubelet-k3s":               func(f *fixture) { f.run("/usr/local/bin/k3s server") },
		"kubelet-k3s-root": func(f *fixture) {
			f.run("/usr/local/bin/k3s", "agent", "--kubelet-arg=v=2", "--kubelet-arg", "root-dir=/data")
		},
		"kubelet-k3s-ctl":    func(f *fixture) { f.run("/usr/local/bin/k3s", "kubectl", "--kubelet-arg=root-dir=/data") },
		"kubelet-microshift": func(f *fixture) { f.run("/usr/bin/microshift", "run") },
		"kubelet-in-a-container": func(f *fixture) {
			f.run("/usr/bin/kubelet", "--root-dir=/data")
			f.files["/proc/4711/ns/mnt"] = "link mnt:[2]"
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := soundMachine()
			spoil(&f)
			found := f.examine(t)
			s := screen{}
			s.writeFindings(found)
			golden(t, filepath.Join("doctor", name+".txt"), s.String(), `\(last \d+s ago\)`, "(last 0s ago)")
		})
	}
}

// The sockets of metalplug-dra.
const (
	draSocket       = "/var/lib/kubelet/plugins/metalplug.io/dra.sock"
	draRegistration = "/var/lib/kubelet/plugins_registry/metalplug.io-reg.sock"
)

// claims serves the disks through claims.
func (f *fixture) claims() {
	f.toml = nvmeOffered + "serve = \"dra\"\n"
	f.files[driverProgram] = ""
	f.files["/proc/42/stat"] = ""
	f.status.Driver = api.Driver{PID: 42, Identity: "acts as system:node:a until 2126-11-18 11:06:40Z, with a token"}
	for _, socket := range []string{draSocket, draRegistration, "/run/metalplug/claims.sock"} {
		f.files[socket] = "socket"
	}
}

// run adds a process with this command line (proc(5), /proc/pid/cmdline).
func (f *fixture) run(command ...string) {
	f.files["/proc/4711/cmdline"] = strings.Join(command, "\x00") + "\x00"
	f.files["/proc/4711/ns/mnt"], f.files["/proc/self/ns/mnt"] = "link mnt:[1]", "link mnt:[1]"
}

// microk8s adds the process and the files of MicroK8s.
func (f *fixture) microk8s() {
	f.files["/var/snap/microk8s/common/var/lib/kubelet/pod-resources/kubelet.sock"] = "socket"
	f.files["/var/snap/microk8s/9/args/kubelet"] = "--resolv-conf=/x\n--root-dir=${SNAP_COMMON}/var/lib/kubelet\n--eviction-hard=\"a,b\"\n"
	f.run("/snap/microk8s/9/kubelite", "--scheduler-args-file=/x", "--kubelet-args-file=/var/snap/microk8s/9/args/kubelet")
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

// needRuntime adds a device that locks memory, and a resource with CDI.
func (f *fixture) needRuntime() {
	f.toml = nvmeOffered + "inject = \"cdi\"\n"
	f.devices = append(f.devices, api.Device{ID: "hca", Resource: hcaName, Class: "infiniband", Health: "Healthy", Hardware: api.Hardware{Present: true}})
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
			answers["/v1/kubelet"] = api.KubeletCounts{Allocatable: f.counts, Foreign: f.foreign}
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

// TestNeededHelpers checks that the doctor does not report a missing socket that no resource needs.
func TestNeededHelpers(t *testing.T) {
	const gpu = "builtin = false\n[[resource]]\nname = \"example.org/gpu\"\nclass = \"gpu\"\n"
	for toml, want := range map[string][]string{
		"":                               {holdersSocket, resetSocket},
		gpu:                              {holdersSocket},
		gpu + "shares = 4\n":             nil,
		nvmeOffered:                      {holdersSocket, resetSocket},
		gpu + "reset.method = \"pci\"\n": {holdersSocket, resetSocket},
		"reset.socket = \"direct\"\n":    nil,
	} {
		f := soundMachine()
		delete(f.files, resetSocket)
		delete(f.files, holdersSocket)
		f.toml = toml
		var missed []string
		for _, line := range f.examine(t) {
			if line.Check == "helper sockets" && line.Level == levelFail {
				name, _, _ := strings.Cut(strings.TrimPrefix(line.Text, "there is no socket "), ":")
				missed = append(missed, name)
			}
		}
		if !reflect.DeepEqual(missed, want) {
			t.Errorf("%q: missed are %q, want %q", toml, missed, want)
		}
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
