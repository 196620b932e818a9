// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/reset"
)

// maxReasonLen is the maximum length of a cordon's reason in bytes. The length is limited because the reason must fit into tables
// and pod statuses. maxLoginLen is the maximum length of a login name in bytes, and leaves a margin above the 32 bytes that
// useradd(8) allows.
const (
	maxReasonLen = 200
	maxLoginLen  = 64
)

// request is a change, with the user who requested it.
type request struct {
	api.Change
	uid uint32 // uid of the client as reported by the kernel
}

// requireOwner returns a handler that only uid 0 and metalplugd's own uid may use.
func requireOwner(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if uid, err := uidOf(r); err != nil || uid != 0 && int(uid) != os.Geteuid() {
			refuse(w, http.StatusForbidden, errors.New("only uid 0 may change a device: use sudo"))
			return
		}
		next(w, r)
	}
}

// uidOf returns the uid of the client that has sent a request.
func uidOf(r *http.Request) (uint32, error) {
	uid, err := strconv.ParseUint(r.RemoteAddr, 10, 32)
	return uint32(uid), err
}

// changeHandler returns a handler that changes a device and sends the device's new state. The handler accepts the same users as
// [requireOwner].
func (s *Server) changeHandler(change func(ctx context.Context, id string, c request) (note string, err error)) http.HandlerFunc {
	return requireOwner(func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		uid, _ := uidOf(r) // requireOwner has checked it
		c, err := readChange(r)
		perform(w, err, func() (any, error) {
			note, err := change(r.Context(), id, request{c, uid})
			if errors.Is(err, inventory.ErrUnknownDevice) {
				err = unknown(id)
			}
			d, absent := s.device(id)
			if absent != nil { // an absent device can be cordoned too
				d = api.Device{ID: id, Health: health(false), Reason: "gone", NUMANode: -1, Nodes: []string{}}
			}
			return api.ChangedDevice{Device: d, Note: note}, err
		})
	})
}

// perform calls change() without the time limits of a request, because erasing a disk can take hours. perform sends the result or
// the error. The parameter invalid is an error from reading the request, or nil.
func perform(w http.ResponseWriter, invalid error, change func() (any, error)) {
	_, tooLarge := errors.AsType[*http.MaxBytesError](invalid)
	switch {
	case tooLarge:
		refuse(w, http.StatusRequestEntityTooLarge, fmt.Errorf("the request is too large: at most %d bytes are allowed", maxBodyLen))
		return
	case invalid != nil:
		refuse(w, http.StatusBadRequest, invalid)
		return
	}
	limits := http.NewResponseController(w)
	_ = limits.SetReadDeadline(time.Time{})
	result, err := change()
	_ = limits.SetWriteDeadline(time.Now().Add(answerTimeout))
	switch {
	case err == nil:
		send(w, result)
	case errors.Is(err, inventory.ErrUnknownDevice):
		refuse(w, http.StatusNotFound, err)
	case errors.Is(err, ErrWorking):
		refuse(w, http.StatusServiceUnavailable, err)
	case errors.Is(err, errNoDryRun):
		refuse(w, http.StatusBadRequest, err)
	default:
		refuse(w, http.StatusConflict, err)
	}
}

// readBody decodes a request's body. An empty body leaves the value unchanged.
func readBody(r *http.Request, value any) error {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(value); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the request: %w", err)
	}
	return nil
}

// readChange reads the body of a request to change a device.
func readChange(r *http.Request) (c api.Change, err error) {
	if err := readBody(r, &c); err != nil {
		return c, err
	}
	c.Reason, c.Login = strings.Join(strings.Fields(c.Reason), " "), strings.Join(strings.Fields(c.Login), " ")
	if len(c.Reason) > maxReasonLen || len(c.Login) > maxLoginLen {
		return c, fmt.Errorf("read the request: the reason may have at most %d bytes, and the login at most %d", maxReasonLen, maxLoginLen)
	}
	if all := reset.Erasures(); c.Scrub != "" && !slices.Contains(all, c.Scrub) {
		return c, fmt.Errorf("invalid scrub %q: must be one of %s", c.Scrub, strings.Join(all, ", "))
	}
	return c, nil
}

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

// resolveName replaces the name in a request's path with the ID of the device that has this name. If several devices have the
// name, resolveName refuses the request. A name that no device has stays unchanged, because it may be the ID of an absent device
// that is cordoned.
func (s *Server) resolveName(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch ids := s.idsOf(r.PathValue("id")); {
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
func (s *Server) idsOf(name string) (ids []string) {
	q := question{Server: s, what: name, config: s.Config.Load()}
	q.snapshot, _ = s.Inventory.Snapshot()
	for _, d := range q.findKnown() {
		for _, part := range d.Parts() { // a bundle is cordoned and reset through its members
			ids = append(ids, part.Device.ID)
		}
	}
	if len(ids) == 0 {
		answer, _ := q.answer() // if this fails, the list stays empty
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
