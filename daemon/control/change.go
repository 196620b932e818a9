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
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/reset"
)

// reasonSize is the longest reason of a cordon in bytes: it is shown in tables and in the status of pods. loginSize is
// that of a name, of which useradd(8) takes 32.
const (
	reasonSize = 200
	loginSize  = 64
)

// request is a change, and who asks for it.
type request struct {
	api.Change
	uid uint32 // of the client, as the kernel tells
}

// changing lets only uid 0, and the daemon's own uid, change a device; afterwards the device is sent as it is then. failed
// is the code of an error of change that is not about the request.
func (s *Server) changing(failed int, change func(ctx context.Context, id string, c request) (note string, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		uid, err := strconv.ParseUint(r.RemoteAddr, 10, 32)
		if err != nil || uid != 0 && int(uid) != os.Geteuid() {
			refuse(w, http.StatusForbidden, errors.New("only uid 0 may change a device: use sudo"))
			return
		}
		c, err := readChange(r.Body)
		if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			refuse(w, http.StatusRequestEntityTooLarge, fmt.Errorf("a request has at most %d bytes", bodySize))
			return
		} else if err != nil {
			refuse(w, http.StatusBadRequest, err)
			return
		}
		id, limits := r.PathValue("id"), http.NewResponseController(w)
		_ = limits.SetReadDeadline(time.Time{}) // to erase takes an hour
		note, err := change(r.Context(), id, request{c, uint32(uid)})
		_ = limits.SetWriteDeadline(time.Now().Add(answerLimit))
		switch {
		case errors.Is(err, inventory.ErrUnknownDevice):
			refuse(w, http.StatusNotFound, unknown(id))
			return
		case errors.Is(err, errNoReason):
			refuse(w, http.StatusBadRequest, err)
			return
		case err != nil:
			refuse(w, failed, err)
			return
		}
		d, err := s.device(id)
		if err != nil { // it was cordoned, and is not there
			d = api.Device{ID: id, Health: health(false), Reason: "gone", NUMANode: -1, Nodes: []string{}}
		}
		send(w, api.Changed{Device: d, Note: note})
	}
}

// readChange reads the body of a request; an empty one changes nothing in particular.
func readChange(body io.Reader) (c api.Change, err error) {
	decoder := json.NewDecoder(body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return api.Change{}, fmt.Errorf("read the request: %w", err)
	}
	c.Reason, c.Login = strings.Join(strings.Fields(c.Reason), " "), strings.Join(strings.Fields(c.Login), " ")
	if len(c.Reason) > reasonSize || len(c.Login) > loginSize {
		return api.Change{}, fmt.Errorf("read the request: a reason has at most %d bytes, a login %d", reasonSize, loginSize)
	}
	if all := reset.Erasures(); c.Scrub != "" && !slices.Contains(all, c.Scrub) {
		return api.Change{}, fmt.Errorf("%q is no way to erase: there are %s", c.Scrub, strings.Join(all, ", "))
	}
	return c, nil
}
