// SPDX-License-Identifier: Apache-2.0

// Package kubelet finds out which devices pods hold, and which devices the kubelet counts. The package queries the kubelet's
// PodResources service and reads the checkpoint of the kubelet's device manager.
package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/checkpoint"
)

const (
	// podResourcesLimit is the maximum time that a query may take.
	podResourcesLimit = 5 * time.Second
	// podResourcesSize is the maximum size of an answer in bytes. The kubelet sets no limit.
	podResourcesSize = 64 << 20
	// minNotedInterval is how long Ask waits before it returns [Noted] again for a device that only the checkpoint names. Each
	// repetition doubles this time, up to maxNotedInterval. The checkpoint may name a pod that has already ended, because the
	// kubelet removes ended pods only when it writes the checkpoint. The checkpoint may also name a running pod whose init
	// container holds the device for hours.
	minNotedInterval = 20 * time.Second
	maxNotedInterval = 10 * time.Minute
)

// Holding describes whether a pod holds a device, according to the kubelet.
type Holding int

const (
	// Unknown means that the kubelet's answers do not yet show whether a pod holds the device.
	Unknown Holding = iota
	// Held means that the kubelet lists a pod that holds the device.
	Held
	// Named means that the kubelet lists no pod with the device, but a new checkpoint still names the device, because one of a pod's
	// init containers has it.
	Named
	// Noted means that the kubelet lists no pod with the device, but its checkpoint still names the device. The plugin should
	// send a list, because the kubelet then writes the checkpoint again, without ended pods.
	Noted
	// Free means that two answers in a row show that no pod holds the device.
	Free
)

// Answer contains the kubelet's information about which pods hold the devices.
type Answer struct {
	Asked    time.Time           // when Ask queried the kubelet
	Holdings map[string]Holding  // keys are device IDs
	Kubelet  string              // identifies the kubelet process, or empty if unknown
	Booked   map[string][]string // maps device IDs to pod UIDs, from the checkpoint; nil if the checkpoint was not read
	Written  time.Time           // when the kubelet wrote the checkpoint
}

// Holders finds out which devices the kubelet's pods hold.
type Holders struct {
	Socket string // path of the kubelet's PodResources socket
	Dir    string // the kubelet's device plugin directory

	// Ask sets Soon if the next answer must confirm part of the last answer. The caller should then call Ask again after about a
	// second.
	Soon bool
	// Pods maps each device's ID to its holders, as found by the last call to Ask. A device with shares may have several holders.
	// The caller must not modify the map.
	Pods map[string][]api.Pod

	missed map[string]bool         // devices that the last answer did not name
	noted  map[string]notedHolding // devices that only the checkpoint names
}

// notedHolding records when Ask last returned [Noted] for a device that only the checkpoint names.
type notedHolding struct {
	at       time.Time
	interval time.Duration // time after which Ask may return Noted again
	written  time.Time     // when the kubelet wrote the checkpoint that Ask had read
}

