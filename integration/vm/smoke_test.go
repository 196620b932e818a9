//go:build integration

// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"os"
	"path"
	"testing"
	"time"

	"github.com/metalplug/metalplug/integration/vm"
)

// TestMachine tests the machine itself, without metalplugd. A failure here is not caused by the daemon.
func TestMachine(t *testing.T) {
	m := vm.Boot(t, vm.Options{Drives: []vm.Drive{{Serial: "S1"}}})
	udev := m.WatchUdev()

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(self)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	m.Push(self, "/tmp/self")
	t.Logf("pushed %d MiB in %v", info.Size()>>20, time.Since(began).Round(time.Millisecond))
	if r := m.Try("sh", "-c", "echo out; echo err >&2; exit 3"); r != (vm.Result{Code: 3, Stdout: "out\n", Stderr: "err\n"}) {
		t.Errorf("command left %+v", r)
	}

	nodes := m.Namespaces()
	if nodes["S1"] == "" || nodes["BOOT0"] == "" || len(nodes) != 2 {
		t.Fatalf("drives at boot: %v", nodes)
	}

	s2 := vm.Drive{Serial: "S2"}
	from := udev.Mark()
	began = time.Now()
	m.Plug(s2)
	m.Eventually("drive S2", time.Minute, func() bool { return m.Namespaces()["S2"] != "" })
	node := path.Base(m.Namespaces()["S2"])
	udev.Event(from, "add", node, time.Now())
	t.Logf("plugged %s as %s in %v", s2.Serial, node, time.Since(began).Round(time.Millisecond))

	from = udev.Mark()
	began = time.Now()
	m.Unplug(s2)
	t.Logf("unplugged %s in %v", s2.Serial, time.Since(began).Round(time.Millisecond))
	udev.Event(from, "remove", node, time.Now())

	from = udev.Mark()
	m.Sh(`modprobe rdma_rxe; ip link add dummy0 type dummy; ip addr add 192.0.2.1/24 dev dummy0
		ip link set dummy0 up; rdma link add rxe0 type rxe netdev dummy0`)
	udev.Event(from, "add", "uverbs0", time.Now())
	m.Sh("rdma link del rxe0")
	udev.Event(from, "remove", "uverbs0", time.Now())

	m.Run("modprobe", "vgem")
	udev.Event(from, "add", "renderD128", time.Now())
	udev.Stop()
}
