// SPDX-License-Identifier: Apache-2.0

package control

import (
	"slices"

	"github.com/metalplug/metalplug/internal/clients"
)

// surplus returns the oldest client of the newest client's user if this user has too many, or nil. So no user with read
// access can prevent changes by root. With PrivateUsers=yes, metalplugd sees the same uid for all users except root
// (user_namespaces(7)).
func surplus(open []*clients.Client) *clients.Client {
	newest := open[len(open)-1]
	same := slices.DeleteFunc(slices.Clone(open), func(c *clients.Client) bool { return c.Uid != newest.Uid })
	if len(same) <= maxClients {
		return nil
	}
	return same[0]
}
