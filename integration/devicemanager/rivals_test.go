// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// registerNobody registers a plugin without an answering server for the widgets. The device manager refuses it.
func registerNobody(t *testing.T, k *Kubelet) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(k.DevicePlugins(), "nobody.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer() // the server has no method
	defer s.Stop()
	go func() { _ = s.Serve(l) }()
	err = registerAs(within(t), k.DevicePlugins(), "nobody.sock", widgetResource)
	if err == nil || !strings.Contains(err.Error(), "Unimplemented") {
		t.Fatalf("registration of nobody: %v", err)
	}
}

// The registration of another plugin for the same resource fails. The device manager forgets its connection to the
// daemon, and does not notice when this connection ends. The daemon continues to work. After its next start, the state
// is consistent again.
func TestFailedRegistrationOfAnother(t *testing.T) {
	k, d := offered(t, Options{}, plain(2))
	registerNobody(t, k)
	admit(t, k, pod("p1", widgetResource, 1))
	run(t, k, "p1", "main")
	d.plug(plain(3))
	sees(t, k, widgetResource, 3, 3)

	d.kill()
	d.start()
	d.awaitReady()
	eventually(t, "start of a container", func() error {
		_, err := k.Run(within(t), "p1", "main")
		return err
	})
	d.plug(plain(4))
	sees(t, k, widgetResource, 4, 4)
	d.kill()
	sees(t, k, widgetResource, 4, 0)
	d.start()
	sees(t, k, widgetResource, 4, 4)
	run(t, k, "p1", "main")
}

// Another plugin registers the same resource name and then ends. The device manager knows one endpoint for each name.
// It sends Allocate to the last registered one, even after that one has ended, and reads the lists of both. The stream
// of the daemon stays open. The daemon compares the kubelet's counts, and registers again after the other plugin has
// ended.
func TestRival(t *testing.T) {
	others := []*api.Device{onNode("x", -1)}
	ours := []*api.Device{onNode(plain(1)[0].id(), -1)}
	for _, test := range []struct {
		name string
		has  []*api.Device
		end  func(t *testing.T, k *Kubelet, d *daemon, r *rival)
	}{
		{"ends", others, func(t *testing.T, k *Kubelet, d *daemon, r *rival) {
			r.server.Stop()
		}},
		// From its own list alone, the daemon could not notice the problem.
		{"ends, and a device comes at once", others, func(t *testing.T, k *Kubelet, d *daemon, r *rival) {
			r.server.Stop()
			sees(t, k, widgetResource, 1, 0)
			d.plug(plain(3))
			sees(t, k, widgetResource, 3, 3)
		}},
		// No file in the directory changes.
		{"is killed", others, func(t *testing.T, k *Kubelet, d *daemon, r *rival) {
			r.kill()
		}},
		// While the other plugin runs, the daemon does not notice it.
		{"has a device of ours, and is killed", ours, func(t *testing.T, k *Kubelet, d *daemon, r *rival) {
			r.kill()
		}},
		{"stays, and a device comes", others, func(t *testing.T, k *Kubelet, d *daemon, r *rival) {
			d.plug(plain(3))
			d.awaitLog("device added")
			sees(t, k, widgetResource, 1, 1) // the kubelet allocates them through the other plugin
			r.kill()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			k, d := offered(t, Options{}, plain(2))
			r := newRival(t, k.DevicePlugins(), test.has...)
			r.resource = widgetResource
			if err := r.register(within(t)); err != nil {
				t.Fatal(err)
			}
			sees(t, k, widgetResource, 1, 1)
			again := "registration repeated"
			if test.has[0].ID == "x" {
				d.awaitLog("resource held back")
				again = "resource no longer held back"
			}
			test.end(t, k, d, r)
			d.awaitLog(again)
			d.plug(plain(4))
			serves(t, k)
			sees(t, k, widgetResource, 4, 4)
		})
	}
}

// serves waits until a pod gets two widgets.
func serves(t *testing.T, k *Kubelet) {
	t.Helper()
	p := ""
	eventually(t, "admission", func() error {
		p = fmt.Sprintf("p%d", time.Now().UnixNano()) // a rejected pod never comes back
		return k.Admit(within(t), pod(p, widgetResource, 2))
	})
	run(t, k, p, "main")
}

// A plugin that was there before the daemon, with the same device, is killed. The device manager confuses the end of
// its stream with the end of the newest stream, and disconnects the daemon. The daemon notices that.
func TestRivalOfBefore(t *testing.T) {
	t.Parallel()
	k := newNode(t, Options{})
	r := newRival(t, k.DevicePlugins(), onNode(plain(1)[0].id(), -1))
	r.resource = widgetResource
	if err := r.register(within(t)); err != nil {
		t.Fatal(err)
	}
	sees(t, k, widgetResource, 1, 1)
	d := newDaemon(t, k.options.Dir, plain(2))
	sees(t, k, widgetResource, 2, 2)
	r.kill()
	d.awaitLog("stream ended")
	serves(t, k)
}
