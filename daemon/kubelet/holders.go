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

	"github.com/metalplug/metalplug/daemon/api"
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

// Holding is the kubelet's answer whether a pod holds a device.
type Holding int

const (
	// Unknown means that the kubelet gave no answer.
	Unknown Holding = iota
	// Held means that the kubelet lists a pod that holds it.
	Held
	// Named means that the kubelet lists no pod that holds it, but has written it into its checkpoint again. It does so for a
	// pod in which only an init container has a device.
	Named
	// Noted means that no pod holds it, but the kubelet's checkpoint still names it. When the plugin sends a list, the kubelet
	// writes the checkpoint again, without the pods that have gone.
	Noted
	// Free means that certainly no pod holds it.
	Free
)

// Answer is the kubelet's answer about its devices.
type Answer struct {
	Asked    time.Time           // when the kubelet was asked
	Holdings map[string]Holding  // by the ID of the device
	Kubelet  string              // tells the kubelet from those before and after it, or empty if unknown
	Booked   map[string][]string // UIDs of the pods that the checkpoint names, by the device, or nil if it was not read
	Written  time.Time           // when the kubelet wrote the checkpoint
}

// Holders asks the kubelet which devices its pods hold.
type Holders struct {
	Socket string // of the kubelet's PodResources service
	Dir    string // the kubelet's device plugin directory

	// Soon reports that the next answer may differ. Part of the last answer was new, and holds when it is repeated.
	Soon bool

	missed     map[string]bool       // devices that the last answer did not name
	remembered map[string]remembered // devices that the checkpoint alone names
	pods       map[string][]api.Pod  // of the last answer
}

// remembered is when Ask has answered that the checkpoint alone names a device.
type remembered struct {
	at      time.Time
	stands  time.Duration // for how long
	written time.Time     // the checkpoint that named it
}

// Ask returns for each of the devices whether the kubelet's pods hold it. A device is free if neither the pods nor the
// kubelet's checkpoint name it, and did not the last time either. Between our answer to Allocate and the checkpoint it is
// in neither. One that the checkpoint alone names is [Noted], which Ask returns now and then. If the next checkpoint
// of the kubelet still names it, a pod holds it. The kubelet does not list a pod whose init container alone has a device.
// Ask blocks until the kubelet has answered, at most five seconds. One call at a time.
func (h *Holders) Ask(ctx context.Context, devices []string) (a Answer, err error) {
	a.Asked = time.Now()
	before := h.missed
	h.missed, h.Soon = nil, false
	// In this order, because for a device that is given out in between, only the checkpoint would name it if it were read
	// last.
	saved, written, err := booked(h.Dir)
	if err != nil {
		return a, err
	}
	listed, err := h.list(ctx)
	if err != nil {
		return a, err
	}
	h.pods, a.Kubelet, a.Written, a.Booked = listed, In(h.Dir), written, saved
	a.Holdings = make(map[string]Holding, len(devices))
	h.missed = make(map[string]bool)
	said := h.remembered
	h.remembered = make(map[string]remembered)
	for _, id := range devices {
		switch {
		case len(listed[id]) > 0:
			a.Holdings[id] = Held
		case len(saved[id]) > 0:
			last, known := said[id]
			switch {
			case !known || time.Since(last.at) > last.stands:
				a.Holdings[id], h.Soon = Noted, true
				last = remembered{time.Now(), min(max(rememberedFirst, 2*last.stands), rememberedLast), written}
			case !last.written.Equal(written):
				a.Holdings[id] = Named
			}
			h.remembered[id] = last
		default:
			h.missed[id] = true
			if before[id] {
				a.Holdings[id] = Free
			} else {
				h.Soon = true
			}
		}
	}
	return a, nil
}

// list returns the holders by the kubelet's PodResources service. A holder of a share also holds the device.
func (h *Holders) list(ctx context.Context) (map[string][]api.Pod, error) {
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
