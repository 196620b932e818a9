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
)

// registerNobody registers the widgets for a plugin that answers nothing, which
// the device manager refuses.
func registerNobody(t *testing.T, k *Kubelet) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(k.DevicePlugins(), "nobody.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer() // which knows no method
	defer s.Stop()
	go func() { _ = s.Serve(l) }()
	err = registerAs(within(t), k.DevicePlugins(), "nobody.sock", widgetResource)
	if err == nil || !strings.Contains(err.Error(), "Unimplemented") {
		t.Fatalf("registration of nobody: %v", err)
	}
}

// Another plugin's registration for the same resource fails: the device manager
// forgets the connection to the daemon that it has, and does not notice its end
// any more. The daemon goes on, and its next start puts that in order.
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

// Another plugin takes the name of a resource for itself, and leaves. The
// device manager knows one endpoint a name: Allocate goes to the last that was
// registered, also once that has gone, while the lists of both are taken. The
// stream of the daemon is open all the time; it asks what the kubelet counts,
// and registers again.
func TestRival(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(t *testing.T, k *Kubelet, d *daemon, r *rival)
	}{
		{"ends", func(t *testing.T, k *Kubelet, d *daemon, r *rival) {
			r.server.Stop()
		}},
		// By the daemon's list, the resource looks as it should.
		{"ends, and a device comes at once", func(t *testing.T, k *Kubelet, d *daemon, r *rival) {
			r.server.Stop()
			sees(t, k, widgetResource, 1, 0)
			d.plug(plain(3))
			sees(t, k, widgetResource, 3, 3)
		}},
		// Nothing in the directory changes.
		{"ends with its socket left", func(t *testing.T, k *Kubelet, d *daemon, r *rival) {
			r.listener.SetUnlinkOnClose(false)
			r.server.Stop()
		}},
		{"stays, and a device comes", func(t *testing.T, k *Kubelet, d *daemon, r *rival) {
			d.plug(plain(3))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			k, d := offered(t, Options{}, plain(2))
			r := newRival(t, k.DevicePlugins(), onNode("x", -1))
			r.resource = widgetResource
			if err := r.register(within(t)); err != nil {
				t.Fatal(err)
			}
			sees(t, k, widgetResource, 1, 1)
			d.awaitLog("another plugin offers the resource")
			test.end(t, k, d, r)
			d.awaitLog("registering again")
			d.plug(plain(4))
			p := ""
			eventually(t, "admission", func() error {
				p = fmt.Sprintf("p%d", time.Now().UnixNano()) // a rejected pod never comes back
				return k.Admit(within(t), pod(p, widgetResource, 2))
			})
			run(t, k, p, "main")
			sees(t, k, widgetResource, 4, 4)
		})
	}
}
