// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/internal/fsutil"
)

// node is a device node as a spec describes it.
type node struct{ container, host, permissions string }

// description is what a spec says: the nodes of each device, by ID.
type description map[string][]node

func (d description) equal(other description) bool { return maps.EqualFunc(d, other, slices.Equal) }

// spec is the spec of one resource.
type spec struct {
	resource config.Resource
	wanted   bool        // containers get its names; else it describes only what pods hold
	file     string      // its path
	version  uint64      // of the offer that it was last compared with
	written  description // what the file says; nil: not known
	info     fs.FileInfo // of the file as it was written; nil: there is none
	err      error       // why the file does not say what it should
	// given are devices whose names were given out and which the inventory does not report as held yet, by ID.
	given map[string]bool
}

// intact tells whether the file is the one that was written, and all of it.
func (s *spec) intact() bool {
	info, err := os.Lstat(s.file)
	if s.written == nil || s.info == nil {
		return s.written != nil && errors.Is(err, fs.ErrNotExist)
	}
	return err == nil && os.SameFile(info, s.info) && info.Size() == s.info.Size() && info.ModTime().Equal(s.info.ModTime())
}

// put makes the file say what d says. A spec without devices is an error to the runtime, so then there is no file.
func (s *spec) put(d description) error {
	if s.written.equal(d) && s.intact() {
		return nil
	}
	s.written, s.info = nil, nil
	if len(d) == 0 {
		if err := os.Remove(s.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		s.written = d
		return nil
	}
	text, err := encode(Kind(s.resource.Name), d)
	if err != nil {
		return err
	}
	if err := makeDir(filepath.Dir(s.file)); err != nil {
		return err
	}
	// Engines without root read the spec too. The library's own writer leaves it to root alone.
	err = fsutil.ReplaceFile(s.file, 0o644, func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
	if err != nil && !errors.Is(err, fsutil.ErrUnsynced) { // after a crash it is made again
		return err
	}
	if s.info, err = os.Lstat(s.file); err == nil {
		s.written = d
	}
	return err
}

// encode returns the spec as JSON, in the oldest version of the format that has all of it.
func encode(kind string, d description) ([]byte, error) {
	spec := specs.Spec{Kind: kind}
	for _, id := range slices.Sorted(maps.Keys(d)) {
		if _, _, _, err := parser.ParseQualifiedName(kind + "=" + id); err != nil {
			return nil, err
		}
		edits := specs.ContainerEdits{}
		for _, n := range d[id] {
			edits.DeviceNodes = append(edits.DeviceNodes,
				&specs.DeviceNode{Path: n.container, HostPath: n.host, Permissions: n.permissions})
		}
		spec.Devices = append(spec.Devices, specs.Device{Name: id, ContainerEdits: edits})
	}
	version, err := specs.MinimumRequiredVersion(&spec)
	if err != nil {
		return nil, err
	}
	spec.Version = version
	return json.MarshalIndent(spec, "", "\t")
}

// makeDir makes the directory of the specs if it is missing.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// describe returns what a spec should say: every device in the offer whose nodes are there, healthy or not. Of what is gone
// nothing is said: the number of its node may be the next one's by now. If containers no longer get the names, it describes
// only what a pod holds.
func (s *Specs) describe(sp *spec, devices []*inventory.Status) description {
	d := make(description)
	for _, device := range devices {
		id := device.Device.ID
		if device.Held() {
			delete(sp.given, id)
		}
		if !sp.wanted && !device.Held() && !sp.given[id] {
			continue
		}
		if nodes := s.nodes(sp.resource, device); len(nodes) > 0 {
			d[id] = nodes
		}
	}
	return d
}

// nodes returns the nodes of a device; none if one of them is missing.
func (s *Specs) nodes(r config.Resource, d *inventory.Status) []node {
	nodes := make([]node, 0, len(d.Allocation.Nodes))
	for _, n := range d.Allocation.Nodes {
		host := s.resolve(n.Host)
		if host == "" {
			return nil
		}
		permissions := n.Permissions
		if permissions == "" {
			permissions = r.Permissions
		}
		nodes = append(nodes, node{n.Container, host, permissions})
	}
	return nodes
}

// resolve returns the node that a link leads to, empty: there is none. The runtime follows no links (deviceInfoFromPath
// in pkg/cdi of the library: "not a device node").
func (s *Specs) resolve(name string) string {
	node, err := filepath.EvalSymlinks(s.Host.Path(name))
	if err != nil {
		return ""
	}
	dev, err := filepath.EvalSymlinks(s.Host.Dev)
	if err != nil {
		return ""
	}
	rest, ok := strings.CutPrefix(node, dev+"/")
	if !ok {
		return node
	}
	return "/dev/" + rest
}

// ours tells whether a file was written by us: it is named as we name ours, and its kind is one of ours.
func ours(file string) bool {
	text, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	var s struct {
		Kind string `json:"kind"`
	}
	return json.Unmarshal(text, &s) == nil && strings.HasPrefix(s.Kind, prefix)
}
