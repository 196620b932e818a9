// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/integration/need"
	"github.com/metalplug/metalplug/udev"
)

// hints is a crowd whose events the test sends.
type hints struct {
	*crowd
	mu    sync.Mutex
	queue []udev.Event
	more  chan struct{}
}

func newHints(c *crowd) *hints {
	return &hints{crowd: c, more: make(chan struct{}, 1)}
}

// send sends an event. It does not wait.
func (h *hints) send(e udev.Event) {
	h.mu.Lock()
	h.queue = append(h.queue, e)
	h.mu.Unlock()
	select {
	case h.more <- struct{}{}:
	default:
	}
}

// Listen forwards the events.
func (h *hints) Listen(ctx context.Context, events chan<- udev.Event) error {
	for {
		h.mu.Lock()
		queue := h.queue
		h.queue = nil
		h.mu.Unlock()
		for _, e := range queue {
			select {
			case events <- e:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		select {
		case <-h.more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wired is a crowd whose events arrive on a real event socket in its own network namespace, where the test acts as
// udevd.
type wired struct {
	*crowd
	*udev.Monitor
	socket int // socket for sending
	thread chan func()
}

// needRoot skips or fails a test that needs uid 0.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		need.Lacks(t, "root", "it needs uid 0, for a network namespace or a mount")
	}
}

// newWired opens the socket with a receive buffer of the given size.
func newWired(t *testing.T, c *crowd, buffer int) *wired {
	t.Helper()
	w := &wired{crowd: c, thread: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked, so that the thread and its namespace end with this goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = w.open(buffer)
		}
		ready <- err
		for f := range w.thread {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(w.thread)
		unix.Close(w.socket)
		w.Close()
	})
	return w
}

func (w *wired) open(buffer int) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return err
	}
	passed := os.NewFile(uintptr(fd), "uevent") // simulates a socket from systemd
	defer passed.Close()
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << 1})
	if err == nil {
		w.Monitor, err = udev.OpenMonitor(passed)
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer)
	}
	if err == nil {
		w.socket, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	}
	return err
}

// send sends events like udevd, one after the other without a pause.
func (w *wired) send(events []udev.Event) (err error) {
	done := make(chan struct{})
	w.thread <- func() {
		defer close(done)
		to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << 1}
		for _, e := range events {
			// The message also goes to the kernel, which does not listen. The buffer may be full. Neither is an error of the
			// test.
			if e := unix.Sendto(w.socket, message(e), 0, to); e != nil && !errors.Is(e, unix.ECONNREFUSED) && !errors.Is(e, unix.ENOBUFS) {
				err = errors.Join(err, fmt.Errorf("send an event: %w", e))
			}
		}
	}
	<-done
	return err
}

// message encodes an event as udevd sends it. It consists of struct monitor_netlink_header of systemd's
// src/libsystemd/sd-device/device-monitor.c, followed by the properties.
func message(e udev.Event) []byte {
	const head = 40
	body := fmt.Sprintf("ACTION=%s\x00DEVPATH=%s\x00SEQNUM=1\x00", e.Action, strings.TrimPrefix(e.Device.SysPath, "/sys"))
	for key, value := range e.Device.Properties.All() {
		body += key + "=" + value + "\x00"
	}
	message := make([]byte, head, head+len(body))
	copy(message, "libudev\x00")
	binary.BigEndian.PutUint32(message[8:], 0xfeedcafe)
	binary.NativeEndian.PutUint32(message[12:], head)
	binary.NativeEndian.PutUint32(message[16:], head)
	binary.NativeEndian.PutUint32(message[20:], uint32(len(body)))
	return append(message, body...)
}

// TestStorm sends hundreds of times as many events as the buffers can hold, for devices that are added and removed. The
// final state must be that of a newly started daemon.
func TestStorm(t *testing.T) {
	needRoot(t)
	noLeaks(t)
	c := newCrowd(t, *devices, 0)
	w := newWired(t, c, 2<<10)
	h := newCrowded(t, w, c, 0)
	h.waitHealthy(*devices)
	sent := 0
	for round := range 3 { // remove all devices, add them again, and remove every second one
		var events []udev.Event
		for n := range c.present {
			if round < 2 || n%2 == 0 {
				events = append(events, c.toggle(t, n, round == 1))
			}
		}
		if err := w.send(events); err != nil {
			t.Fatal(err)
		}
		sent += len(events)
	}
	if err := eventually(func() error { return c.half(h.offer()) }); err != nil { // the number alone is not enough, because it may be reached with other devices
		t.Fatal(err)
	}
	h.waitHealthy(*devices / 2)
	overflows := h.parts.inventory.Counts().Overflows
	t.Logf("%d events, %d overflows, %d lists", sent, overflows, h.kubelet.countReceived())
	if overflows == 0 {
		t.Error("nothing has overflowed: that proves nothing")
	}
	warm := h.offer()
	if err := h.parts.stop(); err != nil {
		t.Fatal(err)
	}
	h.setup.source, h.setup.state = newHints(c), h.setup.state+"2" // a new state file
	cold, err := h.setup.run()
	if err != nil {
		t.Fatal(err)
	}
	h.parts = cold
	if !maps.Equal(warm, h.offer()) {
		t.Error("what was offered after the storm is not what a cold enumeration finds")
	}
}

// countReceived returns the number of received messages.
func (k *kubelet) countReceived() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lists
}

// half returns an error unless exactly every second device is offered and healthy.
func (c *crowd) half(offer map[string]bool) error {
	there := make(map[string]bool)
	for n := 1; n < len(c.present); n += 2 {
		there[c.present[n].Properties.Value("ID_SERIAL_SHORT")] = true
	}
	for id, healthy := range offer {
		if serial, _, _ := strings.Cut(strings.TrimPrefix(id, "node-"), "-"); !healthy || !there[serial] {
			return fmt.Errorf("%s is offered, healthy %v", id, healthy)
		}
	}
	if len(offer) != len(there) {
		return fmt.Errorf("%d are offered, not %d", len(offer), len(there))
	}
	return nil
}

// offer returns the health of the present devices by ID.
func (h *crowded) offer() map[string]bool {
	offer := make(map[string]bool)
	snapshot, _ := h.parts.inventory.Snapshot()
	for _, d := range snapshot.Offer(widgetResource).Devices {
		if d.Present {
			offer[d.Device.ID] = d.Healthy
		}
	}
	return offer
}
