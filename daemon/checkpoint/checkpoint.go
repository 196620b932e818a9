// SPDX-License-Identifier: Apache-2.0

// Package checkpoint reads the kubelet's checkpoint file, which records the devices that the kubelet has given to pods.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/metalplug/metalplug/internal/fsutil"
)

const (
	// File is the name of the kubelet's checkpoint file. The file is in the kubelet's device plugin directory (kubernetes v1.36
	// pkg/kubelet/cm/devicemanager, kubeletDeviceManagerCheckpoint).
	File = "kubelet_internal_checkpoint"
	// maxSize is the maximum size of a checkpoint in bytes. An allocation for one container takes about 1 KiB.
	maxSize = 64 << 20
)

// AllocatedShare is a share of a device that the kubelet has allocated to a container.
type AllocatedShare struct {
	*Entry
	Node  int // NUMA node, or -1
	Share string
}

// Entry lists the devices that the kubelet has given to a container (kubernetes v1.36
// pkg/kubelet/cm/devicemanager/checkpoint, PodDevicesEntry).
type Entry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     map[string][]string // keys are NUMA nodes, values are IDs
	AllocResp     []byte              // the plugin's ContainerAllocateResponse
}

// Read returns the devices that containers hold according to the kubelet's checkpoint, and the time when the kubelet wrote the
// checkpoint. The parameter dir is the kubelet's device plugin directory. If there is no checkpoint, Read returns no devices,
// because no pod has ever held one.
func Read(dir string) (all []AllocatedShare, written time.Time, err error) {
	file := filepath.Join(dir, File)
	text, written, err := fsutil.ReadDated(file, maxSize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, time.Time{}, nil
	case err != nil:
		return nil, time.Time{}, err
	}
	var content struct {
		Data struct{ PodDeviceEntries json.RawMessage }
	}
	var entries []Entry
	if err = json.Unmarshal(text, &content); err == nil {
		err = json.Unmarshal(content.Data.PodDeviceEntries, &entries) // fails if the file contains no entries
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read %s: %w", file, err)
	}
	for i := range entries {
		for key, shares := range entries[i].DeviceIDs {
			node, err := strconv.Atoi(key)
			if err != nil {
				node = -1
			}
			for _, share := range shares {
				all = append(all, AllocatedShare{&entries[i], node, share})
			}
		}
	}
	return all, written, nil
}

// ShareMark is the separator in a share's ID. The device ID precedes it, and the share number follows it.
const ShareMark = "::"

// Parent returns the ID of the device that a share belongs to, or id itself if it cannot be a share's ID. The result may be
// wrong, because a device ID may also contain [ShareMark].
func Parent(id string) string {
	device, number, _ := CutShare(id)
	if _, err := strconv.ParseUint(number, 10, 0); err != nil {
		return id
	}
	return device
}

// CutShare splits a share's ID into the device ID and the share number. The result ok is false if id is not a share's ID.
func CutShare(id string) (device, number string, ok bool) {
	at := strings.LastIndex(id, ShareMark)
	if at < 0 {
		return id, "", false
	}
	return id[:at], id[at+len(ShareMark):], true
}
