// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metalplug/metalplug/daemon/inventory"
)

const (
	// CheckpointFile is where, in its directory, the kubelet's device manager keeps what it has allocated
	// (kubernetes v1.36 pkg/kubelet/cm/devicemanager, kubeletDeviceManagerCheckpoint).
	CheckpointFile = "kubelet_internal_checkpoint"
	// podResourcesLimit bounds a question to the kubelet.
	podResourcesLimit = 5 * time.Second
	// podResourcesSize is the largest answer in bytes; the kubelet itself sets no limit.
	podResourcesSize = 64 << 20
	// rememberedFirst is how long an answer by the checkpoint alone stands at first, twice as long each time after that, and
	// rememberedLast at most. The kubelet cleans it of the pods that are gone only when it writes it: a pod that has ended just
	// after that is named still, while an init container has its device for hours.
	rememberedFirst = 20 * time.Second
	rememberedLast  = 10 * time.Minute
)

// Holders asks the kubelet which devices its pods hold.
type Holders struct {
	Socket string // of the kubelet's PodResources service
	Dir    string // the kubelet's device plugin directory

	// Soon tells that the next answer may be another one: something of the last was new, and holds when it is said twice.
	Soon bool

	// Kubelet identifies the kubelet that gave the last answer; empty: it is not known.
	Kubelet string

	// Booked are the devices that the kubelet's checkpoint named then, and Written is when it was written.
	Booked  []string
	Written time.Time

	missed     map[string]bool       // devices that the last answer did not name
	remembered map[string]remembered // devices that the checkpoint alone names
	pods       map[string][]Pod      // of the last answer
}

// remembered is when Ask has said of a device that the checkpoint alone names it.
type remembered struct {
	at      time.Time
	stands  time.Duration // for how long
	written time.Time     // the checkpoint that named it
}

// Ask returns how the kubelet's pods stand to each of the devices. A device is free if neither the pods nor the
// kubelet's checkpoint name it, and did not the last time either: between our answer to Allocate and the checkpoint it
// is in neither. One that the checkpoint alone names is remembered, which is said now and then; if the checkpoint that the
// kubelet writes thereupon names it still, a pod holds it: the kubelet lists none whose init container alone has a device.
// Ask blocks until the kubelet has answered, at most five seconds. One call at a time.
func (h *Holders) Ask(ctx context.Context, devices []string) (map[string]inventory.Holding, error) {
	before := h.missed
	h.missed, h.Soon = nil, false
	// In this order: of a device that is given out in between, the checkpoint alone would tell if that were read last.
	saved, written, err := readCheckpoint(filepath.Join(h.Dir, CheckpointFile))
	if err != nil {
		return nil, err
	}
	listed, err := h.list(ctx)
	if err != nil {
		return nil, err
	}
	h.Kubelet = kubeletIn(h.Dir)
	h.pods, h.Written = listed, written
	h.Booked = slices.DeleteFunc(slices.Clone(devices), func(id string) bool { return !saved[id] })
	holdings := make(map[string]inventory.Holding, len(devices))
	h.missed = make(map[string]bool)
	said := h.remembered
	h.remembered = make(map[string]remembered)
	for _, id := range devices {
		switch {
		case len(listed[id]) > 0:
			holdings[id] = inventory.Held
		case saved[id]:
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

// list returns who holds what by the kubelet's PodResources service; of a share also the device.
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
		return nil, fmt.Errorf("ask %s: %w", h.Socket, said(err, podResourcesLimit))
	}
	return podsOf(answer), nil
}

// readCheckpoint returns the IDs that the kubelet's checkpoint names, of a share also the device, and when it was
// written. Without a checkpoint, no pod has ever held a device.
func readCheckpoint(file string) (ids map[string]bool, written time.Time, err error) {
	checkpoint, err := parseCheckpoint(file)
	ids = make(map[string]bool)
	for _, entry := range checkpoint.Data.PodDeviceEntries {
		for _, node := range entry.DeviceIDs {
			addShares(ids, node)
		}
	}
	return ids, checkpoint.written, err
}

// checkpoint is what of the kubelet's checkpoint is of interest.
type checkpoint struct {
	Data struct {
		PodDeviceEntries []struct {
			PodUID       string
			ResourceName string
			DeviceIDs    map[string][]string // by NUMA node
		}
	}
	written time.Time
}

func parseCheckpoint(file string) (c checkpoint, err error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	defer f.Close()
	info, err := f.Stat() // of what is read: the kubelet replaces the file
	if err != nil {
		return c, err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return checkpoint{}, fmt.Errorf("read %s: %w", file, err)
	}
	c.written = info.ModTime()
	return c, nil
}

// Remembered returns the devices that the kubelet's checkpoint in its directory says its pods hold, by resource and ID.
// They must be in the offer, whether we know them or not.
func Remembered(dir string) (map[string]map[string]inventory.Known, error) {
	checkpoint, err := parseCheckpoint(filepath.Join(dir, CheckpointFile))
	devices := make(map[string]map[string]inventory.Known)
	for _, entry := range checkpoint.Data.PodDeviceEntries {
		if devices[entry.ResourceName] == nil {
			devices[entry.ResourceName] = make(map[string]inventory.Known)
		}
		for key, shares := range entry.DeviceIDs {
			node, err := strconv.Atoi(key)
			if err != nil {
				node = -1
			}
			for _, share := range shares {
				known := devices[entry.ResourceName][parent(share)]
				devices[entry.ResourceName][parent(share)] = inventory.Known{
					NUMANode: node, As: append(known.As, share), Pods: append(known.Pods, entry.PodUID),
				}
			}
		}
	}
	return devices, err
}

// Owners returns the UIDs of the pods to which the kubelet has given devices, by the ID of the device, as its
// checkpoint in its directory says.
func Owners(dir string) (map[string][]string, error) {
	checkpoint, err := parseCheckpoint(filepath.Join(dir, CheckpointFile))
	owners := make(map[string][]string)
	for _, entry := range checkpoint.Data.PodDeviceEntries {
		for _, shares := range entry.DeviceIDs {
			for _, share := range shares {
				owners[parent(share)] = append(owners[parent(share)], entry.PodUID)
			}
		}
	}
	return owners, err
}

// kubeletIn identifies the kubelet of a directory from those before and after it: each makes its socket anew. Empty: there
// is none.
func kubeletIn(dir string) string {
	socket := socketIdentity(filepath.Join(dir, kubeletSocket))
	if socket == (identity{}) {
		return ""
	}
	return fmt.Sprint(socket)
}

func addShares(ids map[string]bool, shares []string) {
	for _, share := range shares {
		ids[share] = true
		ids[parent(share)] = true
	}
}
