// SPDX-License-Identifier: Apache-2.0

package api

// ClaimRef identifies a ResourceClaim. The claim's UID is unique.
type ClaimRef struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// String returns the claim's namespace and name, for messages.
func (c ClaimRef) String() string {
	if c.Name == "" {
		return c.UID
	}
	return c.Namespace + "/" + c.Name
}

// Claim is the body of a request to prepare a claim's devices. The body does not contain the claim's UID, which is in the request
// path.
type Claim struct {
	Namespace string         `json:"namespace,omitempty"`
	Name      string         `json:"name,omitempty"`
	Requests  []ClaimRequest `json:"requests"`
	Invalid   string         `json:"invalid,omitempty"` // why the client rejects the claim; metalplugd then only records the rejection
}

// ClaimRequest is one of a claim's requests, with the devices that were allocated for it.
type ClaimRequest struct {
	Name    string   `json:"name"`
	Devices []string `json:"devices"`         // IDs
	Admin   bool     `json:"admin,omitempty"` // whether an administrator gets access to devices that other tenants may hold
}

// Prepared lists everything that containers get for each request in a claim, in the order of the requests.
type Prepared struct {
	Requests []PreparedRequest `json:"requests"`
}

// Driver is the body of a request that reports the state of metalplug-dra.
type Driver struct {
	PID      int    `json:"pid"`               // process that sent the last report; may have ended since
	Identity string `json:"identity"`          // user as which the driver acts, and when the identity expires
	Problem  string `json:"problem,omitempty"` // why the driver cannot publish devices, or empty
}

// NoSharing is the problem in a [Driver] while the driver does not publish shared devices.
const NoSharing = "the API server has not enabled DRAConsumableCapacity, so claims get no devices with shares"

// PreparedRequest lists the CDI devices that a container gets for a request. They contain all nodes and variables.
type PreparedRequest struct {
	Name string   `json:"name"`
	CDI  []string `json:"cdi"`
}
