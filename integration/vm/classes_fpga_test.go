//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/vm"
)

// portPath is the port in sysfs.
const portPath = "/sys/bus/platform/devices/dfl-port.0"

// accelerator is the ID of the accelerator in the simulated card.
const accelerator = "00112233445566778899aabbccddeeff"

// fpgaPort uses the kernel's DFL drivers with a simulated card.
func fpgaPort(s *story, t *testing.T) {
	load := func() {
		s.expect(t, change{
			name: "a DFL card", act: func() { s.m.Run("modprobe", "dfl-fake") }, resource: port, by: 1,
			action: "bind", device: always("dfl-port.0"),
		})
	}
	load()
	card := s.pciFunction("0x1af4", "0x1110") // ivshmem-plain
	address := path.Base(card)
	before := s.healthy(port)
	if d := s.shown(t, "dfl-port.0"); !slices.Equal(before, []string{"fpga-" + address + "-port0"}) || !strings.Contains(d.Model, accelerator) {
		t.Errorf("%v at %s is %+v", before, address, d)
	}
	if d := s.shown(t, "dfl-fme.0"); d.Resource != "" {
		t.Errorf("the management engine is offered: %+v", d)
	}
	portUsed(s, t)
	portErrors(s, t, card)
	for _, c := range []change{
		{name: "port's driver unbound", act: func() { s.m.Sh("echo dfl-port.0 > /sys/bus/platform/drivers/dfl-port/unbind") }, by: -1, action: "unbind"},
		{name: "port's driver bound", act: func() { s.m.Sh("echo dfl-port.0 > /sys/bus/platform/drivers/dfl-port/bind") }, by: 1, action: "bind"},
		{name: "the DFL card goes", act: func() { s.m.Run("modprobe", "-r", "dfl-fake") }, by: -1, action: "remove"},
	} {
		c.resource, c.device = port, always("dfl-port.0")
		s.expect(t, c)
	}
	load()
	if after := s.healthy(port); !slices.Equal(before, after) {
		t.Errorf("healthy devices were %v and are %v", before, after)
	}
	s.m.Run("modprobe", "-r", "dfl-fake")
	s.await(t, port, 0)
}

// portUsed checks that a port is reset for a container, and that the container does not get a port that another process has
// open.
func portUsed(s *story, t *testing.T) {
	pod := vm.Pod{UID: "accelerates", Limits: map[string]int64{port: 1}}
	s.kubelet.AdmitPod(pod)
	defer s.kubelet.RemovePod(pod)
	p := s.m.Start("sh", "-c", "exec 3<>/dev/dfl-port.0; echo open; exec sleep infinity")
	defer p.Stop()
	if _, err := p.Await(0, patience, func(l vm.Line) bool { return l.Text == "open" }); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.kubelet.StartPod(pod); err == nil || !strings.Contains(err.Error(), "a process of the host has the device open (\"sleep\", pid ") {
		t.Errorf("start with a port that the host has open: %v", err)
	}
	p.Stop()
	_, cursor := s.journal("")
	began := s.now(t)
	nodes, _, err := s.kubelet.StartPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	s.note("port reset before a start", "run a pod", s.now(t).Sub(began))
	if len(nodes) != 1 || s.m.Run("readlink", "-f", nodes[0]) != "/dev/dfl-port.0" {
		t.Errorf("a pod gets %v", nodes)
	}
	if log, _ := s.journal(cursor); !strings.Contains(log, "reset port dfl-port.0") {
		t.Errorf("the journal does not tell of a reset:\n%s", log)
	}
}

// portErrors checks that the errors of a port remain until a process writes them back.
func portErrors(s *story, t *testing.T, card string) {
	t.Helper()
	inspect := "; udevadm trigger --action change " + portPath
	for _, c := range []struct {
		name, act string
		by        int64
		reason    string
	}{
		{"port error", "echo 0x5 > " + card + "/port_error", -1, "port error: errors/errors is 0x5"},
		{"port error written back", "echo 0x5 > " + portPath + "/errors/errors", 1, ""},
		{"port stopped for its power", "echo 6 > " + card + "/port_power", -1, "draws too much power (AP6)"},
		{"port has power", "echo 0 > " + card + "/port_power", 1, ""},
	} {
		s.expect(t, change{
			name: c.name, act: func() { s.m.Sh(c.act + inspect) }, resource: port, by: c.by,
			action: "change", device: always("dfl-port.0"),
		})
		s.because(t, "dfl-port.0", c.reason)
	}
}
