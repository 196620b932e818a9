//go:build integration

// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/integration/need"
)

// patience is the maximum time for any step of a test.
const patience = time.Minute

// machine is a container with a running systemd. Its changes are lost when it ends.
type machine struct {
	t      *testing.T
	leader string // PID of the container's process 1 on the host
	out    string // the directory /out of the container
}

// boot starts a container with the programs and units of this checkout.
func boot(t *testing.T, suite string) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		need.Lacks(t, "nspawn", "only root can start systemd-nspawn")
	}
	tree, err := exec.Command("./tree.sh", suite).Output()
	if err != nil {
		need.Lacks(t, "nspawn", "tree.sh %s: %v", suite, err)
	}
	m := &machine{t: t, out: t.TempDir()}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", m.out+"/probe", "./integration/sandbox/probe")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v\n%s", err, out)
	}
	c := exec.Command("systemd-nspawn", "--quiet", "--directory", strings.TrimSpace(string(tree)), "--volatile=overlay", "--boot",
		"--register=no", "--keep-unit", "--private-network", "--capability=all", "--machine=sandbox", "--console=pipe",
		"--system-call-filter=bpf", // systemd needs this to enforce DevicePolicy=
		"--bind="+m.out+":/out", "--bind-ro="+root+":/src")
	// Otherwise the container itself would make /sys and /proc/sys read-only, and the test could not check the units.
	c.Env = append(os.Environ(), "SYSTEMD_NSPAWN_API_VFS_WRITABLE=1", "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1")
	var console bytes.Buffer
	c.Stdout, c.Stderr = &console, &console
	if err := c.Start(); err != nil {
		need.Lacks(t, "nspawn", "systemd-nspawn: %v", err)
	}
	t.Cleanup(func() {
		_, _ = m.try("systemctl exit")
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		select {
		case <-ended:
		case <-time.After(patience):
			c.Process.Kill()
			<-ended
		}
		if t.Failed() {
			t.Logf("console:\n%s", console.String())
		}
	})
	pid := strconv.Itoa(c.Process.Pid)
	m.await("the container", func() bool {
		children, _ := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
		for _, child := range strings.Fields(string(children)) {
			if name, _ := os.ReadFile("/proc/" + child + "/comm"); string(name) == "systemd\n" {
				m.leader = child
			}
		}
		if m.leader == "" {
			return false
		}
		state, _ := m.try("systemctl is-system-running")
		return strings.HasPrefix(state, "running") || strings.HasPrefix(state, "degraded")
	})
	m.sh(install)
	return m
}

// install installs the files of a package in the container.
const install = `
install -D -m755 -t /usr/sbin /src/bin/metalplugd /src/bin/metalplug-dra
install -D -m755 -t /usr/bin /src/bin/metalplugctl
install -D -m755 -t /usr/libexec/metalplug /src/bin/metalplug-* /out/probe
cp /src/systemd/*.service /src/systemd/*.socket /src/systemd/*.target /usr/lib/systemd/system/
cp /src/systemd/metalplug.tmpfiles.conf /usr/lib/tmpfiles.d/metalplug.conf
cp /src/systemd/metalplug.sysusers.conf /usr/lib/sysusers.d/metalplug.conf
cp /src/systemd/metalplug-dra.sysusers.conf /usr/lib/sysusers.d/metalplug-dra.conf
systemd-sysusers
mkdir -p /etc/metalplug/conf.d
[ -e /dev/kmsg ] || mknod -m 644 /dev/kmsg c 1 11
udevadm trigger /sys/class/mem/zero
udevadm settle
systemctl daemon-reload
`

// try runs a script in the container.
func (m *machine) try(script string) (out string, err error) {
	c := exec.Command("nsenter", "-t", m.leader, "-m", "-u", "-i", "-n", "-p", "-C", "--", "/bin/sh", "-c", script)
	c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	text, err := c.CombinedOutput()
	return string(text), err
}

// sh runs a script in the container, which must succeed.
func (m *machine) sh(script string) string {
	m.t.Helper()
	out, err := m.try("set -e\n" + script)
	if err != nil {
		log, _ := m.try("journalctl -b --no-pager | tail -40")
		m.t.Fatalf("%s\n%v\n%s\n%s", script, err, out, log)
	}
	return strings.TrimSpace(out)
}

// await waits for a condition.
func (m *machine) await(what string, holds func() bool) {
	m.t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			log := ""
			if m.leader != "" {
				log, _ = m.try("journalctl -b --no-pager | tail -40")
			}
			m.t.Fatalf("%s: not within %v\n%s", what, patience, log)
		}
	}
}

// write writes a file in the container.
func (m *machine) write(path, text string) {
	m.t.Helper()
	name := fmt.Sprintf("%s/%d", m.out, time.Now().UnixNano())
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
	m.sh("mkdir -p $(dirname " + path + "); cp /out/" + filepath.Base(name) + " " + path)
}
