// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/daemon/sysfs"
	"github.com/metalplug/metalplug/integration/clock"
	"github.com/metalplug/metalplug/integration/udevtest"
)

const disk = `F: /proc/self/mountinfo=

P: /devices/pci0000:00/0000:00:01.0/block/vda
N: vda
E: SUBSYSTEM=block
E: DEVTYPE=disk
E: DEVNAME=/dev/vda
E: MAJOR=252
E: MINOR=0
E: ID_SERIAL=D
E: ID_SERIAL_SHORT=D
A: size=1024
`

// TestStuckInspection checks that no container gets a device whose inspection has been stuck for a minute. This includes a
// container of the pod that holds the device. No call may wait for the hardware.
func TestStuckInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWedged(t)
		if err := b.allocate(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		b.hangs.Store(true)
		b.inventory.Inspect(b.id)
		clock.Pass(time.Minute)
		synctest.Wait()
		began := time.Now()
		for call, err := range map[string]error{"Allocate": b.allocate(), "PreStartContainer": b.start()} {
			if err == nil || !strings.Contains(err.Error(), "the hardware has not answered for ") {
				t.Errorf("%s: %v", call, err)
			}
		}
		if waited := time.Since(began); waited != 0 || b.started {
			t.Errorf("it took %v; the device was made ready for a container: %v", waited, b.started)
		}
	})
}

// A client that connects and sends nothing does not prevent the endpoint from stopping.
func TestStopWithSilentClient(t *testing.T) {
	b := newBench(t)
	conn, err := net.Dial("unix", b.sockets()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ended := make(chan struct{})
	go func() {
		b.stop()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the endpoint has not ended")
	}
}

// wedged is a service in a synctest bubble, with a disk whose inspection may hang.
type wedged struct {
	t         *testing.T
	inventory *inventory.Inventory
	service   pluginapi.DevicePluginServer
	id        string
	hangs     atomic.Bool
	started   bool // the device was prepared
}

func newWedged(t *testing.T) *wedged {
	t.Helper()
	m, log, answer := udevtest.New(t, disk), slog.New(slog.DiscardHandler), make(chan struct{})
	b := &wedged{t: t}
	host := &device.Host{Tree: sysfs.At(m.Root())}
	host.Touch.Probe = func(context.Context, device.Target, bool) (device.Report, error) {
		if b.hangs.Load() {
			<-answer
		}
		return device.Report{}, nil
	}
	b.inventory = inventory.New(inventory.Options{
		Source: m, Host: host, Log: log,
		Rules: []device.Rule{{Resource: resource, Class: &device.Generic, Match: map[string]string{"SUBSYSTEM": "block"}}},
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.inventory.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil { // any error is correct
			t.Error(err)
		}
		close(answer)
	})
	<-b.inventory.Ready()
	snapshot, _ := b.inventory.Snapshot()
	b.id = snapshot.Offer(resource).Devices[0].Device.ID
	b.service = (&plugin.Endpoint{Inventory: b.inventory, Host: host, Log: log, Metrics: noMetrics(), Allocated: func([]*inventory.Status) {}, Resource: plugin.Resource{
		Name: resource, Permissions: "rw", Variable: "X",
	}, Start: func(context.Context, []*inventory.Status) error {
		b.started = true
		return nil
	}}).Service()
	return b
}

func (b *wedged) allocate() error {
	_, err := b.service.Allocate(b.t.Context(), &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{b.id}}},
	})
	return err
}

func (b *wedged) start() error {
	_, err := b.service.PreStartContainer(b.t.Context(), &pluginapi.PreStartContainerRequest{DevicesIds: []string{b.id}})
	return err
}
