// SPDX-License-Identifier: Apache-2.0

package control

import (
	"slices"

	"github.com/metalplug/metalplug/internal/clients"
)

// surplusClient returns the client to disconnect, or nil. If the user of the newest client has too many clients, the result is
// the oldest client of this user. A user with read access therefore cannot keep root from making changes. With
// PrivateUsers=yes, metalplugd sees the same uid for all users except root (user_namespaces(7)).
func surplusClient(open []*clients.Client) *clients.Client {
	newest := open[len(open)-1]
	same := slices.DeleteFunc(slices.Clone(open), func(c *clients.Client) bool { return c.Uid != newest.Uid })
	if len(same) <= maxClients {
		return nil
	}
	return same[0]
}
