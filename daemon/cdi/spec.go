// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/internal/fsutil"
)

// description is the content of a spec. It maps the ID of each device to the nodes of the device.
type description map[string][]specs.DeviceNode

// spec is the spec of one resource.
type spec struct {
	resource config.Resource
	file     string      // path of the spec
	version  uint64      // version of the offer in the last call of Specs.put, or 0
	written  description // content of the file, or nil if unknown
	err      error       // why the file is not up to date, or nil
}

// put writes d to the file. If d is empty, put removes the file instead, because the runtime rejects a spec without
// devices.
func (s *spec) put(d description) (err error) {
	if s.written != nil && maps.EqualFunc(s.written, d, slices.Equal) {
		return nil
	}
	s.written = nil
	if len(d) == 0 {
		if err = os.Remove(s.file); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	} else {
		err = replace(s.file, encode(Kind(s.resource.Name), d))
	}
	if err == nil {
		s.written = d
	}
	return err
}

// encode returns the spec of a resource with the given kind.
func encode(kind string, d description) specs.Spec {
	spec := specs.Spec{Kind: kind}
	for _, id := range slices.Sorted(maps.Keys(d)) {
		var edits specs.ContainerEdits
		for i := range d[id] {
			edits.DeviceNodes = append(edits.DeviceNodes, &d[id][i])
		}
		spec.Devices = append(spec.Devices, specs.Device{Name: id, ContainerEdits: edits})
	}
	return spec
}

// replace writes a spec to a file. It uses the oldest version of the format that supports everything in the spec. If the file
// already has this content, replace does not write it, because runtimes read all specs again after each change to the directory.
func replace(file string, spec specs.Spec) (err error) {
	if spec.Version, err = specs.MinimumRequiredVersion(&spec); err != nil {
		return err
	}
	_ = os.MkdirAll(filepath.Dir(file), 0o755) // if this fails, writing the file also fails
	text, err := json.MarshalIndent(spec, "", "\t")
	text = append(text, '\n')
	if old, readErr := fsutil.ReadRegular(file, int64(len(text))); err != nil || readErr == nil && bytes.Equal(old, text) {
		return err
	}
	// Rootless container engines also read the spec. The library's writer would make the file readable only for root.
	err = fsutil.ReplaceFile(file, 0o644, text)
	if errors.Is(err, fsutil.ErrUnsynced) { // the daemon writes the spec again after a crash
		return nil
	}
	return err
}

// nodes returns the nodes of a device, or nil if a node is missing.
func (s *Specs) nodes(r config.Resource, d *inventory.Status) []specs.DeviceNode {
	nodes := make([]specs.DeviceNode, 0, len(d.Allocation.Nodes))
	for _, n := range d.Allocation.Nodes {
		host, err := s.resolve(n.Host)
		if err != nil {
			return nil
		}
		nodes = append(nodes, specs.DeviceNode{Path: n.Container, HostPath: host, Permissions: cmp.Or(n.Permissions, r.Permissions)})
	}
	return nodes
}

// resolve follows a link to a device node and returns the path of the node. The runtime does not follow links (deviceInfoFromPath
// in pkg/cdi of the library).
func (s *Specs) resolve(name string) (string, error) {
	node, err := filepath.EvalSymlinks(s.Host.Path(name))
	dev, devErr := filepath.EvalSymlinks(s.Host.Dev)
	if rest, below := strings.CutPrefix(node, dev+"/"); below {
		node = "/dev/" + rest
	}
	return node, errors.Join(err, devErr)
}
