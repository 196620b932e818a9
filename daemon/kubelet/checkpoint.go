// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// CheckpointFile is where, in its directory, the kubelet's device manager keeps what it has allocated
	// (kubernetes v1.36 pkg/kubelet/cm/devicemanager, kubeletDeviceManagerCheckpoint).
	CheckpointFile = "kubelet_internal_checkpoint"
	// checkpointSize is the largest checkpoint in bytes. An allocation of a container takes about 1 KiB.
	checkpointSize = 64 << 20
)

// given is a share of a device that the kubelet has given to a container.
type given struct {
	*entry
	node  int // NUMA node, or -1
	share string
}

// entry is what the kubelet has given to a container, as its checkpoint has it (kubernetes v1.36
// pkg/kubelet/cm/devicemanager/checkpoint, PodDevicesEntry).
type entry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     map[string][]string // by NUMA node
	AllocResp     []byte              // the plugin's ContainerAllocateResponse
}

// readCheckpoint returns the devices of containers in the kubelet's checkpoint in its directory, and the time when it wrote
// that. Without a checkpoint, no pod has ever held a device. It reads no further, because the IDs of all devices of the node
// follow.
func readCheckpoint(dir string) (all []given, written time.Time, err error) {
	file := filepath.Join(dir, CheckpointFile)
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, time.Time{}, nil
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	defer f.Close()
	info, err := f.Stat() // of the open file, because the kubelet replaces it
	if err != nil {
		return nil, time.Time{}, err
	}
	limited := &io.LimitedReader{R: f, N: checkpointSize}
	d := json.NewDecoder(limited)
	var entries []entry
	if err = enter(d, "Data"); err == nil {
		err = enter(d, "PodDeviceEntries")
	}
	if err == nil {
		err = d.Decode(&entries)
	}
	switch {
	case limited.N <= 0:
		return nil, time.Time{}, fmt.Errorf("read %s: it is larger than %d bytes", file, checkpointSize)
	case err != nil:
		return nil, time.Time{}, fmt.Errorf("read %s: %w", file, err)
	}
	for i := range entries {
		for key, shares := range entries[i].DeviceIDs {
			node, err := strconv.Atoi(key)
			if err != nil {
				node = -1
			}
			for _, share := range shares {
				all = append(all, given{&entries[i], node, share})
			}
		}
	}
	return all, info.ModTime(), nil
}

// enter reads the object that comes next, up to the value of a key.
func enter(d *json.Decoder, key string) error {
	for start := true; start || d.More(); start = false {
		token, err := d.Token()
		if err != nil {
			return err
		}
		if start {
			if token != json.Delim('{') {
				return fmt.Errorf("%v in the place of an object with %s", token, key)
			}
			continue
		}
		if token == key {
			return nil
		}
		var skipped json.RawMessage
		if err := d.Decode(&skipped); err != nil {
			return err
		}
	}
	return fmt.Errorf("no %s", key)
}

// Known holds the kubelet's facts about a device that its pods hold.
type Known struct {
	NUMANode int      // or -1
	As       []string // the IDs by which they hold it, its own, those of shares or that of its bundle
	Pods     []string // their UIDs
	Members  []Member // of a bundle, as far as the kubelet knows them
}

// Member is a device in a bundle, or a bundle itself, in the records.
type Member struct {
	Resource string `json:"resource"`
	ID       string `json:"id"`
}

// Remembered returns the devices of pods in the kubelet's checkpoint in its directory, by resource and ID.
// They must be in the offer, whether we know them or not.
func Remembered(dir string) (map[string]map[string]Known, error) {
	all, _, err := readCheckpoint(dir)
	devices := make(map[string]map[string]Known)
	for _, g := range all {
		if devices[g.ResourceName] == nil {
			devices[g.ResourceName] = make(map[string]Known)
		}
		known := devices[g.ResourceName][Parent(g.share)]
		devices[g.ResourceName][Parent(g.share)] = Known{
			NUMANode: g.node, As: append(known.As, g.share), Pods: append(known.Pods, g.PodUID), Members: membersOf(g.share, g.AllocResp),
		}
	}
	return devices, err
}

// Owners returns the UIDs of the pods to which the kubelet has given devices, by the ID of the device, as its
// checkpoint in its directory says.
func Owners(dir string) (map[string][]string, error) {
	owners, _, err := booked(dir)
	return owners, err
}

// booked is Owners, with the time when the kubelet wrote that.
func booked(dir string) (map[string][]string, time.Time, error) {
	all, written, err := readCheckpoint(dir)
	owners := make(map[string][]string)
	for _, g := range all {
		owners[Parent(g.share)] = append(owners[Parent(g.share)], g.PodUID)
	}
	return owners, written, err
}

// GivenByOthers returns the containers that have a device of a resource from another plugin, each with one of its
// devices. The answer that the kubelet keeps does not set the variable that ours sets. The keys are of no other use.
func GivenByOthers(dir, resource, variable string) (map[string]string, error) {
	all, _, err := readCheckpoint(dir)
	others := make(map[string]string)
	for _, g := range all {
		var answer pluginapi.ContainerAllocateResponse
		if g.ResourceName != resource || g.AllocResp == nil || proto.Unmarshal(g.AllocResp, &answer) != nil {
			continue
		}
		if _, ours := answer.GetEnvs()[variable]; !ours {
			others[g.PodUID+"/"+g.ContainerName] = g.share
		}
	}
	return others, err
}