// Ask finds out whether one of the kubelet's pods holds each device. A device is free if neither the listed pods nor the
// checkpoint contain it in two consecutive calls. One call is not enough, because after Allocate has returned, the device is in
// neither place until the kubelet writes the checkpoint. If only the checkpoint names a device, Ask returns [Noted] from time to
// time. The plugin then sends a list, which makes the kubelet write the checkpoint. If the new checkpoint still names the device,
// a pod holds the device, and the result is [Named]. The kubelet does not list a pod if only one of the pod's init containers has
// the device. Ask blocks for at most five seconds while it waits for the kubelet. Calls must not overlap.
func (h *Holders) Ask(ctx context.Context, devices []string) (a Answer, err error) {
	a.Asked = time.Now()
	before := h.missed
	h.missed, h.Soon = nil, false
	// Ask reads the checkpoint before it queries the kubelet, because a device that the kubelet allocates in between would
	// otherwise appear only in the checkpoint.
	saved, written, err := readOwners(h.Dir)
	if err != nil {
		return a, err
	}
	listed, err := h.list(ctx)
	if err != nil {
		return a, err
	}
	h.Pods, a.Kubelet, a.Written, a.Booked = listed, Identify(h.Dir), written, saved
	a.Holdings = make(map[string]Holding, len(devices))
	h.missed = make(map[string]bool)
	lastNoted := h.noted
	h.noted = make(map[string]notedHolding)
	for _, id := range devices {
		switch {
		case len(listed[id]) > 0:
			a.Holdings[id] = Held
		case len(saved[id]) > 0:
			last, known := lastNoted[id]
			switch {
			case !known || time.Since(last.at) > last.interval:
				a.Holdings[id], h.Soon = Noted, true
				last = notedHolding{time.Now(), min(max(minNotedInterval, 2*last.interval), maxNotedInterval), written}
			case !last.written.Equal(written):
				a.Holdings[id] = Named
			}
			h.noted[id] = last
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

// list returns the holders that the kubelet's PodResources service reports. A container that holds a share also holds the
// device.
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
		return nil, fmt.Errorf("query %s: %w", h.Socket, CleanError(err, podResourcesLimit))
	}
	return podsOf(answer), nil
}

// Identify returns a text that identifies the kubelet process that created kubelet.sock in a directory. The text is derived
// from the socket, because each kubelet process creates a new socket. If there is no socket, the text is "".
func Identify(dir string) string {
	var st syscall.Stat_t
	if err := syscall.Lstat(filepath.Join(dir, "kubelet.sock"), &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFSOCK {
		return ""
	}
	return fmt.Sprint(st.Dev, st.Ino, st.Ctim)
}

// podsOf groups an answer from PodResources by device ID. The answer lists the restartable init containers and the app containers
// of active pods. Both the answer and the result contain the devices of all plugins.
func podsOf(answer *podresources.ListPodResourcesResponse) map[string][]api.Pod {
	by := make(map[string][]api.Pod)
	for _, pod := range answer.GetPodResources() {
		for _, container := range pod.GetContainers() {
			holder := api.Pod{Namespace: pod.GetNamespace(), Name: pod.GetName(), Container: container.GetName()}
			for _, d := range container.GetDevices() {
				for _, share := range d.GetDeviceIds() {
					by[share] = append(by[share], holder)
					by[checkpoint.Parent(share)] = append(by[checkpoint.Parent(share)], holder)
				}
			}
		}
	}
	for id, holders := range by { // the kubelet lists a device with two NUMA nodes twice
		slices.SortFunc(holders, func(a, b api.Pod) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Container, b.Container))
		})
		by[id] = slices.Compact(holders)
	}
	return by
}

// Allocatable asks the PodResources service which devices the kubelet counts as healthy. The parameter socket is the path of the
// service's socket. The result maps each resource to the sorted IDs of its devices, or of its shares if it has shares.
// Allocatable blocks for at most five seconds while it waits for the kubelet.
func Allocatable(ctx context.Context, socket string) (map[string][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, podResourcesLimit)
	defer cancel()
	client, err := podResources(socket)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	answer, err := podresources.NewPodResourcesListerClient(client).GetAllocatableResources(ctx,
		&podresources.AllocatableResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", socket, CleanError(err, podResourcesLimit))
	}
	ids := make(map[string][]string)
	for _, d := range answer.GetDevices() {
		ids[d.GetResourceName()] = append(ids[d.GetResourceName()], d.GetDeviceIds()...)
	}
	for resource, all := range ids { // the kubelet lists a device with two NUMA nodes twice
		slices.Sort(all)
		ids[resource] = slices.Compact(all)
	}
	return ids, nil
}

// podResources returns a client connection to the kubelet's PodResources service. The client does not connect until the first
// call to the service.
func podResources(socket string) (*grpc.ClientConn, error) {
	client, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(podResourcesSize)))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	return client, nil
}

// hungUp is the error text for a server that immediately closes the connection or does not speak gRPC. Depending on the timing,
// the kernel or HTTP/2 reports a broken pipe, a connection reset, or a frame that is too large.
const hungUp = "disconnected, or uses another protocol; to check that the kubelet listens there: ss -xlp"

// CleanError returns the cause of a failed call, without the text that gRPC adds, such as the status code's name, or nil if err is
// nil. The parameter limit is the call's timeout, which the new error states if there was no answer.
func CleanError(err error, limit time.Duration) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	if s.Code() == codes.DeadlineExceeded {
		return fmt.Errorf("no answer after %v; check that the kubelet listens there and works", limit)
	}
	// The kubelet itself never returns the code Unavailable, so this code means that the connection failed.
	if s.Code() != codes.Unavailable {
		return errors.New(s.Message())
	}
	// The message has the form connection error: desc = "transport: …: dial unix /x: connect: …"
	// (internal/transport/http2_client.go).
	if _, cause, ok := strings.Cut(s.Message(), ": connect: "); ok && strings.Contains(s.Message(), "dial unix ") {
		return errors.New("connect: " + strings.TrimSuffix(cause, `"`)) // the caller adds the socket's name
	}
	return errors.New(hungUp)
}
