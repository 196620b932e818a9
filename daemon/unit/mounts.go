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

// Mounts makes dir and, in it, the link "cdi" to specs, the directory of CDI specs, if metalplugd is to write there: a
// resource has inject = "cdi" and no cdi_kind, or a spec of an earlier start is left, which a running container may
// need. It removes the link otherwise. metalplugd.service binds what the link leads to.
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
	left, err := filepath.Glob(filepath.Join(specs, "metalplug*.json"))
	if err != nil {
		return err
	}
	describes := slices.ContainsFunc(c.Resources, func(r config.Resource) bool {
		return r.Inject == config.InjectCDI && r.CDIKind == ""
	})
	if c.Paths.CDI != specs || !describes && len(left) == 0 {
		return nil
	}
	if err := os.MkdirAll(specs, 0o755); err != nil {
		return err
	}
	return os.Symlink(specs, link)
}
