// SPDX-License-Identifier: Apache-2.0

// Package kubelet asks the kubelet which devices its pods hold and which it counts. It reads the PodResources service and
// the checkpoint of the device manager.
package kubelet

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metalplug/metalplug/daemon/inventory"
)

const (
	// podResourcesLimit bounds a question to the kubelet.
	podResourcesLimit = 5 * time.Second
	// podResourcesSize is the largest answer in bytes. The kubelet itself sets no limit.
	podResourcesSize = 64 << 20
	// rememberedFirst is how long an answer by the checkpoint alone holds at first. Each later one holds twice as long,
	// at most rememberedLast. The kubelet removes pods that are gone from it only when it writes it. It may still name a
	// pod that has ended just after that, while an init container has its device for hours.
	rememberedFirst = 20 * time.Second
	rememberedLast  = 10 * time.Minute
)

// Holders asks the kubelet which devices its pods hold.
type Holders struct {
	Socket string // of the kubelet's PodResources service
	Dir    string // the kubelet's device plugin directory

	// Soon reports that the next answer may differ. Part of the last answer was new, and holds when it is repeated.
	Soon bool

	// Kubelet identifies the kubelet that gave the last answer, or is empty if unknown.
	Kubelet string

	// Booked are the UIDs of the pods that the kubelet's checkpoint named then, by the device. Written is when the
	// kubelet wrote the checkpoint.
	Booked  map[string][]string
	Written time.Time

	missed     map[string]bool       // devices that the last answer did not name
	remembered map[string]remembered // devices that the checkpoint alone names
	pods       map[string][]Pod      // of the last answer
}

// remembered is when Ask has answered that the checkpoint alone names a device.
type remembered struct {
	at      time.Time
	stands  time.Duration // for how long
	written time.Time     // the checkpoint that named it
}

// Ask returns for each of the devices whether the kubelet's pods hold it. A device is free if neither the pods nor the
// kubelet's checkpoint name it, and did not the last time either. Between our answer to Allocate and the checkpoint it is
// in neither. One that the checkpoint alone names is Remembered, which Ask returns now and then. If the next checkpoint
// of the kubelet still names it, a pod holds it. The kubelet does not list a pod whose init container alone has a device.
// Ask blocks until the kubelet has answered, at most five seconds. One call at a time.
func (h *Holders) Ask(ctx context.Context, devices []string) (map[string]inventory.Holding, error) {
	before := h.missed
	h.missed, h.Soon = nil, false
	// In this order, because for a device that is given out in between, only the checkpoint would name it if it were read
	// last.
	saved, written, err := booked(h.Dir)
	if err != nil {
		return nil, err
	}
	listed, err := h.list(ctx)
	if err != nil {
		return nil, err
	}
	h.Kubelet = In(h.Dir)
	h.pods, h.Written = listed, written
	h.Booked = saved
	holdings := make(map[string]inventory.Holding, len(devices))
	h.missed = make(map[string]bool)
	said := h.remembered
	h.remembered = make(map[string]remembered)
	for _, id := range devices {
		switch {
		case len(listed[id]) > 0:
			holdings[id] = inventory.Held
		case len(saved[id]) > 0:
			last, known := said[id]
			switch {
			case !known || time.Since(last.at) > last.stands:
				holdings[id], h.Soon = inventory.Remembered, true
				last = remembered{time.Now(), min(max(rememberedFirst, 2*last.stands), rememberedLast), written}
			case !last.written.Equal(written):
				holdings[id] = inventory.Named
			}
			h.remembered[id] = last
		default:
			h.missed[id] = true
			if before[id] {
				holdings[id] = inventory.Free
			} else {
				h.Soon = true
			}
		}
	}
	return holdings, nil
}

// list returns the holders by the kubelet's PodResources service. A holder of a share also holds the device.
func (h *Holders) list(ctx context.Context) (map[string][]Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, podResourcesLimit)
	defer cancel()
	client, err := podResources(h.Socket)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	answer, err := podresources.NewPodResourcesListerClient(client).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", h.Socket, Readable(err, podResourcesLimit))
	}
	return podsOf(answer), nil
}

// In identifies the kubelet of a directory from those before and after it, because each makes a new socket. It returns ""
// if there is none.
func In(dir string) string {
	var st syscall.Stat_t
	if err := syscall.Lstat(filepath.Join(dir, "kubelet.sock"), &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFSOCK {
		return ""
	}
	return fmt.Sprint(st.Dev, st.Ino, st.Ctim)
}
