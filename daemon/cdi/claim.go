// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/internal/fsutil"
)

// claimKind is the kind of the devices in the specs of claims. Each claim has a file, in which each request is a device.
const claimKind = "metalplug.io/claim"

// Request is what containers get for a request of a claim.
type Request struct {
	Name  string
	Nodes []device.Node
	Env   map[string]string
}

// Claim writes the spec of a claim, and returns the CDI name of each request. It always writes, since the runtime's directory
// is empty after a boot.
func (s *Specs) Claim(uid string, requests []Request) (names []string, err error) {
	spec := specs.Spec{Kind: claimKind}
	for _, r := range requests {
		d := specs.Device{Name: uid + "_" + strings.ReplaceAll(r.Name, "/", "_")}
		for _, n := range r.Nodes {
			host, err := s.resolve(n.Host)
			if err != nil {
				return nil, fmt.Errorf("find the node %s: %w", n.Host, fsutil.Cause(err))
			}
			d.ContainerEdits.DeviceNodes = append(d.ContainerEdits.DeviceNodes, &specs.DeviceNode{Path: n.Container, HostPath: host, Permissions: n.Permissions})
		}
		for _, key := range slices.Sorted(maps.Keys(r.Env)) {
			d.ContainerEdits.Env = append(d.ContainerEdits.Env, key+"="+r.Env[key])
		}
		spec.Devices = append(spec.Devices, d)
		names = append(names, claimKind+"="+d.Name)
	}
	_ = os.MkdirAll(s.Dir, 0o755) // if this fails, writing the file reports it
	err = fsutil.ReplaceFile(s.claimFile(uid), 0o644, func(w io.Writer) error { return write(w, spec) })
	if err != nil && !errors.Is(err, fsutil.ErrUnsynced) {
		return nil, fmt.Errorf("write the CDI spec of claim %s: %w", uid, err)
	}
	return names, nil
}

// Unclaim removes the spec of a claim, which may be missing.
func (s *Specs) Unclaim(uid string) error {
	if err := os.Remove(s.claimFile(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the CDI spec of claim %s: %w", uid, err)
	}
	return nil
}

// claimFile returns the path of the spec of a claim. [Specs.Set] does not remove it.
func (s *Specs) claimFile(uid string) string {
	return filepath.Join(s.Dir, "metalplug-claim_"+uid+suffix)
}
