// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"

	"github.com/metalplug/metalplug/daemon/config"
)

// Unsupported returns what in a sound configuration this version cannot do. It refuses to run with it: a disk that is
// to be erased must not be handed on as it is.
func Unsupported(c config.Config) error {
	var errs []error
	for _, r := range c.Resources {
		refuse := func(key, value string) {
			errs = append(errs, fmt.Errorf("resource %s: %s = %q: this version cannot do that yet", r.Name, key, value))
		}
		if r.Reset.Scrub != config.None {
			refuse("reset.scrub", r.Reset.Scrub)
		}
		if m := r.Reset.Method; m != config.Auto && m != config.None {
			refuse("reset.method", m)
		}
		for key, unit := range map[string]string{
			"units.init": r.Units.Init, "units.start": r.Units.Start, "units.release": r.Units.Release,
		} {
			if unit != "" {
				refuse(key, unit)
			}
		}
	}
	return errors.Join(errs...)
}
