// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/device"
)

// TestHangingAttribute simulates a disk that does not answer. The daemon knows nothing about the disk, and nothing may wait
// for it. The daemon becomes ready, the other devices work, and the daemon stops on request. TestStuckInspection of package
// inventory covers the time after one minute.
func TestHangingAttribute(t *testing.T) {
	noLeaks(t)
	for _, attribute := range []string{"wwid", "diskseq", "size", "../state"} { // attributes below the sysfs path of the disk
		t.Run(filepath.Base(attribute)+" from the start", func(t *testing.T) {
			t.Parallel() // each subtest waits until the daemon no longer waits for hardware
			s := newNode(t, func(s *setup) { hang(t, s.root, attribute) })
			s.goesOn("")
			s.waitShown(diskResource, s.disks[0].id(), "")
			s.unknown(s.disks[0].id())
			s.checkStops()
		})
		t.Run(filepath.Base(attribute)+" later", func(t *testing.T) {
			t.Parallel()
			s := newNode(t, nil)
			s.waitShown(diskResource, s.disks[0].id(), pluginapi.Healthy)
			ids := s.admitPod("p1", diskResource)
			hang(t, s.setup.root, attribute)
			s.sendChange(s.disks[0])
			s.goesOn("")
			_ = s.startInTime(ids) // from now on only the helper reads the disk
			s.goesOn("")
			s.checkStops()
		})
	}
}

// TestHangingAfterAReset simulates a disk that does not answer after a reset. This must not delay other disks.
func TestHangingAfterAReset(t *testing.T) {
	noLeaks(t)
	wedged := make(chan struct{})
	s := newNode(t, func(s *setup) {
		prepare, wedge := s.touch.Prepare, sync.OnceFunc(func() {
			hang(t, s.root, "wwid")
			close(wedged)
		})
		s.touch.Prepare = func(ctx context.Context, target device.Target, w device.Work) (device.Report, error) {
			p, err := prepare(ctx, target, w)
			if w.Tenant { // the request follows a pod
				wedge()
			}
			return p, err
		}
	})
	s.waitShown(diskResource, s.disks[0].id(), pluginapi.Healthy)
	ids := s.admitPod("p1", diskResource)
	s.must(s.kubelet.start(t.Context(), diskResource, ids))
	s.work("p1", ids)
	s.release(s.pods[0])
	s.must(eventually(func() error {
		select {
		case <-wedged:
			return nil
		default:
			return errors.Join(errors.New("it is not reset"), s.parts.ask(t.Context()))
		}
	}))
	s.waitShown(diskResource, s.disks[0].id(), pluginapi.Unhealthy)
	s.goesOn("")
	s.checkStops()
}

// TestHangingAttributeAndEvents sends many events of a disk that does not answer. Only one inspection may wait for it.
func TestHangingAttributeAndEvents(t *testing.T) {
	noLeaks(t)
	s := newNode(t, nil)
	s.waitShown(diskResource, s.disks[0].id(), pluginapi.Healthy)
	hang(t, s.setup.root, "wwid")
	for range 1000 {
		s.sendChange(s.disks[0])
		s.must(s.parts.inventory.Alive(t.Context()))
	}
	s.goesOn("") // these calls start further inspections
	s.must(eventually(func() error {
		if n := countInspections(); n != 1 {
			return fmt.Errorf("%d inspections of one disk are waiting", n)
		}
		return nil
	}))
	s.checkStops()
}

// countInspections returns the number of running inspections.
func countInspections() (n int) {
	for _, stack := range stacks() {
		if strings.Contains(stack, "/device.Inspect(") {
			n++
		}
	}
	return n
}

// hang replaces an attribute of the disk with a FIFO. A read of it blocks indefinitely, like a register read of a hung
// PCIe device. At the end of the test, each reader gets the value.
func hang(t *testing.T, root, attribute string) {
	t.Helper()
	file := filepath.Join(root, "sys", (&disk{slot: 1}).sysPath(), attribute)
	value, err := os.ReadFile(file)
	fifo := file + ".fifo"
	err = errors.Join(err, unix.Mkfifo(fifo, 0o600), os.Rename(fifo, file)) // the attribute exists at every moment
	if err != nil {
		t.Error(err) // t.Fatal is not allowed in this goroutine
		return
	}
	t.Cleanup(func() {
		fifo, err := os.OpenFile(file, os.O_RDWR, 0)
		if err == nil {
			defer fifo.Close()
			err = errors.Join(os.Remove(file), os.WriteFile(file, value, 0o600)) // later readers see the new value
			_, writeErr := fifo.Write(value)
			err = errors.Join(err, writeErr)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// startInTime announces a container start like the kubelet, which waits for half a minute.
func (s *sequence) startInTime(ids []string) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	return s.kubelet.start(ctx, diskResource, ids)
}

// unknown checks that no container gets a device that was never identified.
func (s *sequence) unknown(id string) {
	s.t.Helper()
	s.kubelet.mu.Lock()
	client := s.kubelet.plugins[diskResource].client
	s.kubelet.mu.Unlock()
	_, allocateErr := client.Allocate(s.t.Context(), &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{id}}},
	})
	for _, err := range []error{allocateErr, s.kubelet.start(s.t.Context(), diskResource, []string{id})} {
		if err == nil || !strings.Contains(err.Error(), "not a device of this resource") {
			s.t.Errorf("a container with a disk that nobody knows: %v", err)
		}
	}
}

// checkStops checks that the daemon stops.
func (s *sequence) checkStops() {
	s.t.Helper()
	stopped := make(chan error, 1)
	p := s.parts
	s.parts = nil
	go func() { stopped <- p.stop() }()
	select {
	case err := <-stopped:
		s.must(err)
	case <-time.After(patience):
		s.t.Error("it does not stop")
	}
}
