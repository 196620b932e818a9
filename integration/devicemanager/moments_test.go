// SPDX-License-Identifier: Apache-2.0

package devicemanager

// A proxy holds the moments at which the tests in this file act. Each round hits its moment, or fails.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/integration/devicemanager/protocol"
)

// served are the moments of a container's way to its devices.
var served = []moment{allocateAsked, allocateAnswered, preStartAsked, preStartAnswered}

// starting admits a pod and runs its container. The result of the admission comes first. After an error no other follows.
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

// end is what a death at a moment comes to.
type end struct {
	moment   moment
	taken    bool // the answer arrives after the death of who gave it
	admitted bool
	started  bool
}

// ends are those of the daemon's deaths.
var ends = []end{
	{moment: allocateAsked},
	{moment: allocateAnswered},
	{moment: allocateAnswered, taken: true, admitted: true},
	{moment: preStartAsked, admitted: true},
	{moment: preStartAnswered, admitted: true},
	{moment: preStartAnswered, taken: true, admitted: true, started: true},
}

// The daemon is killed at each moment of an admission and of the start of a container, with and without a restart of the
// kubelet after it. The kubelet lives, the pod's devices are in the list, and devices that it did not get are free.
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

// dies kills the daemon at a moment and asserts what comes of it.
func dies(t *testing.T, k *Kubelet, d *daemon, p *proxy, e end, uid string) {
	t.Helper()
	call, stream := p.hold(e.moment), (*hold)(nil)
	if e.taken { // else the end of the stream ends the call
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

// checkAfter asserts that a pod that was admitted has its widget and can start,
// and that both widgets can be had once it is gone.
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

// The kubelet is killed at the same moments. Its next life finds all devices, and the pods in its checkpoint keep theirs.
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

// unlinkOwn removes the daemon's sockets and says how many there were.
func unlinkOwn(d *daemon) (n int) {
	own, _ := filepath.Glob(filepath.Join(d.node, "device-plugins", "mp-*"))
	for _, name := range own {
		if os.Remove(name) == nil { // it may be recreating it
			n++
		}
	}
	return n
}

// The daemon's sockets are removed at each moment of an admission and of the start of a container. The daemon recreates
// them at once, and the call does not notice.
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

// The daemon's sockets are removed at three moments. The first is after its last look at them and before the device
// manager connects, the second when the device manager asks for the options, and the third before the daemon knows that
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

// The daemon's sockets are removed after each line that it logs while it
// starts.
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

// While a plugin is at Allocate, only admissions wait. Lists are taken, containers start, and pods leave.
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

// The kubelet's checkpoint is lost, and the kubelet admits the pods that were there before the daemon has registered. It
// knows no such resource and asks for nothing. Since the daemon wants PreStartContainer called, the kubelet refuses their
// containers then, and none starts without its device. Without that they would get devices from concurrent calls of
// Allocate (v1.36 pkg/kubelet/cm/devicemanager/manager.go, GetDeviceRunContainerOptions).
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
