// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/internal/fsutil"
)

// spec is the state of one resource's spec file.
type spec struct {
	resource config.Resource
	file     string                         // path of the spec
	version  uint64                         // version of the offer that the file was last compared with, or 0
	written  map[string][]*specs.DeviceNode // nodes in the file, with device IDs as keys, or nil if the file is not up to date
	err      error                          // why the file could not be written, or nil
}

// writeFile writes a spec to a file. writeFile uses the oldest version of the format that supports everything in the spec. A file
// that already has this content is not written, because runtimes read all specs again after each change to the directory. A
// runtime rejects a spec without devices, so writeFile removes the file for such a spec.
func writeFile(file string, spec specs.Spec) (err error) {
	if len(spec.Devices) == 0 {
		if err = os.Remove(file); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if spec.Version, err = specs.MinimumRequiredVersion(&spec); err != nil {
		return err
	}
	_ = os.MkdirAll(filepath.Dir(file), 0o755) // if this fails, writing the file also fails
	text, err := json.MarshalIndent(spec, "", "\t")
	text = append(text, '\n')
	if old, readErr := fsutil.ReadRegular(file, int64(len(text))); err != nil || readErr == nil && bytes.Equal(old, text) {
		return err
	}
	// Container engines without root privileges must be able to read the spec. The CDI library's own function would write a file
	// that only root can read.
	return fsutil.ReplaceFile(file, 0o644, text)
}

// nodes returns the nodes of a device, or nil if a node is missing.
func (s *Specs) nodes(r config.Resource, d *inventory.Status) []*specs.DeviceNode {
	nodes := make([]*specs.DeviceNode, 0, len(d.Allocation.Nodes))
	for _, n := range d.Allocation.Nodes {
		host, err := s.resolve(n.Host)
		if err != nil {
			return nil
		}
		nodes = append(nodes, &specs.DeviceNode{Path: n.Container, HostPath: host, Permissions: cmp.Or(n.Permissions, r.Permissions)})
	}
	return nodes
}

// resolve follows a link to a device node and returns the path of the node, because the runtime does not follow links
// (deviceInfoFromPath in pkg/cdi of the library).
func (s *Specs) resolve(name string) (string, error) {
	node, err := filepath.EvalSymlinks(s.Host.Path(name))
	dev, devErr := filepath.EvalSymlinks(s.Host.Dev)
	if rest, below := strings.CutPrefix(node, dev+"/"); below {
		node = "/dev/" + rest
	}
	return node, errors.Join(err, devErr)
}
