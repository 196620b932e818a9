// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
)

// errNoDryRun is the error for a dry run of a cordon. A cordon is easy to undo, so a dry run is not necessary.
var errNoDryRun = errors.New("dry_run applies only to a reset or an adoption")

// newCordon returns the cordon that a change requests. metalplugd cannot look up user names, so only uid 0 gets a name here.
func (c request) newCordon() api.Cordon {
	made := api.Cordon{Reason: c.Reason, UID: c.uid, Login: c.Login, Since: time.Now().UTC().Truncate(time.Second)}
	if c.uid == 0 {
		made.User = "root"
	}
	return made
}

// resolveName replaces the name in the path of a request with the ID of the device that has this name. If several devices have
// the name, resolveName refuses the request. A name without a device stays as it is, because it may be the ID of an absent
// device that is cordoned.
func (s *Server) resolveName(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch ids := s.idsOf(r.Context(), r.PathValue("id")); {
		case len(ids) == 1:
			r.SetPathValue("id", ids[0])
		case len(ids) > 1:
			refuse(w, http.StatusConflict, fmt.Errorf("%s: several devices match; name one of them: %s", r.PathValue("id"), strings.Join(ids, ", ")))
			return
		}
		next(w, r)
	}
}

// idsOf returns the IDs of the devices that have a name, without duplicates.
func (s *Server) idsOf(ctx context.Context, name string) (ids []string) {
	q := question{Server: s, what: name}
	q.snapshot, _ = s.Inventory.Snapshot()
	for _, d := range q.findKnown() {
		for _, part := range d.Parts() { // a bundle is cordoned and reset through its members
			ids = append(ids, part.Device.ID)
		}
	}
	if len(ids) == 0 {
		answer, _ := s.explain(ctx, name) // if explain fails, the list stays empty
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

// cordon withholds a device from new pods.
func (s *Server) cordon(ctx context.Context, id string, c request) (note string, err error) {
	if c.DryRun {
		return "", errNoDryRun
	}
	c.Reason = cmp.Or(c.Reason, api.Unexplained)
	by := c.newCordon()
	if err = s.Inventory.Cordon(ctx, id, by); err != nil {
		return "", err
	}
	snapshot, _ := s.Inventory.Snapshot()
	if d := snapshot.Find(id); d != nil && by.Reason == api.Unexplained && !d.Cordon.Same(&by) {
		return "was already cordoned", nil
	}
	s.Log.Info("device cordoned", "device", id, "user", by.By(), "reason", c.Reason)
	return "", nil
}

// uncordon makes a device available to new pods again.
func (s *Server) uncordon(ctx context.Context, id string, c request) (note string, err error) {
	if c.DryRun {
		return "", errNoDryRun
	}
	was, err := s.Inventory.Uncordon(ctx, id)
	if err == nil && !was {
		return "was not cordoned", nil
	}
	if by := c.newCordon(); err == nil {
		s.Log.Info("device uncordoned", "device", id, "user", by.By())
	}
	return "", err
}
