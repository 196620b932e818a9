// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/metalplug/metalplug/daemon/config"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/internal/fsutil"
)

// spec is the state of one resource's spec file.
type spec struct {
	resource config.Resource
	file     string                         // path of the spec
	offer    *inventory.Offer               // the offer that the file was last compared with, or nil
	written  map[string][]*specs.DeviceNode // nodes in the file, with device IDs as keys, or nil if the file is not up to date
	err      error                          // why the file could not be written, or nil
}

// writeFile writes a spec to a file. writeFile uses the oldest version of the format that supports everything in the spec.
// writeFile leaves a file that already has this content alone, because runtimes reread all specs after each change to the
// directory. A runtime rejects a spec without devices, so writeFile removes the file if the spec has none.
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

// nodes returns a device's nodes, or nil if a node is missing.
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

// resolve follows a link to a device node and returns the node's path, because the runtime does not follow links
// (deviceInfoFromPath in the library's pkg/cdi).
func (s *Specs) resolve(name string) (string, error) {
	node, err := filepath.EvalSymlinks(s.Host.Path(name))
	dev, devErr := filepath.EvalSymlinks(s.Host.Dev)
	if rest, below := strings.CutPrefix(node, dev+"/"); below {
		node = "/dev/" + rest
	}
	return node, errors.Join(err, devErr)
}

const (
	// prefix is the prefix of the CDI vendors and file names that metalplug uses.
	prefix = "metalplug."
	// suffix is the file extension of JSON specs. The runtime ignores other extensions.
	suffix = ".json"
	// fileSize is the maximum length of a file name. The kernel allows longer names (NAME_MAX), but a temporary file also needs
	// room for its suffix.
	fileSize = 240
)

// Kind returns the CDI kind of a resource's devices, such as "metalplug.nvidia.com/gpu" for nvidia.com/gpu. The kind must differ
// from the resource's name. The vendor's own tools may use this name as the kind for the same devices, and a runtime rejects a
// CDI name that two specs define. Runtimes with CDI before 0.6 reject a class that contains a dot. Therefore, the resource's
// domain becomes part of the vendor and not of the class.
func Kind(resource string) string {
	domain, class, _ := strings.Cut(resource, "/")
	if !parser.IsLetter(rune(class[0])) {
		// The class in a CDI kind must begin with a letter, but the last part of a resource name may begin with a digit. The
		// result is still unique, because no domain ends in "_n".
		domain, class = domain+"_n", "n"+class
	}
	return prefix + domain + "/" + class
}

// fileName returns the name of a resource's spec file. Domains contain no "_", so no two resources share a file.
func fileName(resource string) string {
	name := prefix + strings.Replace(resource, "/", "_", 1)
	if most := fileSize - len(suffix); len(name) > most {
		sum := sha256.Sum256([]byte(resource))
		digest := "-" + hex.EncodeToString(sum[:4])
		name = name[:most-len(digest)] + digest
	}
	return name + suffix
}

// Names returns the CDI names of devices with the given kind. The spec for this kind may come from metalplug or from another
// program.
func Names(kind string, devices []*inventory.Status) []string {
	vendor, class := parser.ParseQualifier(kind)
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = parser.QualifiedName(vendor, class, d.Device.ID)
	}
	return names
}
