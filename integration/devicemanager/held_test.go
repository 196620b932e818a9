// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// vendorResource is a built-in name, under which the widgets are offered.
const (
	vendorResource = "amd.com/gpu"
	vendorWidgets  = `
[[resource]]
name  = "amd.com/gpu"
class = "node"
match = { SUBSYSTEM = "widget" }
`
)

// back is the time after the end of another plugin in which the devices must be offered again.
const back = 2 * time.Second

// newVendor starts another plugin with that resource. It offers devices with these IDs.
func newVendor(t *testing.T, k *Kubelet, ids ...string) *rival {
	t.Helper()
	var list []*api.Device
	for _, id := range ids {
		list = append(list, onNode(id, -1))
	}
	r := newRival(t, k.DevicePlugins(), list...)
	r.resource = vendorResource
	return r
}

func (r *rival) mustRegister(t *testing.T) {
	t.Helper()
	if err := r.register(within(t)); err != nil {
		t.Fatal(err)
	}
}

// itsIDs returns the IDs of the daemon's devices. otherIDs returns the IDs that NVIDIA's time slicing would derive from
// them.
func itsIDs() []string { return []string{plain(2)[0].id(), plain(2)[1].id()} }

func otherIDs() []string {
	return []string{itsIDs()[0] + "::0", itsIDs()[0] + "::1", itsIDs()[1] + "::0"}
}

