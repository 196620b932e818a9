// SPDX-License-Identifier: Apache-2.0

package control

import (
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

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/reset"
)

// maxReasonLen is the maximum length of a cordon's reason in bytes. Tables and pod statuses show the reason. maxLoginLen
// is the maximum length of a login name. useradd(8) allows 32 bytes.
const (
	maxReasonLen = 200
	maxLoginLen  = 64
)

// request is a change, with the user who requests it.
type request struct {
	api.Change
	uid uint32 // uid of the client as reported by the kernel
}

// permitted returns a handler that only uid 0 and metalplugd's own uid may use.
func permitted(next func(w http.ResponseWriter, r *http.Request, uid uint32)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		uid, err := strconv.ParseUint(r.RemoteAddr, 10, 32)
		if err != nil || uid != 0 && int(uid) != os.Geteuid() {
			refuse(w, http.StatusForbidden, errors.New("only uid 0 may change a device: use sudo"))
			return
		}
		next(w, r, uint32(uid))
	}
}

// changing returns a handler that changes a device and sends the new state of the device. It accepts the same users as
// [permitted]. The parameter failed is the status code if the change fails for a reason other than an invalid request.
func (s *Server) changing(failed int, change func(ctx context.Context, id string, c request) (note string, err error)) http.HandlerFunc {
	return permitted(func(w http.ResponseWriter, r *http.Request, uid uint32) {
		c, err := readChange(r.Body)
		if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			refuse(w, http.StatusRequestEntityTooLarge, fmt.Errorf("the request is longer than %d bytes", maxBodyLen))
			return
		} else if err != nil {
			refuse(w, http.StatusBadRequest, err)
			return
		}
		id, unlimited := r.PathValue("id"), untilAnswer(w) // erasing a disk can take hours
		note, err := change(r.Context(), id, request{c, uid})
		unlimited()
		switch {
		case errors.Is(err, inventory.ErrUnknownDevice):
			refuse(w, http.StatusNotFound, unknown(id))
			return
		case errors.Is(err, errNoReason), errors.Is(err, errNoDryRun):
			refuse(w, http.StatusBadRequest, err)
			return
		case err != nil:
			refuse(w, failed, err)
			return
		}
		d, err := s.device(id)
		if err != nil { // an absent device can be cordoned too
			d = api.Device{ID: id, Health: health(false), Reason: "gone", NUMANode: -1, Nodes: []string{}}
		}
		send(w, api.Changed{Device: d, Note: note})
	})
}

// readChange reads the body of a request. An empty body means the zero Change.
func readChange(body io.Reader) (c api.Change, err error) {
	decoder := json.NewDecoder(body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return api.Change{}, fmt.Errorf("read the request: %w", err)
	}
	c.Reason, c.Login = strings.Join(strings.Fields(c.Reason), " "), strings.Join(strings.Fields(c.Login), " ")
	if len(c.Reason) > maxReasonLen || len(c.Login) > maxLoginLen {
		return api.Change{}, fmt.Errorf("read the request: the reason may have at most %d bytes, and the login at most %d", maxReasonLen, maxLoginLen)
	}
	if all := reset.Erasures(); c.Scrub != "" && !slices.Contains(all, c.Scrub) {
		return api.Change{}, fmt.Errorf("invalid scrub %q: must be one of %s", c.Scrub, strings.Join(all, ", "))
	}
	return c, nil
}
