//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

// unitsConfig has three vendor units.
const unitsConfig = `
[reset]
socket = "direct"

[[resource]]
name = "metalplug.io/nvme"
class = "nvme"
[resource.reset]
method = "none"
scrub = "none"
[resource.units]
init = "mark-init@.service"
start = "mark-start@.service"
release = "mark-release@.service"
`

// vendorStep is a unit that records its unescaped instance, which is the ID of the device. It fails if a certain file
// exists.
const vendorStep = `[Unit]
Description=step of a vendor for %I
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo "%p %I" >>/run/steps; test ! -e /run/fail-%p || { echo "no bitstream" >&2; exit 3; }'
`

// sandboxConfig has a vendor unit that runs without a reset or erasure before it.
const sandboxConfig = `
[[resource]]
name = "example.org/zero"
class = "node"
match = { DEVNAME = "/dev/zero" }
[resource.units]
init = "mark-start@.service"
`

// sandbox is the part of the package's unit that prevents the daemon from accessing systemd. In this test, the daemon
// creates the socket for uevents itself.
const sandbox = `[Unit]
Wants=metalplug-unit.socket
After=metalplug-unit.socket
[Service]
TemporaryFileSystem=/run:ro
BindPaths=/run/metalplug
BindReadOnlyPaths=/run/systemd/notify /run/systemd/journal /run/udev
CapabilityBoundingSet=
NoNewPrivileges=yes
PrivateUsers=yes
PrivateMounts=yes
PrivateIPC=yes
RestrictAddressFamilies=AF_UNIX AF_NETLINK
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
`

// TestUnits makes systemd run vendor units, some of which fail.
func TestUnits(t *testing.T) {
	s := begin(t, unitsConfig, vm.Options{Drives: drives[:1], Unhurried: true})
	for _, name := range []string{"mark-init", "mark-start", "mark-release"} {
		s.m.Write("/etc/systemd/system/"+name+"@.service", vendorStep)
	}
	s.m.Sh("touch /run/fail-mark-init; systemctl daemon-reload")
	for _, step := range []struct {
		name string
		run  func(*story, *testing.T)
	}{
		{"init fails, and the drive is held back", heldBack},
		{"init succeeds", testInitialised},
		{"start and release", startAndRelease},
		{"start fails", startFails},
		{"a unit is missing", missingUnit},
		{"a daemon that does not reach systemd has the helper start them", testSandbox},
	} {
		if !s.m.Step(t, step.name, func(t *testing.T) { step.run(s, t) }) {
			return
		}
	}
}

// steps returns the vendor units that were run since the last call of steps, without their devices.
func (s *story) steps(t *testing.T) string {
	t.Helper()
	var names []string
	for line := range strings.Lines(s.m.Try("sh", "-c", "cat /run/steps; rm -f /run/steps").Stdout) {
		name, device, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(device, "n") || strings.Contains(device, `\x`) {
			t.Errorf("%s was run for %q", name, device)
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

func heldBack(s *story, t *testing.T) {
	s.m.StartDaemon()
	s.m.Eventually("the failure in the journal", patience, func() bool {
		log, _ := s.journal("")
		return strings.Contains(log, "device not initialised") && strings.Contains(log, "failed: exit-code, status 3")
	})
	if n := s.allocatable(nvme); n != 0 {
		t.Errorf("%d drives are offered", n)
	}
	if got := s.steps(t); !strings.HasPrefix(got, "mark-init") {
		t.Errorf("steps: %q", got)
	}
}

func testInitialised(s *story, t *testing.T) {
	s.m.Sh("rm /run/fail-mark-init")
	s.await(t, nvme, 1) // metalplugd repeats the work automatically
	s.steps(t)
	s.m.StopDaemon()
	s.m.StartDaemon()
	s.await(t, nvme, 1)
	if got := s.steps(t); got != "" {
		t.Errorf("after a restart of ours: %q", got)
	}
}

func startAndRelease(s *story, t *testing.T) {
	pod := one("steps")
	s.run(pod)
	if got := s.steps(t); got != "mark-start" {
		t.Errorf("before the container: %q", got)
	}
	s.kubelet.RemovePod(pod)
	s.m.Eventually("the step after the release", patience, func() bool { return s.m.Try("test", "-e", "/run/steps").Code == 0 })
	s.await(t, nvme, 1)
	if got := s.steps(t); got != "mark-release" {
		t.Errorf("after the release: %q", got)
	}
}

func startFails(s *story, t *testing.T) {
	s.m.Sh("touch /run/fail-mark-start")
	pod := one("meets-a-failure")
	s.kubelet.AdmitPod(pod)
	_, _, err := s.kubelet.TryPod(pod)
	if err == nil || !strings.Contains(err.Error(), `run mark-start@nvme\x2d`) || !strings.Contains(err.Error(), "failed: exit-code, status 3") {
		t.Errorf("start: %v", err)
	}
	s.m.Sh("rm /run/fail-mark-start")
	if _, _, err := s.kubelet.TryPod(pod); err != nil {
		t.Errorf("after that: %v", err)
	}
	s.kubelet.RemovePod(pod)
	s.await(t, nvme, 1)
	s.steps(t)
}

// testSandbox checks that the unit of the package starts the helper. The helper reads the name of the vendor unit from
// /etc/metalplug itself.
func testSandbox(s *story, t *testing.T) {
	for _, unit := range []string{"metalplug-unit.socket", "metalplug-unit@.service"} {
		s.m.Push("../../systemd/"+unit, "/etc/systemd/system/"+unit)
	}
	s.m.Write("/etc/systemd/system/metalplugd.service.d/sandbox.conf", sandbox)
	s.m.StopDaemon()
	s.m.Write("/etc/metalplug/metalplug.toml", sandboxConfig)
	s.m.Sh("systemctl daemon-reload")
	s.m.StartDaemon()
	s.await(t, "example.org/zero", 1)
	if got := s.steps(t); got != "mark-start" {
		t.Errorf("steps of a daemon without a capability: %q", got)
	}
	if log := s.m.Journal("metalplug-unit@*", "20"); !strings.Contains(log, "Started metalplug-unit@") {
		t.Errorf("systemd started no helper:\n%s", log)
	}
	if got := s.m.Sh("grep CapEff /proc/$(systemctl show --value --property MainPID metalplugd)/status"); !strings.HasSuffix(got, "0000000000000000") {
		t.Errorf("its capabilities: %q", got)
	}
}

func missingUnit(s *story, t *testing.T) {
	s.m.Sh("rm /etc/systemd/system/mark-release@.service; systemctl daemon-reload")
	r := s.m.Try("metalplugd", "--check")
	if want := "warning: the unit mark-release@.service is missing on this machine\n"; r.Code != 0 || r.Stderr != want {
		t.Errorf("metalplugd --check: exit %d, %q", r.Code, r.Stderr)
	}
	if r := s.m.Try("metalplugctl", "doctor"); !strings.Contains(r.Stdout, "mark-release@.service is missing") {
		t.Errorf("doctor: %s%s", r.Stdout, r.Stderr)
	}
}
