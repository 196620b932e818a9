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
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/reset"
)

// Change is the body of a request that changes a device. Which field counts depends on the request.
type Change struct {
	Reason string `json:"reason,omitempty"` // of a cordon; for people, on one line
	Login  string `json:"login,omitempty"`  // of who has logged in where the request comes from; for people too
	Scrub  string `json:"scrub,omitempty"`  // of a reset: erase the device too, by this method; of an adoption: by another than its resource's
}

// Changed is a device after a change.
type Changed struct {
	Device
	Note string `json:"note,omitempty"` // that there was nothing to change; empty: there was
}

// CheckScrub refuses what is no way to erase a device. Which of them a device has is for the helper to say.
func CheckScrub(method string) error {
	if all := reset.Erasures(); !slices.Contains(all, method) {
		return fmt.Errorf("%q is no way to erase: there are %s", method, strings.Join(all, ", "))
	}
	return nil
}

// reasonSize is the longest reason of a cordon in bytes: it is shown in tables and in the status of pods. loginSize is
// that of a name, of which useradd(8) takes 32.
const (
	reasonSize = 200
	loginSize  = 64
)

// changing lets only uid 0, and the daemon's own uid, change a device; afterwards the device is sent as it is then.
func (s *Server) changing(change func(ctx context.Context, uid uint32, id string, c Change) (note string, code int, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		peer, ok := r.Context().Value(peerKey{}).(*unix.Ucred)
		if !ok || peer.Uid != 0 && int(peer.Uid) != os.Geteuid() {
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
		note, code, err := change(r.Context(), peer.Uid, id, c)
		_ = limits.SetWriteDeadline(time.Now().Add(answerLimit))
		if errors.Is(err, inventory.ErrUnknownDevice) {
			code, err = http.StatusNotFound, s.unknown(id)
		}
		if err != nil {
			refuse(w, code, err)
			return
		}
		d, err := s.device(id)
		if err != nil { // it was cordoned, and is not there
			d = Device{ID: id, Health: health(false), Reason: "gone", NUMANode: -1, Nodes: []string{}}
		}
		send(w, Changed{d, note})
	}
}

// readChange reads the body of a request; an empty one changes nothing in particular.
func readChange(body io.Reader) (c Change, err error) {
	decoder := json.NewDecoder(body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return Change{}, fmt.Errorf("read the request: %w", err)
	}
	c.Reason, c.Login = strings.Join(strings.Fields(c.Reason), " "), strings.Join(strings.Fields(c.Login), " ")
	if len(c.Reason) > reasonSize || len(c.Login) > loginSize {
		return Change{}, fmt.Errorf("read the request: a reason has at most %d bytes, a login %d", reasonSize, loginSize)
	}
	return c, nil
}

// scrubbable refuses a device that there is not, and what is no way to erase one; an empty method is none.
func (s *Server) scrubbable(id, method string) (code int, err error) {
	if method != "" {
		if err := CheckScrub(method); err != nil {
			return http.StatusBadRequest, err
		}
	}
	_, err = s.device(id)
	return http.StatusNotFound, err
}

// reset resets a device. It goes on when the client leaves: what has begun is better brought to its end.
func (s *Server) reset(ctx context.Context, _ uint32, id string, c Change) (note string, code int, err error) {
	if code, err := s.scrubbable(id, c.Scrub); err != nil {
		return "", code, err
	}
	if err := s.Reset(context.WithoutCancel(ctx), id, c.Scrub); err != nil {
		return "", http.StatusConflict, err
	}
	return "", 0, nil
}

// adopt lets a disk be erased and offered, whatever is on it.
func (s *Server) adopt(ctx context.Context, _ uint32, id string, c Change) (note string, code int, err error) {
	if code, err := s.scrubbable(id, c.Scrub); err != nil {
		return "", code, err
	}
	if note, err = s.Adopt(ctx, id, c.Scrub); err != nil {
		return "", http.StatusConflict, err
	}
	return note, 0, nil
}