// heldBack returns the daemon's report about the resource.
func (d *daemon) heldBack() (string, error) {
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", d.path("run/control.sock"))
	}}}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://metalplugd/v1/resources")
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	var resources []struct {
		Name     string `json:"name"`
		HeldBack string `json:"heldBack"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&resources); err != nil {
		return "", err
	}
	for _, r := range resources {
		if r.Name == vendorResource {
			return r.HeldBack, nil
		}
	}
	return "", fmt.Errorf("no %s among %v", vendorResource, resources)
}

// awaitHeld waits until the resource is held back, or no longer held back.
func (d *daemon) awaitHeld(t *testing.T, held bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("held back is %v", held), func() error {
		is, err := d.heldBack()
		if err == nil && (is != "") != held {
			err = fmt.Errorf("it says %q", is)
		}
		return err
	})
}

// awaitReason waits until the resource is held back for a reason.
func (d *daemon) awaitReason(t *testing.T, reason string) {
	t.Helper()
	eventually(t, "held back: "+reason, func() error {
		is, err := d.heldBack()
		if err == nil && !strings.Contains(is, reason) {
			err = fmt.Errorf("it says %q", is)
		}
		return err
	})
}

// says sends the next list of the other plugin.
func (r *rival) says(t *testing.T, list ...*api.Device) {
	t.Helper()
	select {
	case r.lists <- list:
	case <-time.After(patience):
		t.Fatal("the kubelet has no stream of the other plugin")
	}
}

// insists repeats the list of the other plugin until the daemon holds back its own resource. The daemon sends its list
// again each time a pod has ended. If this happens right after the list of the other plugin, the kubelet counts the
// daemon's list.
func (r *rival) insists(t *testing.T, d *daemon) {
	t.Helper()
	said := time.Now()
	eventually(t, "held back", func() error {
		if time.Since(said) > 500*time.Millisecond { // more lists would overload the kubelet
			r.says(t, r.first...)
			said = time.Now()
		}
		is, err := d.heldBack()
		if err == nil && is == "" {
			err = errors.New("it is not")
		}
		return err
	})
}

// undisturbed fails the test if the kubelet has ended a stream of the other plugin.
func (r *rival) undisturbed(t *testing.T, k *Kubelet) {
	t.Helper()
	ofTheOther(t, k)
	if len(r.ended) > 0 {
		t.Error("the kubelet has ended the stream of the other plugin")
	}
}

// givenBy admits a pod with one device and reports whether the device is from the daemon.
func givenBy(t *testing.T, k *Kubelet) (daemon bool, err error) {
	t.Helper()
	p := fmt.Sprintf("p%d", time.Now().UnixNano()) // a rejected pod never comes back
	if err := k.Admit(within(t), pod(p, vendorResource, 1)); err != nil {
		return false, err
	}
	defer remove(t, k, p)
	got, err := k.Run(within(t), p, "main")
	if err != nil {
		return false, err
	}
	return got.Env["METALPLUG_AMD_COM_GPU"] != "", nil
}

// ofTheOther fails the test unless pods get the devices of the other plugin.
func ofTheOther(t *testing.T, k *Kubelet) {
	t.Helper()
	daemon, err := givenBy(t, k)
	if err != nil {
		t.Fatal(err)
	}
	if daemon {
		t.Error("a pod got a device of the daemon while another plugin serves the resource")
	}
}

// oursAgain waits until pods get devices from the daemon again, and checks how long this took after the end of the
// other plugin.
func oursAgain(t *testing.T, k *Kubelet, n int64, since time.Time) {
	t.Helper()
	eventually(t, "our devices", func() error {
		daemon, err := givenBy(t, k)
		if err == nil && !daemon {
			err = errors.New("they are of the other still")
		}
		return err
	})
	took := time.Since(since)
	t.Logf("ours again after %v", took)
	if took > back {
		t.Errorf("ours again after %v, want %v at most", took, back)
	}
	sees(t, k, vendorResource, n, n)
}

// registrations returns how often the daemon has registered.
func (d *daemon) registrations() int {
	return strings.Count(d.log.String(), `msg="endpoint registered"`)
}

// Another plugin that registered before the daemon keeps the resource as long as it runs.
func TestHeldBackFromBefore(t *testing.T) {
	for _, ids := range []struct {
		name string
		ids  []string
	}{{"same IDs", itsIDs()}, {"other IDs", otherIDs()}} {
		for _, end := range []struct {
			name string
			end  func(*rival)
		}{{"stops", func(r *rival) { r.server.Stop() }}, {"is killed", (*rival).kill}} {
			t.Run(ids.name+", "+end.name, func(t *testing.T) {
				t.Parallel()
				k := newNode(t, Options{})
				r := newVendor(t, k, ids.ids...)
				r.mustRegister(t)
				n := int64(len(ids.ids))
				sees(t, k, vendorResource, n, n)
				d := newDaemonOf(t, shortDir(t), k.options.Dir, vendorWidgets, plain(2))
				d.awaitHeld(t, true)
				d.plug(plain(4))
				ofTheOther(t, k)
				sees(t, k, vendorResource, n, n)
				if d.registrations() != 0 {
					t.Error("it has registered")
				}
				end.end(r)
				oursAgain(t, k, 4, time.Now())
				d.awaitHeld(t, false)
			})
		}
	}
}

// Another plugin registers after the daemon. The daemon does not disturb the other plugin, and serves again after that
// plugin has ended. Because that plugin has the same IDs, the daemon notices it when the kubelet has given one of them
// to a pod.
func TestHeldBackFromAfter(t *testing.T) {
	for _, ids := range []struct {
		name string
		ids  []string
		held bool // the resource is held back before the other plugin has given a device to a pod
	}{{"same IDs", itsIDs(), false}, {"other IDs", otherIDs(), true}} {
		for _, end := range []struct {
			name string
			end  func(*rival)
		}{{"stops", func(r *rival) { r.server.Stop() }}, {"is killed", (*rival).kill}} {
			t.Run(ids.name+", "+end.name, func(t *testing.T) {
				t.Parallel()
				k := newNode(t, Options{})
				d := newDaemonOf(t, shortDir(t), k.options.Dir, vendorWidgets, plain(2))
				sees(t, k, vendorResource, 2, 2)
				r := newVendor(t, k, ids.ids...)
				r.mustRegister(t)
				n := int64(len(ids.ids))
				sees(t, k, vendorResource, n, n)
				if ids.held {
					d.awaitHeld(t, true)
					d.plug(plain(4)) // the kubelet does not see this change
					d.awaitLog("device added")
				}
				ofTheOther(t, k)
				if !ids.held {
					d.awaitReason(t, "the kubelet gave ")
					d.plug(plain(4))
					d.awaitLog("device added")
					ofTheOther(t, k)
				}
				sees(t, k, vendorResource, n, n)
				if d.registrations() != 1 {
					t.Error("it has registered again")
				}
				end.end(r)
				oursAgain(t, k, 4, time.Now())
				d.awaitHeld(t, false)
			})
		}
	}
}

// A plugin that restarts immediately keeps the resource. A plugin that crashes repeatedly serves the resource while it runs.
// Between its runs, the daemon serves the resource.
func TestHeldBackForRestartingPlugin(t *testing.T) {
	t.Parallel()
	k := newNode(t, Options{})
	r := newVendor(t, k, otherIDs()...)
	r.mustRegister(t)
	sees(t, k, vendorResource, 3, 3)
	d := newDaemonOf(t, shortDir(t), k.options.Dir, vendorWidgets, plain(2))
	d.awaitHeld(t, true)
	for range 3 {
		r.kill()
		sees(t, k, vendorResource, 3, 0)
		r.mustRegister(t)
		sees(t, k, vendorResource, 3, 3)
	}
	ofTheOther(t, k)
	if d.registrations() != 0 {
		t.Error("it has registered while the other restarted")
	}
	for range 3 {
		r.kill()
		oursAgain(t, k, 2, time.Now())
		r.mustRegister(t)
		r.insists(t, d)
		sees(t, k, vendorResource, 3, 3)
		ofTheOther(t, k)
	}
	if n := d.registrations(); n != 3 {
		t.Errorf("it has registered %d times, want once for each end of the other", n)
	}
}

// After the first restart of the kubelet, the other plugin needs some time to register again. After the second one it does
// not register.
func TestHeldBackAcrossKubelets(t *testing.T) {
	t.Parallel()
	k := newNode(t, Options{})
	r := newVendor(t, k, otherIDs()...)
	r.mustRegister(t)
	sees(t, k, vendorResource, 3, 3)
	d := newDaemonOf(t, shortDir(t), k.options.Dir, vendorWidgets, plain(2))
	d.awaitHeld(t, true)
	k.Kill()
	if err := k.Restart(within(t)); err != nil {
		t.Fatal(err)
	}
	d.awaitReason(t, "before the kubelet restarted")
	r.mustRegister(t)
	sees(t, k, vendorResource, 3, 3)
	ofTheOther(t, k)
	if d.registrations() != 0 {
		t.Error("it has registered with the new kubelet before the other")
	}
	d.awaitReason(t, "the kubelet counts")
	r.server.Stop()
	oursAgain(t, k, 2, time.Now())
}

// The operator decides who serves the resource.
func TestTakeover(t *testing.T) {
	t.Parallel()
	k := newNode(t, Options{})
	r := newVendor(t, k, otherIDs()...)
	r.mustRegister(t)
	sees(t, k, vendorResource, 3, 3)
	d := newDaemonOf(t, shortDir(t), k.options.Dir, vendorWidgets+"takeover = true\n", plain(2))
	sees(t, k, vendorResource, 2, 2)
	if daemon, err := givenBy(t, k); err != nil || !daemon {
		t.Errorf("given by the daemon: %v, %v", daemon, err)
	}
	d.awaitHeld(t, false)
}

// All devices of the other plugin are unhealthy when the daemon starts, and then recover. The kubelet still requests
// devices from the daemon. The resource is held back neither while the other plugin runs nor after its end.
func TestHeldBackAfterUnhealthy(t *testing.T) {
	for _, end := range []struct {
		name string
		end  func(*rival)
	}{{"stops", func(r *rival) { r.server.Stop() }}, {"is killed", (*rival).kill}} {
		t.Run(end.name, func(t *testing.T) {
			t.Parallel()
			k := newNode(t, Options{})
			r := newRival(t, k.DevicePlugins(), &api.Device{ID: "x", Health: api.Unhealthy})
			r.resource = vendorResource
			r.mustRegister(t)
			sees(t, k, vendorResource, 1, 0)
			d := newDaemonOf(t, shortDir(t), k.options.Dir, vendorWidgets, plain(2))
			sees(t, k, vendorResource, 2, 2)
			r.says(t, onNode("x", -1), onNode("y", -1), onNode("z", -1))
			d.awaitHeld(t, true)
			oursAgain(t, k, 2, time.Now())
			d.awaitHeld(t, false)
			end.end(r)
			d.plug(plain(4))
			oursAgain(t, k, 4, time.Now())
		})
	}
}

// Plugins of other resources start and crash next to a plugin that has registered after the daemon. They disturb
// neither that plugin nor the lists of a serving daemon.
func TestHeldBackDuringCrashes(t *testing.T) {
	t.Parallel()
	k := newNode(t, Options{})
	d := newDaemonOf(t, shortDir(t), k.options.Dir, vendorWidgets, plain(2))
	sees(t, k, vendorResource, 2, 2)
	crash := func() {
		third := newRival(t, k.DevicePlugins(), onNode("g", -1))
		third.mustRegister(t)
		sees(t, k, gadget, 1, 1)
		third.kill()
		sees(t, k, gadget, 1, 0)
	}
	for n := range int64(3) {
		crash()
		d.plug(plain(3 + int(n)))
		sees(t, k, vendorResource, 3+n, 3+n)
	}
	r := newVendor(t, k, otherIDs()...)
	r.mustRegister(t)
	d.awaitHeld(t, true)
	for range 5 {
		crash()
		r.undisturbed(t, k)
	}
	r.kill()
	oursAgain(t, k, 5, time.Now())
	if n := d.registrations(); n != 2 {
		t.Errorf("it has registered %d times, want once more for the end of the other", n)
	}
}

// The daemon restarts, is killed and reloads while another plugin that registered later serves the resource. The
// kubelet keeps the stream of the other plugin, and the daemon serves again after that plugin has ended.
func TestHeldBackAcrossDaemons(t *testing.T) {
	for _, c := range []struct {
		name  string
		again func(d *daemon)
	}{
		{"restart", func(d *daemon) { d.stop(); d.start(); d.awaitReady() }},
		{"kill", func(d *daemon) { d.kill(); d.start(); d.awaitReady() }},
		{"reload", func(d *daemon) {
			d.reload(vendorWidgets + fmt.Sprintf("permissions = %q\n", "r"))
			d.awaitReady()
		}},
		{"reload and restart", func(d *daemon) {
			d.reload(vendorWidgets + fmt.Sprintf("permissions = %q\n", "r"))
			d.awaitReady()
			d.stop()
			d.start()
			d.awaitReady()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k := newNode(t, Options{})
			d := newDaemonOf(t, shortDir(t), k.options.Dir, vendorWidgets, plain(2))
			d.awaitReady()
			sees(t, k, vendorResource, 2, 2)
			r := newVendor(t, k, otherIDs()...)
			r.mustRegister(t)
			d.awaitHeld(t, true)
			c.again(d)
			d.awaitHeld(t, true)
			r.undisturbed(t, k)
			d.plug(plain(4))
			r.kill()
			oursAgain(t, k, 4, time.Now())
			if names, _ := d.store.kept(); len(names) > 0 {
				t.Errorf("left with the service manager: %v", names)
			}
		})
	}
}
