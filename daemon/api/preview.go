// SPDX-License-Identifier: Apache-2.0

package api

// Preview is what "metalplugd --preview" reads from its standard input, and what it writes once all is registered. It runs until its
// standard input ends, with a stand-in for the kubelet.
type Preview struct {
	Dir        string      `json:"dir"`                  // for all its files and its sockets, absolute
	Recording  string      `json:"recording,omitempty"`  // the file to use in the place of the configured hardware, or empty
	Containers []Container `json:"containers,omitempty"` // that ask for devices, in this order
	Error      string      `json:"error,omitempty"`      // why it does not run
}

// Container is what a container asks for and gets.
type Container struct {
	Resource string `json:"resource"`
	Count    int    `json:"count"`
	Granted
	Error string `json:"error,omitempty"` // why it gets nothing
}

// Granted is what a container gets.
type Granted struct {
	Devices []string          `json:"devices"` // their IDs, or those of shares
	Env     map[string]string `json:"env"`
	Nodes   []GrantedNode     `json:"nodes"`
	CDI     []string          `json:"cdiDevices,omitempty"` // names of CDI devices, in place of nodes
}

// GrantedNode is a device node in a container.
type GrantedNode struct {
	Container   string `json:"container"`
	Host        string `json:"host"`
	Permissions string `json:"permissions"`
}
