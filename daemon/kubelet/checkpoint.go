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

	"github.com/metalplug/metalplug/daemon/inventory"
)

const (
	// CheckpointFile is where, in its directory, the kubelet's device manager keeps what it has allocated
	// (kubernetes v1.36 pkg/kubelet/cm/devicemanager, kubeletDeviceManagerCheckpoint).
	CheckpointFile = "kubelet_internal_checkpoint"
	// checkpointSize is the largest checkpoint in bytes. An allocation of a container takes about 1 KiB.
	checkpointSize = 64 << 20
)

// readCheckpoint returns the UIDs of the pods that the kubelet's checkpoint names, by the device and by the share, and when
// the kubelet wrote it. Without a checkpoint, no pod has ever held a device.
func readCheckpoint(file string) (pods map[string][]string, written time.Time, err error) {
	entries, written, err := parseCheckpoint(file)
	pods = make(map[string][]string)
	for _, entry := range entries {
		for _, node := range entry.DeviceIDs {
			for _, share := range node {
				pods[share] = append(pods[share], entry.PodUID)
				if device := Parent(share); device != share {
					pods[device] = append(pods[device], entry.PodUID)
				}
			}
		}
	}
	return pods, written, err
}

// allocation is what the kubelet has given to a container, as its checkpoint has it (kubernetes v1.36
// pkg/kubelet/cm/devicemanager/checkpoint, PodDevicesEntry).
type allocation struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     map[string][]string // by NUMA node
	AllocResp     []byte              // the plugin's ContainerAllocateResponse
}

// parseCheckpoint returns the devices of containers in the kubelet's checkpoint, and the time when it wrote that. It
// reads no further, because the IDs of all devices of the node follow.
func parseCheckpoint(file string) (entries []allocation, written time.Time, err error) {
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
	for _, key := range []string{"Data", "PodDeviceEntries"} {
		if err == nil {
			err = enter(d, key)
		}
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
	return entries, info.ModTime(), nil
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

// Remembered returns the devices of pods in the kubelet's checkpoint in its directory, by resource and ID.
// They must be in the offer, whether we know them or not.
func Remembered(dir string) (map[string]map[string]inventory.Known, error) {
	entries, _, err := parseCheckpoint(filepath.Join(dir, CheckpointFile))
	devices := make(map[string]map[string]inventory.Known)
	for _, entry := range entries {
		if devices[entry.ResourceName] == nil {
			devices[entry.ResourceName] = make(map[string]inventory.Known)
		}
		for key, shares := range entry.DeviceIDs {
			node, err := strconv.Atoi(key)
			if err != nil {
				node = -1
			}
			for _, share := range shares {
				known := devices[entry.ResourceName][Parent(share)]
				devices[entry.ResourceName][Parent(share)] = inventory.Known{
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
	resources, err := Remembered(dir)
	owners := make(map[string][]string)
	for _, devices := range resources {
		for id, known := range devices {
			owners[id] = append(owners[id], known.Pods...)
		}
	}
	return owners, err
}

// GivenByOthers returns the containers that have a device of a resource from another plugin, each with one of its
// devices. The answer that the kubelet keeps does not set the variable that ours sets. The keys are of no other use.
func GivenByOthers(dir, resource, variable string) (map[string]string, error) {
	entries, _, err := parseCheckpoint(filepath.Join(dir, CheckpointFile))
	others := make(map[string]string)
	for _, entry := range entries {
		var answer pluginapi.ContainerAllocateResponse
		if entry.ResourceName != resource || entry.AllocResp == nil || proto.Unmarshal(entry.AllocResp, &answer) != nil {
			continue
		}
		if _, ours := answer.GetEnvs()[variable]; ours {
			continue
		}
		for _, shares := range entry.DeviceIDs {
			for _, share := range shares {
				others[entry.PodUID+"/"+entry.ContainerName] = share
			}
		}
	}
	return others, err
}
