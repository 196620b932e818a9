// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// Cordoned is a device that is cordoned.
type Cordoned struct {
	Device   string `json:"device"`
	Resource string `json:"resource"` // empty: it is seen and not offered
	inventory.Cordon
}

// CordonedBy names who has cordoned a device, by a cordon that is not nil: sudo makes root of everybody, but the login is
// still known. It is empty if that is not known.
func CordonedBy(c *inventory.Cordon) string {
	if c.Since.IsZero() {
		return ""
	}
	name := cmp.Or(c.User, fmt.Sprintf("uid %d", c.UID))
	if c.Login != "" && c.Login != name {
		return c.Login + " as " + name
	}
	return name
}

// errNoReason: the next operator who finds a device cordoned is rarely the one who did it.
var errNoReason = errors.New("a cordon needs a reason: it is shown with the device")

// by returns the cordon that a change asks for. The users' file is not read: the daemon may not, so that a uid other than 0
// has no name.
func (c Change) by() inventory.Cordon {
	made := inventory.Cordon{Reason: c.Reason, UID: c.uid, Login: c.Login, Since: time.Now().UTC().Truncate(time.Second)}
	if c.uid == 0 {
		made.User = "root"
	}
	return made
}

// cordon keeps a device from new pods.
func (s *Server) cordon(ctx context.Context, id string, c Change) (note string, err error) {
	if c.Reason == "" {
		return "", errNoReason
	}
	by := c.by()
	if err = s.Inventory.Cordon(ctx, id, by); err == nil {
		s.Log.Info("device cordoned", "device", id, "user", CordonedBy(&by), "err", c.Reason)
	}
	return "", err
}

// uncordon gives a device to pods again.
func (s *Server) uncordon(ctx context.Context, id string, c Change) (note string, err error) {
	was, err := s.Inventory.Uncordon(ctx, id)
	if err == nil && !was {
		return "it was not cordoned", nil
	}
	if by := c.by(); err == nil {
		s.Log.Info("device uncordoned", "device", id, "user", CordonedBy(&by))
	}
	return "", err
}
