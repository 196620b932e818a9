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
	Resource string `json:"resource"` // empty if it is seen and not offered
	Cordon
}

// By names who has cordoned the device. sudo makes root of each user, but the login is still known. It is empty if that is not
// known.
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

// Unexplained is the reason of a cordon for which the operator gave none.
const Unexplained = "by the operator"

// Cordon is why a device is kept from new pods, by whom and since when.
type Cordon struct {
	Reason string    `json:"reason"`
	UID    uint32    `json:"uid"`            // of the client, as the kernel reports it
	User   string    `json:"user"`           // its name, or empty
	Login  string    `json:"login"`          // the login name that the client reports, since sudo makes every user root, or empty
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
