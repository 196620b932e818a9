// SPDX-License-Identifier: Apache-2.0

package devicemanager

// The tests in this file use a proxy to act at exact moments. Each round must reach its moment, or it fails.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// served has the moments between the admission of a pod and the start of its container.
var served = []moment{allocateAsked, allocateAnswered, preStartAsked, preStartAnswered}

// starting admits a pod and runs its container. The result of the admission comes first. After an error there are no
// more results.
func starting(t *testing.T, k *Kubelet, uid string) (admitted, started <-chan error) {
	t.Helper()
	ctx, first, second := within(t), make(chan error, 1), make(chan error, 1)
	go func() {
		err := k.Admit(ctx, pod(uid, widgetResource, 1))
		first <- err
		if err == nil {
			_, err = k.Run(ctx, uid, "main")
			second <- err
		}
	}()
	return first, second
}

// end describes what happens if a process is killed at a moment.
type end struct {
	moment   moment
	taken    bool // the answer arrives although its sender was killed
	admitted bool
	started  bool
}

// ends has the expected results if the daemon is killed at each moment.
var ends = []end{
	{moment: allocateAsked},
	{moment: allocateAnswered},
	{moment: allocateAnswered, taken: true, admitted: true},
	{moment: preStartAsked, admitted: true},
	{moment: preStartAnswered, admitted: true},
	{moment: preStartAnswered, taken: true, admitted: true, started: true},
}

// The daemon is killed at each moment of an admission and of a container start, with and without a kubelet restart
// afterwards. The kubelet must survive, the pod's devices must be in the list, and other devices must be free.
func TestKilledDuringAllocateAndStart(t *testing.T) {
	k, d, p := offeredByProxy(t, Options{TopologyPolicy: "single-numa-node", NUMANodes: 2, FirstBatch: OnDemand}, aligned(2))
	for round := range 4 * len(ends) {
		e, uid := ends[round%len(ends)], fmt.Sprintf("p%d", round)
		dies(t, k, d, p, e, uid)
		sees(t, k, widgetResource, 2, 0)
		restarts := round/len(ends)%2 == 1
		if restarts {
			restart(t, k)
		}
		d.start()
		sees(t, k, widgetResource, 2, 2)
		if restarts {
			if err := k.FirstBatch(within(t)); err != nil {
				t.Errorf("%+v: lost: %v", e, err)
			}
		}
		checkAfter(t, k, uid, e.admitted)
	}
	checkSockets(t, d)
}

// dies kills the daemon at a moment and checks the consequences.
func dies(t *testing.T, k *Kubelet, d *daemon, p *proxy, e end, uid string) {
	t.Helper()
	call, stream := p.hold(e.moment), (*hold)(nil)
	if e.taken { // if it is not taken, the end of the stream ends the call
		stream = p.hold(streamEnded)
	}
	admitted, started := starting(t, k, uid)
	call.await(t)
	d.kill()
	if e.taken {
		stream.await(t)
		call.release()
	}
	err := <-admitted
	var why *protocol.Rejection
	if e.admitted != (err == nil) || err != nil && !(errors.As(err, &why) && why.Reason == "UnexpectedAdmissionError") {
		t.Fatalf("%+v: admission: %v", e, err)
	}
	if e.admitted {
		if err := <-started; e.started != (err == nil) || errors.Is(err, ErrDied) {
			t.Fatalf("%+v: start: %v", e, err)
		}
	}
	if e.taken {
		stream.release()
	}
}

func restart(t *testing.T, k *Kubelet) {
	t.Helper()
	if err := k.Restart(within(t)); err != nil {
		t.Fatal(err)
	}
}

// checkAfter checks that an admitted pod has its widget and can start, and that both widgets are available after it has
// ended.
func checkAfter(t *testing.T, k *Kubelet, uid string, admitted bool) {
	t.Helper()
	if admitted {
		checkHeld(t, k, uid)
		if held := assigned(t, k, uid); len(held) != 1 {
			t.Errorf("%s holds %v", uid, held)
		}
		run(t, k, uid, "main")
		remove(t, k, uid)
	}
	for _, next := range []string{uid + "-a", uid + "-b"} {
		admit(t, k, pod(next, widgetResource, 1))
	}
	for _, next := range []string{uid + "-a", uid + "-b"} {
		run(t, k, next, "main")
		remove(t, k, next)
	}
}

// The kubelet is killed at the same moments. The next kubelet must find all devices, and the pods in its checkpoint
// keep theirs.
func TestKubeletKilledDuringAllocateAndStart(t *testing.T) {
	k, _, p := offeredByProxy(t, Options{TopologyPolicy: "single-numa-node", NUMANodes: 2, FirstBatch: OnDemand}, aligned(2))
	for round := range 4 * len(served) {
		m, uid := served[round%len(served)], fmt.Sprintf("p%d", round)
		h := p.hold(m)
		admitted, started := starting(t, k, uid)
		h.await(t)
		var held []protocol.Device
		ended := admitted
		starts := m == preStartAsked || m == preStartAnswered
		if starts {
			if err := <-admitted; err != nil {
				t.Fatal(err)
			}
			held, ended = assigned(t, k, uid), started
		}
		k.Kill()
		if err := <-ended; !errors.Is(err, ErrDied) {
			t.Fatalf("%s, the kubelet killed: %v", m, err)
		}
		if err := k.Boot(within(t)); err != nil {
			t.Fatal(err)
		}
		sees(t, k, widgetResource, 2, 2)
		if err := k.FirstBatch(within(t)); err != nil {
			t.Errorf("%s: lost: %v", m, err)
		}
		if starts {
			if now := assigned(t, k, uid); len(now) != 1 || now[0].ID != held[0].ID {
				t.Errorf("%s: %s has %v instead of %v", m, uid, now, held)
			}
		}
		checkAfter(t, k, uid, starts)
	}
}

