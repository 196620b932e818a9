// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/evidence"
	"github.com/metalplug/metalplug/daemon/fault"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/daemon/lease"
)

// stateVersion is the version of the format of the state file.
const stateVersion = 2

// record is one device in the file.
type record struct {
	ID       string         `json:"id"`
	Class    string         `json:"class"`
	Resource string         `json:"resource"`
	Model    string         `json:"model,omitempty"`
	SysPath  string         `json:"sysfsPath"`
	NUMANode int            `json:"numaNode"`
	Present  bool           `json:"present"`
	Away     bool           `json:"away,omitempty"`  // not in the device list until it is erased
	Bundle   kubelet.Member `json:"bundle,omitzero"` // that it is in

	lease.Lease
	known
	// Owed is the kubelet that may not be done with its Allocate, or nil.
	Owed *string `json:"owed,omitempty"`
}

type contents struct {
	Version int          `json:"version"`
	Machine string       `json:"machine"` // as in [Options]
	Health  fault.Record `json:"health"`
	// Disks has the evidence of disks, also absent ones, by medium. A disk without it is read in full before it is offered.
	Disks map[string]evidence.Evidence `json:"disks,omitempty"`
	// Cordons keep devices from new pods, by ID.
	Cordons map[string]*api.Cordon `json:"cordons,omitempty"`
	Devices []record               `json:"devices"` // the last
}

// decode returns the contents of a state file. They must be of this version and of the node with that ID, unless it is empty.
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

// head encodes all but the devices.
func (c contents) head() ([]byte, error) {
	c.Devices = nil
	head, err := json.Marshal(c)
	return bytes.TrimSuffix(head, []byte("null}")), err
}
