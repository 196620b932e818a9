// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/internal/fsutil"
)

// claimKind is the CDI kind of all devices in claims. Each claim has its own spec, in its own file.
const claimKind = "metalplug.io/claim"

// claimPrefix is the prefix of the names of claims' spec files. [Specs.Set] does not remove files with this prefix.
const claimPrefix = "metalplug-claim_"

// claimSize is the maximum size of a claim's spec. A claim has at most 32 devices.
const claimSize = 1 << 20

// maxClaims is the maximum number of claims with a spec. A kubelet runs a few hundred pods. Without this limit, a compromised
// metalplug-dra could fill /run by preparing any number of claims with admin access.
const maxClaims = 4096

// adminSuffix follows the first part of a CDI device name if the request has admin access. The suffix is unambiguous, because
// neither a request's name nor a claim's UID contains a dot.
const adminSuffix = ".admin"

// Request describes the nodes and variables that containers get for one request in a claim.
type Request struct {
	Name    string
	Admin   bool // whether the request has admin access, even while another tenant holds the devices
	Devices []*inventory.Status
	Nodes   []api.GrantedNode // nodes of the devices, or empty if other CDI devices contain them
	Env     map[string]string
}

// Claim writes a claim's spec, and returns the CDI names for each request. A request's first name stands for the variables. Each
// further name stands for the nodes of one device. If the file is missing, Claim recreates it, because the directory is empty
// after a boot.
func (s *Specs) Claim(uid string, requests []Request) (names [][]string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The snapshot may be older than the devices in the requests, so it is compared only with the specs of earlier claims.
	snapshot, _ := s.Inventory.Snapshot()
	err = s.pruneClaims(snapshot)
	if others, _ := filepath.Glob(s.claimFile("*")); len(others) >= maxClaims && !slices.Contains(others, s.claimFile(uid)) {
		return nil, fmt.Errorf("%d claims have a CDI spec in %s, and no more are allowed", len(others), s.Dir)
	}
	spec := specs.Spec{Kind: claimKind}
	names = make([][]string, len(requests))
	for i, r := range requests {
		add := func(name string, edits specs.ContainerEdits) {
			spec.Devices = append(spec.Devices, specs.Device{Name: name, ContainerEdits: edits})
			names[i] = append(names[i], claimKind+"="+name)
		}
		name, variables := uid+"_"+strings.ReplaceAll(r.Name, "/", "_"), specs.ContainerEdits{}
		for _, key := range slices.Sorted(maps.Keys(r.Env)) {
			variables.Env = append(variables.Env, key+"="+r.Env[key])
		}
		add(name, variables)
		for _, d := range r.Devices {
			var edits specs.ContainerEdits
			for _, n := range r.Nodes {
				if slices.ContainsFunc(d.Allocation.Nodes, func(own device.Node) bool { return own.Container == n.Container }) {
					edits.DeviceNodes = append(edits.DeviceNodes, s.node(d, n.Container, n.Permissions))
				}
			}
			if slices.Contains(edits.DeviceNodes, nil) {
				return nil, fmt.Errorf("%s: a node is %w", d.Device.ID, device.ErrGone)
			}
			if edits.DeviceNodes != nil {
				suffix := ""
				if r.Admin {
					suffix = adminSuffix
				}
				add(name+suffix+":"+d.Device.ID, edits)
			}
		}
	}
	return names, errors.Join(err, writeFile(s.claimFile(uid), spec))
}

// pruneClaims removes a device from claim specs if the device is absent, has other nodes or belongs to another tenant. Until the
// claim is prepared again, none of its containers can start with that device. pruneClaims reads the claims and their devices from
// the files, so it also works after the daemon has restarted.
func (s *Specs) pruneClaims(snapshot *inventory.Snapshot) (err error) {
	if s.prunedVersion == snapshot.Version {
		return nil
	}
	found, _ := filepath.Glob(s.claimFile("*")) // Glob fails only for an invalid pattern
	for _, file := range found {
		uid := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), claimPrefix), suffix)
		var spec specs.Spec
		text, readErr := fsutil.ReadRegular(file, claimSize)
		if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
			err = errors.Join(err, readErr)
		}
		if readErr != nil || json.Unmarshal(text, &spec) != nil { // the runtime also ignores a malformed file
			continue
		}
		all := len(spec.Devices)
		spec.Devices = slices.DeleteFunc(spec.Devices, func(d specs.Device) bool {
			request, id, _ := strings.Cut(d.Name, ":")
			now := snapshot.Find(id)
			if now == nil { // an entry without nodes sets a request's variables, and stays
				return len(d.ContainerEdits.DeviceNodes) > 0
			}
			if !strings.HasSuffix(request, adminSuffix) && !(now.Claims.Ready(uid) && (now.Medium == "" || now.Same())) {
				return true
			}
			return slices.ContainsFunc(d.ContainerEdits.DeviceNodes, func(n *specs.DeviceNode) bool {
				return !reflect.DeepEqual(n, s.node(now, n.Path, n.Permissions))
			})
		})
		if len(spec.Devices) < all {
			err = errors.Join(err, writeFile(file, spec))
		}
	}
	if err == nil {
		s.prunedVersion = snapshot.Version
	}
	return err
}

// node returns the node that a device currently has at the given path in a container, or nil. The result contains the device
// number, because the runtime would otherwise look up the path on the host later, when it may belong to another device.
func (s *Specs) node(d *inventory.Status, path, permissions string) *specs.DeviceNode {
	i := slices.IndexFunc(d.Allocation.Nodes, func(n device.Node) bool { return n.Container == path })
	if i < 0 || !d.Present {
		return nil
	}
	host, err := s.resolve(d.Allocation.Nodes[i].Host)
	file, statErr := s.Host.Stat(d.Allocation.Nodes[i].Host)
	if err != nil || statErr != nil {
		return nil
	}
	n := &specs.DeviceNode{Path: path, HostPath: host, Permissions: permissions}
	if n.Type = map[uint32]string{unix.S_IFBLK: "b", unix.S_IFCHR: "c"}[file.Mode&unix.S_IFMT]; n.Type != "" {
		n.Major, n.Minor = int64(unix.Major(file.Rdev)), int64(unix.Minor(file.Rdev))
	}
	return n
}

// Unclaim removes a claim's spec. Unclaim returns no error if the spec is missing.
func (s *Specs) Unclaim(uid string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return writeFile(s.claimFile(uid), specs.Spec{})
}

// claimFile returns the path of a claim's spec.
func (s *Specs) claimFile(uid string) string { return filepath.Join(s.Dir, claimPrefix+uid+suffix) }
