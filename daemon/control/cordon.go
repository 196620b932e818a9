// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
)

// errNoReason refuses a cordon without a reason. The next operator who finds the device is rarely the one who cordoned it.
var errNoReason = errors.New("a cordon needs a reason: it is shown with the device")

// by returns the cordon that a change asks for. The users' file is not read: the daemon may not, so that a uid other than 0
// has no name.
func (c request) by() api.Cordon {
	made := api.Cordon{Reason: c.Reason, UID: c.uid, Login: c.Login, Since: time.Now().UTC().Truncate(time.Second)}
	if c.uid == 0 {
		made.User = "root"
	}
	return made
}

// named lets a request name a device as why does, where the name leads to one device. Other names stay as they are, also the
// ID of a device that was cordoned and is gone.
func (s *Server) named(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch ids := s.idsOf(r.Context(), r.PathValue("id")); {
		case len(ids) == 1:
			r.SetPathValue("id", ids[0])
		case len(ids) > 1:
			refuse(w, http.StatusConflict, fmt.Errorf("%s: name one of these devices: %s", r.PathValue("id"), strings.Join(ids, ", ")))
			return
		}
		next(w, r)
	}
}

// idsOf returns the IDs of the devices that have a name, each once.
func (s *Server) idsOf(ctx context.Context, name string) (ids []string) {
	q := question{Server: s, what: name}
	q.snapshot, _ = s.Inventory.Snapshot()
	for _, d := range q.known() {
		for _, part := range d.Parts() { // a bundle has no cordon, and no reset, of its own
			ids = append(ids, part.Device.ID)
		}
	}
	if len(ids) == 0 {
		answer, _ := s.explain(ctx, name) // without one the name leads nowhere
		for _, x := range answer.Found {
			if x.Device != nil {
				ids = append(ids, x.Device.ID)
			}
		}
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return id == "" })
	slices.Sort(ids)
	return slices.Compact(ids)
}

// cordon keeps a device from new pods.
func (s *Server) cordon(ctx context.Context, id string, c request) (note string, err error) {
	if c.Reason == "" {
		return "", errNoReason
	}
	by := c.by()
	if err = s.Inventory.Cordon(ctx, id, by); err != nil {
		return "", err
	}
	snapshot, _ := s.Inventory.Snapshot()
	if d := snapshot.Find(id); d != nil && by.Reason == api.Unexplained && !d.Cordon.Same(&by) {
		return "it was cordoned already", nil
	}
	s.Log.Info("device cordoned", "device", id, "user", by.By(), "err", c.Reason)
	return "", nil
}

// uncordon gives a device to pods again.
func (s *Server) uncordon(ctx context.Context, id string, c request) (note string, err error) {
	was, err := s.Inventory.Uncordon(ctx, id)
	if err == nil && !was {
		return "it was not cordoned", nil
	}
	if by := c.by(); err == nil {
		s.Log.Info("device uncordoned", "device", id, "user", by.By())
	}
	return "", err
}