// unlinkOwn removes the daemon's sockets and returns their number.
func unlinkOwn(d *daemon) (n int) {
	own, _ := filepath.Glob(filepath.Join(d.node, "device-plugins", "mp-*"))
	for _, name := range own {
		if os.Remove(name) == nil { // the daemon may be recreating it
			n++
		}
	}
	return n
}

// The daemon's sockets are removed at each moment of an admission and of a container start. The daemon recreates them
// immediately, and the call is not affected.
func TestOwnSocketDeletedAtEachMoment(t *testing.T) {
	k, d, p := offeredByProxy(t, Options{}, plain(2))
	checkSockets(t, d)
	for round := range 2 * len(served) {
		uid, h := fmt.Sprintf("p%d", round), p.hold(served[round%len(served)])
		admitted, started := starting(t, k, uid)
		h.await(t)
		if n := unlinkOwn(d); n != 2 {
			t.Errorf("%s: there were %d sockets", h.moment, n)
		}
		checkSockets(t, d)
		h.release()
		if err := <-admitted; err != nil {
			t.Fatalf("%s: %v", h.moment, err)
		}
		if err := <-started; err != nil {
			t.Fatalf("%s: %v", h.moment, err)
		}
		remove(t, k, uid)
		sees(t, k, widgetResource, 2, 2)
	}
}

// The daemon's sockets are removed at three moments. The first is after the daemon's last check and before the device
// manager connects, the second when the device manager requests the options, and the third before the daemon knows that
// it is registered.
func TestOwnSocketDeletedDuringRegister(t *testing.T) {
	for _, m := range []moment{registerAsked, optionsAsked, registerAnswered} {
		t.Run(string(m), func(t *testing.T) {
			k, d, p := offeredByProxy(t, Options{}, plain(2))
			h := p.hold(m)
			restart(t, k)
			h.await(t)
			if n := unlinkOwn(d); n == 0 {
				t.Error("there was no socket")
			}
			h.release()
			sees(t, k, widgetResource, 2, 2)
			checkSockets(t, d)
			admit(t, k, pod("p1", widgetResource, 1))
			run(t, k, "p1", "main")
			restart(t, k)
			sees(t, k, widgetResource, 2, 2)
		})
	}
}

// The daemon's sockets are removed after each line that it logs during its start.
func TestOwnSocketDeletedAtEachStepOfTheStart(t *testing.T) {
	k, d := offered(t, Options{}, plain(2))
	hits := 0
	for n, more := 1, true; more; n++ {
		d.kill()
		sees(t, k, widgetResource, 2, 0)
		more = d.startUntilLine(n, func() {
			if unlinkOwn(d) > 0 {
				hits++
			}
		})
		sees(t, k, widgetResource, 2, 2)
		checkSockets(t, d)
	}
	if hits < 2 {
		t.Errorf("there was a socket only at %d steps", hits)
	}
	admit(t, k, pod("p1", widgetResource, 1))
	run(t, k, "p1", "main")
}

// While a plugin handles Allocate, only admissions wait. Lists are processed, containers start, and pods end.
func TestSlowAllocate(t *testing.T) {
	k, d, p := offeredByProxy(t, Options{}, plain(4))
	admit(t, k, pod("p0", widgetResource, 1))
	h := p.hold(allocateAnswered)
	first, _ := starting(t, k, "p1")
	h.await(t)
	second, started := starting(t, k, "p2")
	d.plug(plain(5))
	sees(t, k, widgetResource, 5, 5)
	run(t, k, "p0", "main")
	remove(t, k, "p0")
	checkSockets(t, d)
	select {
	case err := <-second:
		t.Errorf("admitted beside another: %v", err)
	default:
	}
	h.release()
	for _, result := range []<-chan error{first, second, started} {
		if err := <-result; err != nil {
			t.Error(err)
		}
	}
	if a, b := assigned(t, k, "p1"), assigned(t, k, "p2"); a[0].ID == b[0].ID {
		t.Errorf("p1 and p2 both hold %s", a[0].ID)
	}
}

// The kubelet's checkpoint is lost, and the kubelet admits the earlier pods before the daemon has registered. The kubelet
// then does not know the resource, and allocates nothing. Because the daemon requires PreStartContainer, the kubelet refuses
// the containers of these pods, so no container starts without its device. Otherwise the containers would get devices from
// concurrent Allocate calls (v1.36 pkg/kubelet/cm/devicemanager/manager.go, GetDeviceRunContainerOptions).
func TestLostCheckpoint(t *testing.T) {
	k, d, p := offeredByProxy(t, Options{FirstBatch: OnDemand}, plain(2))
	uids := []string{"p0", "p1"}
	for _, uid := range uids {
		admit(t, k, pod(uid, widgetResource, 1))
		run(t, k, uid, "main")
		k.SetState(uid, "main", protocol.Exited)
	}
	k.Kill()
	d.must(os.Remove(filepath.Join(k.DevicePlugins(), "kubelet_internal_checkpoint")))
	h := p.hold(registerAsked)
	if err := k.Boot(within(t)); err != nil {
		t.Fatal(err)
	}
	h.await(t)
	if err := k.FirstBatch(within(t)); err != nil {
		t.Fatalf("lost: %v", err)
	}
	h.release()
	sees(t, k, widgetResource, 2, 2)
	for _, uid := range uids {
		if _, err := k.Run(within(t), uid, "main"); err == nil || !strings.Contains(err.Error(), "no devices found allocated") {
			t.Errorf("start of %s: %v", uid, err)
		}
		remove(t, k, uid)
	}
	admit(t, k, pod("p2", widgetResource, 2))
	run(t, k, "p2", "main")
}
