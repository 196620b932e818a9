// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"fmt"
	"time"
)

// Cordoned is a device that is cordoned.
type Cordoned struct {
	Device   string `json:"device"`
	Resource string `json:"resource"` // empty if it is not offered
	Cordon
}

// By returns the name of the user who cordoned the device. With sudo the user is root, so By prefers the login name. It
// is empty if unknown.
func (c *Cordon) By() string {
	if c.Since.IsZero() {
		return ""
	}
	name := cmp.Or(c.User, fmt.Sprintf("uid %d", c.UID))
	if c.Login != "" && c.Login != name {
		return c.Login + " as " + name
	}
	return name
}

// Unexplained is the reason of a cordon without a given reason.
const Unexplained = "by the operator"

// Cordon is the reason, the user and the time of a cordon.
type Cordon struct {
	Reason string    `json:"reason"`
	UID    uint32    `json:"uid"`            // uid of the client, which the kernel reports
	User   string    `json:"user"`           // user name of that uid, or empty
	Login  string    `json:"login"`          // login name from the client, because sudo makes every user root, or empty
	Since  time.Time `json:"since,omitzero"` // zero if the state was lost
}

// Same reports whether two cordons are equal. Either may be nil.
func (c *Cordon) Same(other *Cordon) bool {
	if c == nil || other == nil {
		return c == other
	}
	a, b := *c, *other
	a.Since, b.Since = time.Time{}, time.Time{}
	return a == b && c.Since.Equal(other.Since)
}
