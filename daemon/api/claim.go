// SPDX-License-Identifier: Apache-2.0

package api

// ClaimRef names a ResourceClaim. The UID alone identifies it.
type ClaimRef struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// String returns the name for people.
func (c ClaimRef) String() string {
	if c.Name == "" {
		return c.UID
	}
	return c.Namespace + "/" + c.Name
}

// Claim is the body of a request to prepare the devices of a claim. The path of the request has its UID.
type Claim struct {
	Namespace string         `json:"namespace,omitempty"`
	Name      string         `json:"name,omitempty"`
	Requests  []ClaimRequest `json:"requests"`
}

// ClaimRequest is a request of a claim with the devices that were allocated for it.
type ClaimRequest struct {
	Name    string   `json:"name"`
	Devices []string `json:"devices"`         // IDs
	Admin   bool     `json:"admin,omitempty"` // an administrator's access to devices that other tenants may hold
}

// Prepared is what containers get for the requests of a claim, in the order of the requests.
type Prepared struct {
	Requests []PreparedRequest `json:"requests"`
}

// PreparedRequest has everything that a container gets for a request. The CDI devices include the nodes and variables.
type PreparedRequest struct {
	Name  string            `json:"name"`
	CDI   []string          `json:"cdi"`
	Nodes []string          `json:"nodes"` // as the container finds them
	Env   map[string]string `json:"env"`
}
