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

// Mounts creates dir with the link "cdi" to specs, the directory of CDI specs, if a resource has inject = "cdi" and no
// cdi_kind, or serve = "dra". Otherwise it removes the link, and the files of an earlier start in specs. metalplugd.service
// binds the target of the link. Old specs must be removed, because the daemon cannot see or update them without the link.
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
	if c.Paths.CDI == specs && slices.ContainsFunc(c.Resources, config.Resource.WritesSpecs) {
		if err := os.MkdirAll(specs, 0o755); err != nil {
			return err
		}
		return os.Symlink(specs, link)
	}
	ofResources, err := filepath.Glob(filepath.Join(specs, "metalplug.*.json"))
	ofClaims, _ := filepath.Glob(filepath.Join(specs, "metalplug-claim_*.json")) // both patterns are well formed
	for _, spec := range slices.Concat(ofResources, ofClaims) {
		err = errors.Join(err, os.Remove(spec))
	}
	return err
}
