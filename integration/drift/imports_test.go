// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"encoding/json"
	"errors"
	"go/version"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/metalplug/metalplug/"

// pkg has the facts of "go list" about a package.
type pkg struct {
	ImportPath string
	Doc        string
	Imports    []string
	Standard   bool
}

// packages lists the packages of this module.
func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Doc,Imports", module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		all = append(all, p)
	}
}

// only lists the outside modules that only some packages may import, by path prefix, with these packages and the
// reason.
var only = []struct {
	prefix string
	users  []string
	why    string
}{
	{"github.com/jochenvg/go-udev", []string{"udev"}, "libudev and cgo stay in one package; all others build without"},
	{
		"github.com/coreos/go-systemd",
		[]string{"systemd", "systemd/sockets", "systemd/units"},
		"nothing below the daemon knows the service manager",
	},
	{"github.com/godbus", []string{"systemd/units"}, "it comes with go-systemd, and D-Bus is how systemd is asked"},
	{
		"google.golang.org/grpc",
		[]string{"daemon/plugin", "daemon/kubelet"},
		"gRPC is how the kubelet is talked to, no concern of anybody else",
	},
	{
		"k8s.io/kubelet",
		[]string{"daemon/plugin", "daemon/kubelet"},
		"the kubelet's API is translated at two places: what serves it, and what asks it",
	},
	{"github.com/BurntSushi/toml", []string{"daemon/config"}, "what is configured is checked values elsewhere"},
	{
		"tags.cncf.io/container-device-interface",
		[]string{"daemon/cdi"},
		"how devices are described to container runtimes is no concern of who offers them",
	},
	{"k8s.io/client-go", nil, "only daemon/dra speaks to the API server, in a module of its own"},
	{"github.com/prometheus", []string{"daemon/control"}, "others count by plain functions, see plugin.Metrics"},
	{"net/http", []string{"daemon/control"}, "HTTP is how the control socket is served. It brings TLS into each program that links it"},
	{
		"regexp",
		[]string{"daemon/plugin", "daemon/control", "daemon/dra", "cmd/metalplugctl"},
		"it adds 0.3 MB to a helper, while metalplugd and metalplugctl link it for Prometheus and cobra",
	},
	{"github.com/spf13/cobra", []string{"cmd/metalplugctl"}, "the daemon has four flags"},
	{"github.com/spf13/pflag", []string{"cmd/metalplugctl"}, "cobra's flags are those of cobra's commands"},
	{"github.com/fsnotify/fsnotify", []string{"directory"}, "what is watched may be removed and made again, which takes more than inotify"},
}

func TestOutsideModulesStayWhereTheyBelong(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(name, "integration/") {
			continue // these folders may import any module
		}
		for _, imported := range p.Imports {
			for _, rule := range only {
				if strings.HasPrefix(imported, rule.prefix) && !slices.Contains(rule.users, name) {
					t.Errorf("%s imports %s: %s", name, imported, rule.why)
				}
			}
		}
	}
}

// layers are the packages in import order. A package may import only those before it in the list.
var layers = []string{
	"directory", "internal/fsutil", "daemon/api", "internal/liveness", "internal/clients", "daemon/sysfs", "udev", "udev/recording", "daemon/exchange",
	"cgroup", "systemd", "internal/commandline", "systemd/sockets", "systemd/unitfile", "systemd/units", "daemon/audit", "daemon/device", "daemon/fault", "daemon/inspect", "daemon/bundle", "daemon/config", "daemon/checkpoint",
	"daemon/unit", "daemon/reset", "daemon/lease", "daemon/evidence", "daemon/verdict", "daemon/statefile", "daemon/kubelet", "daemon/inventory", "daemon/turnover", "daemon/helper", "daemon/cdi", "daemon/plugin",
	"daemon/control", "daemon", "cmd/metalplugd", "cmd/metalplugctl", "cmd/metalplug-holders",
}

// TestGoIsNewEnough checks that go.mod requires a Go version without GO-2026-6617 (net/http). With GOTOOLCHAIN=local,
// Go ignores the line toolchain, but not the line go.
func TestGoIsNewEnough(t *testing.T) {
	const fixed = "1.26.9"
	found := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(text(t, "go.mod"))
	if found == nil || version.Compare("go"+found[1], "go"+fixed) < 0 {
		t.Errorf("go.mod asks for %q, want %s or newer", found, fixed)
	}
}

// TestToolLinksNoDaemon keeps metalplugctl small. It may import the types of the daemon's answers. The daemon itself would
// more than double its size.
func TestToolLinksNoDaemon(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"cmd/metalplugctl").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	linked := strings.Fields(string(out))
	for _, name := range []string{"net/http", "crypto/tls", "google.golang.org/grpc", module + "daemon/inventory", module + "daemon/plugin"} {
		if slices.Contains(linked, name) {
			t.Errorf("it links %s", name)
		}
	}
}

// TestHoldersLinksLittle keeps metalplug-holders small. It may inspect all processes, which makes it a target, so it must
// not contain code that it does not need.
func TestHoldersLinksLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", module+"cmd/metalplug-holders").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	got := strings.Fields(string(out))
	want := []string{"golang.org/x/sys/unix", module + "daemon/exchange", module + "cgroup", module + "cmd/metalplug-holders"}
	if !slices.Equal(got, want) {
		t.Errorf("it links %q, want %q", got, want)
	}
	out, err = exec.Command("go", "list", "-deps", module+"cmd/metalplug-holders").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for _, name := range strings.Fields(string(out)) {
		if slices.Contains([]string{"net", "regexp", "encoding/gob", "crypto/tls", "text/template"}, name) {
			t.Errorf("it links %s: one request and its answer need JSON alone", name)
		}
	}
}

func TestImportsGoOneWay(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(name, "integration/") {
			continue // may import anything
		}
		own := slices.Index(layers, name)
		if own < 0 {
			t.Errorf("%s has no place in the layers: add it to the list in this test", name)
		}
		for _, imported := range p.Imports {
			if rest, ok := strings.CutPrefix(imported, module); ok && slices.Index(layers, rest) > own {
				t.Errorf("%s imports %s, which is above it", name, rest)
			}
		}
	}
}

func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

// TestResetLinksLittle limits the code that runs with CAP_SYS_ADMIN after metalplugctl has become metalplug-reset.
func TestResetLinksLittle(t *testing.T) {
	// These are the build tags of the Makefile and packaging/build.sh.
	c := exec.Command("go", "list", "-deps", "-tags", "netgo,osusergo,nolibudev", "-f", "{{if .Standard}}std {{end}}{{.ImportPath}}", module+"daemon/reset")
	out, err := c.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	// It reads the configuration and udev's database itself, because it does not trust the daemon's information about a
	// device.
	allowed := []string{
		module + "daemon/reset", module + "daemon/exchange", module + "daemon/sysfs", "golang.org/x/sys/unix",
		module + "cgroup", module + "daemon/config", module + "daemon/device", module + "udev", module + "udev/recording", module + "directory", module + "internal/liveness", module + "internal/fsutil",
		"github.com/BurntSushi/toml", "github.com/BurntSushi/toml/internal", "github.com/fsnotify/fsnotify", "github.com/fsnotify/fsnotify/internal",
	}
	banned := []string{"runtime/cgo", "net", "encoding/gob", "text/template", "plugin"}
	for line := range strings.Lines(string(out)) {
		name, standard := strings.CutPrefix(strings.TrimSpace(line), "std ")
		if standard && slices.Contains(banned, name) || !standard && !slices.Contains(allowed, name) {
			t.Errorf("metalplug-reset contains %s", name)
		}
	}
}
