// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/fault"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/lease"
)

// stateVersion is the version of the state file format.
const stateVersion = 2

// record is the entry of one device in the state file.
type record struct {
	ID       string         `json:"id"`
	Class    string         `json:"class"`
	Resource string         `json:"resource"`
	Model    string         `json:"model,omitempty"`
	SysPath  string         `json:"sysfsPath"`
	NUMANode int            `json:"numaNode"`
	Present  bool           `json:"present"`
	Away     bool           `json:"away,omitempty"`  // the device is not in the device list until it is erased
	Bundle   kubelet.Member `json:"bundle,omitzero"` // the bundle of the device

	lease.Lease
	known
}

type contents struct {
	Version int          `json:"version"`
	Machine string       `json:"machine"` // see [Options]
	Health  fault.Record `json:"health"`
	// Disks contains the evidence about disks by medium, including absent disks. If there is no evidence about a disk,
	// metalplug reads the whole disk before it offers it.
	Disks map[string]evidence.Evidence `json:"disks,omitempty"`
	// Cordons contains the cordons by device ID. A cordon withholds a device from new pods.
	Cordons map[string]*api.Cordon `json:"cordons,omitempty"`
	Devices []record               `json:"devices"`
}

// decode parses a state file. The file must have the version [stateVersion]. It must also belong to the node with the ID in
// the parameter machine, unless this parameter is empty.
func decode(text []byte, machine string) (c contents, err error) {
	err = json.Unmarshal(text, &c)
	switch {
	case err == nil && c.Version != stateVersion:
		err = fmt.Errorf("version is %d, not %d", c.Version, stateVersion)
	case err == nil && machine != "" && c.Machine != machine:
		err = errors.New("it was written on another machine")
	}
	for _, r := range c.Devices {
		if invalid := r.Valid(); err == nil && invalid != nil {
			err = fmt.Errorf("%s: %w", r.ID, invalid)
		}
	}
	return c, err
}
