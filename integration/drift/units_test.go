// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/unit"
	"github.com/metalplug/metalplug/integration/need"
	"github.com/metalplug/metalplug/udev"
)

// unitFile is a unit file, with all values of each directive, in order.
type unitFile map[string][]string

// readUnit reads a unit of the folder systemd.
func readUnit(t *testing.T, name string) unitFile {
	t.Helper()
	u := make(unitFile)
	for line := range strings.Lines(text(t, "systemd/"+name)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(key, "#") {
			u[key] = append(u[key], value)
		}
	}
	return u
}

// text reads a file of the repository.
func text(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile("../../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// names lists the files of the repository that match a pattern, without their folder.
func names(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob("../../" + pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", pattern, len(files), err)
	}
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	return files
}

// exposures are the maximum exposures that systemd-analyze may report for a service, in tenths.
var exposures = []struct {
	unit string
	most int
}{{"metalplugd.service", 10}, {"metalplug-reset@.service", 15}, {"metalplug-holders@.service", 15}, {"metalplug-unit@.service", 15}, {"metalplug-dra.service", 15}}

// TestExposure checks that systemd-analyze's results for the units are within these limits, and agree with the
// documents.
func TestExposure(t *testing.T) {
	var found []string
	for _, e := range exposures {
		file, err := filepath.Abs("../../systemd/" + e.unit)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold="+strconv.Itoa(e.most), file).CombinedOutput()
		if _, missing := err.(*exec.Error); missing || strings.Contains(string(out), "unrecognized option") {
			need.Lacks(t, "systemd-analyze", "systemd-analyze of systemd 250 or newer is needed: %v %s", err, out)
		}
		if err != nil {
			t.Errorf("%v, more than %.1f:\n%s", err, float64(e.most)/10, out)
		}
		_, level, _ := strings.Cut(string(out), "Overall exposure level for ")
		found = append(found, strings.Fields(level)[1])
	}
	last := len(found) - 1
	line := strings.Join(found[:last], ", ") + " and " + found[last]
	for _, document := range []string{"docs/threat-model.md"} {
		if words := strings.Join(strings.Fields(text(t, document)), " "); !strings.Contains(words, line) {
			t.Errorf("%s: systemd-analyze finds %s, which it does not say", document, line)
		}
	}
}

func TestDaemonMayDoNothing(t *testing.T) {
	u := readUnit(t, "metalplugd.service")
	for key, want := range map[string]string{
		"CapabilityBoundingSet": "", "AmbientCapabilities": "", "NoNewPrivileges": "yes", "PrivateUsers": "yes",
		"PrivateNetwork": "yes", "DevicePolicy": "strict", "ProtectSystem": "yes", "RestrictAddressFamilies": "AF_UNIX",
		"RestartPreventExitStatus": "78", "Restart": "always", "StartLimitIntervalSec": "0", "Type": "notify",
	} {
		if got := u[key]; len(got) != 1 || got[0] != want {
			t.Errorf("%s=%q, want %q", key, got, want)
		}
	}
	if empty := u["TemporaryFileSystem"]; !slices.Equal(empty, []string{"/:ro", "/run:ro"}) {
		t.Errorf("it begins with %q as its root directory", empty)
	}
	// for systemd, which opens them when the device rule already applies (OpenFile=, StandardInput=)
	if devices := u["DeviceAllow"]; !slices.Equal(devices, []string{"/dev/kmsg r", "/dev/null rw"}) {
		t.Errorf("it may open %q", devices)
	}
}

// TestServicesSeeNoOtherService checks which files of /run, /etc and /var each service sees. A socket of another service of
// root among them would make the daemon root. TestReach of integration/sandbox tries what can be reached there.
func TestServicesSeeNoOtherService(t *testing.T) {
	for name, want := range map[string]string{
		"metalplugd.service": "/etc/ld.so.cache /etc/localtime /etc/metalplug /run/cdi /run/metalplug " +
			"/run/systemd/journal/socket /run/systemd/notify /run/udev/data /var/lib/kubelet/device-plugins /var/lib/kubelet/pod-resources /var/lib/metalplug",
		"metalplug-reset@.service":   "/etc/ld.so.cache /etc/metalplug /run/metalplug-locks /run/metalplug/holders.sock /run/udev/data",
		"metalplug-holders@.service": "/etc/ld.so.cache",
		"metalplug-unit@.service":    "/etc/ld.so.cache /etc/metalplug /run/systemd/private",
		"metalplug-dra.service": "/etc/hosts /etc/ld.so.cache /etc/localtime /etc/nsswitch.conf /etc/pki/tls/certs /etc/resolv.conf " +
			"/etc/ssl/certs /run/metalplug /run/systemd/journal/socket /run/systemd/notify",
	} {
		u := readUnit(t, name)
		var seen []string
		for _, path := range strings.Fields(strings.Join(slices.Concat(u["BindPaths"], u["BindReadOnlyPaths"]), " ")) {
			path = strings.TrimPrefix(path[strings.LastIndexByte(path, ':')+1:], "-")
			if strings.HasPrefix(path, "/run") || strings.HasPrefix(path, "/etc") || strings.HasPrefix(path, "/var") {
				seen = append(seen, path)
			}
		}
		slices.Sort(seen)
		if got := strings.Join(seen, " "); got != want {
			t.Errorf("%s shows\n%s, want\n%s", name, got, want)
		}
		for _, root := range []string{"/run", "/etc", "/var"} {
			if empty := strings.Join(u["TemporaryFileSystem"], " "); !strings.Contains(empty, root+":ro") && !strings.Contains(empty, "/:ro") {
				t.Errorf("%s shows all of %s", name, root)
			}
		}
	}
}

// TestCapabilitiesOfHelpers checks that no helper has gained a capability by accident.
func TestCapabilitiesOfHelpers(t *testing.T) {
	for name, want := range map[string]string{
		"metalplug-reset@.service":   "CAP_SYS_ADMIN",
		"metalplug-holders@.service": "CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_CHECKPOINT_RESTORE",
		"metalplug-unit@.service":    "",
		"metalplug-dra.service":      "",
	} {
		if got := readUnit(t, name)["CapabilityBoundingSet"]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
}

// TestDescriptorNames checks that a unit passes each descriptor under the name that the
// daemon expects.
func TestDescriptorNames(t *testing.T) {
	passed := make(map[string]bool)
	for _, name := range names(t, "systemd/metalplugd*.socket") {
		for _, descriptor := range readUnit(t, name)["FileDescriptorName"] {
			passed[descriptor] = true
		}
	}
	for _, file := range readUnit(t, "metalplugd.service")["OpenFile"] {
		passed[strings.Split(file, ":")[1]] = true
	}
	known := 0
	for _, s := range sources(t) {
		ast.Inspect(s.File, func(n ast.Node) bool {
			index, ok := n.(*ast.IndexExpr)
			if !ok {
				return true
			}
			literal, ok := index.Index.(*ast.BasicLit)
			if sockets, is := index.X.(*ast.SelectorExpr); ok && is && sockets.Sel.Name == "Sockets" && literal.Kind == token.STRING {
				known++
				if name, _ := strconv.Unquote(literal.Value); !passed[name] {
					t.Errorf("%s: no unit passes on %q, only %v", s.name, name, slices.Sorted(maps.Keys(passed)))
				}
			}
			return true
		})
	}
	if known == 0 {
		t.Error("the daemon takes no descriptor: this test looks at the wrong place")
	}
}

// TestDriverIsUnprivileged checks that the user of metalplug-dra.service and root are the only ones that can send claims.
func TestDriverIsUnprivileged(t *testing.T) {
	u, claims, kubelet := readUnit(t, "metalplug-dra.service"), readUnit(t, "metalplugd-claims.socket"), readUnit(t, "metalplug-dra.socket")
	for name, want := range map[string][2]string{
		"User": {u["User"][0], "metalplug-dra"}, "SocketGroup": {claims["SocketGroup"][0], "metalplug-dra"}, "claims": {claims["SocketMode"][0], "0660"},
		"kubelet": {kubelet["SocketMode"][0], "0600"},
		"sockets": {strings.Join(kubelet["ListenStream"], " "), "/var/lib/kubelet/plugins/metalplug.io/dra.sock /var/lib/kubelet/plugins_registry/metalplug.io-reg.sock"},
	} {
		if want[0] != want[1] {
			t.Errorf("%s is %q, want %q", name, want[0], want[1])
		}
	}
	if !strings.Contains(u["ExecStart"][0], " --control="+claims["ListenStream"][0]+" ") {
		t.Errorf("metalplug-dra does not use %q", claims["ListenStream"])
	}
	for file, line := range map[string]string{"metalplug.sysusers.conf": "\ng metalplug-dra ", "metalplug-dra.sysusers.conf": "\nu metalplug-dra "} {
		if !strings.Contains(text(t, "systemd/"+file), line) {
			t.Errorf("%s has no line %q", file, line)
		}
	}
}

func TestSocketPathsMatchConfiguration(t *testing.T) {
	c := config.Default()
	for name, want := range map[string]string{
		"metalplug-reset.socket": c.Reset.Socket, "metalplug-holders.socket": c.Reset.Holders,
		"metalplug-unit.socket": c.Reset.Units,
	} {
		if got := readUnit(t, name)["ListenSequentialPacket"]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s listens on %q, want %q", name, got, want)
		}
	}
	if got := readUnit(t, "metalplugd-control.socket")["ListenStream"]; !slices.Equal(got, []string{c.Paths.Run + "/control.sock"}) {
		t.Errorf("the control socket is %q", got)
	}
	u := readUnit(t, "metalplugd.service")
	writable := make(map[string]bool)
	for _, dir := range strings.Fields(strings.Join(slices.Concat(u["ReadWritePaths"], u["BindPaths"]), " ")) {
		writable[dir[strings.LastIndexByte(dir, ':')+1:]] = true
	}
	// systemd needs /proc to apply AppArmorProfile=. The threat model lists the files there that the kernel allows it
	// to write.
	want := []string{c.Paths.DevicePlugins, c.Paths.State, c.Paths.CDI, "/proc"}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(writable)); !slices.Equal(got, want) {
		t.Errorf("the daemon may write to %q, want %q", got, want)
	}
}

// TestUdevRuleMatchesClasses checks that the udev rule that starts the daemon for a device agrees with the
// classes.
func TestUdevRuleMatchesClasses(t *testing.T) {
	rules := text(t, "systemd/70-metalplug.rules")
	want := 0
	for _, class := range device.Classes {
		for _, match := range class.Match {
			if line := rule(match); strings.Contains(rules, line+"\n") {
				want++
			} else {
				t.Errorf("class %s: 70-metalplug.rules has no line\n%s", class.Name, line)
			}
		}
	}
	if got := strings.Count(rules, `GOTO="metalplug_wants"`); got != want {
		t.Errorf("70-metalplug.rules has %d matches, the classes have %d", got, want)
	}
}

// rule formats a match in the syntax of udev's rules.
func rule(m udev.Match) string {
	parts := []string{fmt.Sprintf("SUBSYSTEM==%q", m.Subsystem)}
	if m.DevType != "" {
		parts = append(parts, fmt.Sprintf("ENV{DEVTYPE}==%q", m.DevType))
	}
	for _, key := range slices.Sorted(maps.Keys(m.Properties)) {
		parts = append(parts, fmt.Sprintf("ENV{%s}==%q", key, m.Properties[key]))
	}
	return strings.Join(parts, ", ") + `, GOTO="metalplug_wants"`
}

// opened maps the nodes of the classes to the name in /proc/devices with which the helper may open them, and to their
// SELinux type. Other devices are reset through sysfs, and only containers open their nodes.
var opened = map[string]struct{ group, label string }{
	"/dev/nvme[0-9]*n[0-9]*":            {"block-*", "fixed_disk_device_t"}, // also matches controllers (char-nvme)
	"/dev/dfl-port.[0-9]*":              {"char-dfl-port", "metalplug_dfl_device_t"},
	"/dev/*":                            {"char-vfio", "vfio_device_t"}, // class node: VFIO groups, and the disks above
	"/dev/ng[0-9]*n[0-9]*":              {},
	"/dev/intel-fpga-port.[0-9]*":       {},
	"/dev/xdma[0-9]*_user":              {},
	"/dev/xdma[0-9]*_bypass":            {},
	"/dev/xdma[0-9]*_h2c_[0-9]*":        {},
	"/dev/xdma[0-9]*_c2h_[0-9]*":        {},
	"/dev/xdma[0-9]*_events_[0-9]*":     {},
	"/dev/infiniband/umad[0-9]*":        {},
	"/dev/infiniband/issm[0-9]*":        {},
	"/dev/nvidia[0-9]*":                 {},
	"/dev/nvidiactl":                    {},
	"/dev/nvidia-uvm":                   {},
	"/dev/nvidia-uvm-tools":             {},
	"/dev/nvidia-modeset":               {},
	"/dev/kfd":                          {},
	"/dev/dri/card[0-9]*":               {},
	"/dev/dri/renderD[0-9]*":            {},
	"/dev/accel/accel[0-9]*":            {},
	"/dev/infiniband/uverbs[0-9]*":      {},
	"/dev/infiniband/rdma_cm":           {},
	"/dev/nvidia-caps/nvidia-cap[0-9]*": {},
}

// TestUnitAndPolicyKnowTheNodes fails when a class gets a new node, until this test records whether the helper opens
// it.
func TestUnitAndPolicyKnowTheNodes(t *testing.T) {
	allowed := readUnit(t, "metalplug-reset@.service")["DeviceAllow"]
	policy := text(t, "selinux/metalplug.te")
	for _, class := range device.Classes {
		for _, node := range class.DevNodes {
			by, known := opened[node]
			if !known {
				t.Errorf("class %s hands out %s, of which this test does not know whether the helper opens it", class.Name, node)
			}
			if by.group == "" {
				continue
			}
			if !slices.Contains(allowed, by.group+" rw") {
				t.Errorf("class %s: metalplug-reset@.service allows %q, not %s for %s", class.Name, allowed, by.group, node)
			}
			if !regexp.MustCompile(`allow metalplug_reset_t ` + by.label + `:(chr|blk)_file (rw_|\{ getattr open read write \})`).MatchString(policy) {
				t.Errorf("class %s: metalplug.te does not let the helper open %s for %s", class.Name, by.label, node)
			}
		}
	}
}

// TestHelpersAreBounded checks that a request that a pod makes expensive can exhaust only the helper, and not the
// memory or time of the node.
func TestHelpersAreBounded(t *testing.T) {
	for name, want := range map[string]struct{ memory, time string }{
		"metalplug-reset@.service":   {"256M", "49h"},
		"metalplug-holders@.service": {"64M", "2min"},
		"metalplug-unit@.service":    {"64M", "65min"},
	} {
		u := readUnit(t, name)
		for key, value := range map[string]string{"MemoryMax": want.memory, "RuntimeMaxSec": want.time, "OOMScoreAdjust": "0"} {
			if got := u[key]; !slices.Equal(got, []string{value}) {
				t.Errorf("%s: %s=%q, want %q", name, key, got, value)
			}
		}
	}
	if unit.MaxTimeout >= 65*time.Minute {
		t.Errorf("systemd ends metalplug-unit before %v have passed", unit.MaxTimeout)
	}
	if line := "maxTimeout = 48 * time.Hour"; !strings.Contains(text(t, "daemon/reset/reset.go"), line) {
		t.Errorf("daemon/reset/reset.go has no line %q: RuntimeMaxSec= of metalplug-reset@.service is to be longer", line)
	}
	if len(readUnit(t, "metalplugd.service")["MemoryMax"]) != 1 {
		t.Error("metalplugd.service has no MemoryMax=")
	}
}

// TestNothingEnablesItself checks that the packages contain no preset. On Fedora the operator enables the daemon, and a
// preset would start it at the next boot.
func TestNothingEnablesItself(t *testing.T) {
	if found, err := filepath.Glob("../../systemd/*.preset"); err != nil || len(found) > 0 {
		t.Errorf("presets: %q, %v", found, err)
	}
}

// TestEachPathHasOneMount checks that no unit names a path twice. systemd 252 and 257 use only one mount for each path
// (drop_duplicates in src/core/namespace.c). A second line for a path cancels the first. ExecPaths=/usr/lib made that
// directory writable despite ProtectSystem=strict, and NoExecPaths=/run had no effect on /run.
func TestEachPathHasOneMount(t *testing.T) {
	for _, name := range names(t, "systemd/*.service") {
		u, seen := readUnit(t, name), make(map[string]string)
		for _, key := range []string{
			"TemporaryFileSystem", "BindPaths", "BindReadOnlyPaths", "InaccessiblePaths", "ReadOnlyPaths", "ReadWritePaths",
		} {
			for _, word := range strings.Fields(strings.Join(u[key], " ")) {
				parts := strings.Split(strings.TrimPrefix(word, "-"), ":")
				path := parts[0]
				if strings.HasPrefix(key, "Bind") {
					path = parts[len(parts)-1]
				}
				if other := seen[path]; other != "" {
					t.Errorf("%s: %s= and %s= both name %s", name, other, key, path)
				}
				seen[path] = key
			}
		}
		for _, key := range []string{"ExecPaths", "NoExecPaths"} {
			if len(u[key]) > 0 {
				t.Errorf("%s: %s=%s", name, key, u[key])
			}
		}
	}
}
