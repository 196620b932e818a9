// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// CordonedBy names who has cordoned a device, by a cordon that is not nil. It is empty if that is not known.
func CordonedBy(c *inventory.Cordon) string {
	if c.Since.IsZero() {
		return ""
	}
	return who(c.UID, c.User, c.Login)
}

// who names who asks for a change: sudo makes root of everybody, but the login is still known.
func who(uid uint32, name, login string) string {
	name = cmp.Or(name, fmt.Sprintf("uid %d", uid))
	if login != "" && login != name {
		return login + " as " + name
	}
	return name
}

// Cordoned is a device that is cordoned.
type Cordoned struct {
	Device   string `json:"device"`
	Resource string `json:"resource"` // empty: it is seen and not offered
	inventory.Cordon
}

// cordons lists what is cordoned.
func cordons(snapshot *inventory.Snapshot) []Cordoned {
	all := []Cordoned{}
	for d := range everyDevice(snapshot) {
		if d.Cordon != nil {
			all = append(all, Cordoned{Device: d.Device.ID, Resource: d.Resource, Cordon: *d.Cordon})
		}
	}
	return all
}

// cordon keeps a device from new pods. It needs a reason: the one who finds it cordoned is rarely the one who did it.
func (s *Server) cordon(ctx context.Context, uid uint32, id string, c Change) (note string, code int, err error) {
	if c.Reason == "" {
		return "", http.StatusBadRequest, errors.New("a cordon needs a reason, for whoever wonders")
	}
	name := userName(uid)
	err = s.Inventory.Cordon(ctx, id, inventory.Cordon{
		Reason: c.Reason, UID: uid, User: name, Login: c.Login, Since: time.Now().UTC().Truncate(time.Second),
	})
	if err == nil {
		s.Log.Info("device cordoned", "device", id, "user", who(uid, name, c.Login), "err", c.Reason)
	}
	return "", http.StatusInternalServerError, err
}

// uncordon gives a device to pods again.
func (s *Server) uncordon(ctx context.Context, uid uint32, id string, c Change) (note string, code int, err error) {
	was, err := s.Inventory.Uncordon(ctx, id)
	switch {
	case err != nil:
	case !was:
		note = "it was not cordoned"
	default:
		s.Log.Info("device uncordoned", "device", id, "user", who(uid, userName(uid), c.Login))
	}
	return note, http.StatusInternalServerError, err
}

// userName returns the name of a user who may change something; empty: it is only a number, as that of a daemon which
// somebody has started by hand. No file is asked: the daemon has no business with that of the users, and may not read it.
func userName(uid uint32) string {
	if uid == 0 {
		return "root"
	}
	return ""
}
