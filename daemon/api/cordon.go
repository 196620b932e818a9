// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"fmt"
	"time"
)

// CordonedDevice describes a cordoned device.
type CordonedDevice struct {
	Device   string `json:"device"`
	Resource string `json:"resource"` // empty if the device is not offered
	Cordon
}

// By returns the name of the user who cordoned the device, or "" if the name is unknown. By prefers the login name, because every
// user of sudo is root.
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

// Unexplained is the reason for a cordon if the operator gave none.
const Unexplained = "by the operator"

// Cordon contains the reason, the user and the time of a cordon.
type Cordon struct {
	Reason string    `json:"reason"`
	UID    uint32    `json:"uid"`            // uid of the client as reported by the kernel
	User   string    `json:"user"`           // user name of that uid, or empty
	Login  string    `json:"login"`          // login name that the client sent, or empty
	Since  time.Time `json:"since,omitzero"` // zero if the saved state was lost
}

// Same reports whether two cordons have the same content. Either cordon may be nil.
func (c *Cordon) Same(other *Cordon) bool {
	if c == nil || other == nil {
		return c == other
	}
	a, b := *c, *other
	a.Since, b.Since = time.Time{}, time.Time{}
	return a == b && c.Since.Equal(other.Since)
}
