// SPDX-License-Identifier: Apache-2.0

package unit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/metalplug/metalplug/daemon/config"
)

// Mounts prepares the mounts for metalplugd.service. The parameter specs is the directory of CDI specs. If a resource has inject
// = "cdi" and no cdi_kind, or serve = "dra", or if a claim still has a spec, Mounts creates the link dir/cdi, which leads to
// specs. metalplugd.service mounts the link's target (BindPaths=). Otherwise, Mounts removes the link. The daemon can then
// neither see nor update metalplug's files in specs, so Mounts removes these files too.
func Mounts(file, dir, specs string) error {
	link := filepath.Join(dir, "cdi")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c, err := config.Load(file)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	ofClaims, _ := filepath.Glob(filepath.Join(specs, "metalplug-claim_*.json")) // Glob fails only for an invalid pattern
	if c.Paths.CDI == specs && (ofClaims != nil || slices.ContainsFunc(c.Resources, config.Resource.WritesSpecs)) {
		if err := os.MkdirAll(specs, 0o755); err != nil {
			return err
		}
		return os.Symlink(specs, link)
	}
	ofResources, err := filepath.Glob(filepath.Join(specs, "metalplug.*.json"))
	for _, spec := range slices.Concat(ofResources, ofClaims) {
		err = errors.Join(err, os.Remove(spec))
	}
	return err
}
